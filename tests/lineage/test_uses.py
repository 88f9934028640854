"""What came of releases: uses read back, train-test contamination and over-weighting, with their paths."""

from __future__ import annotations

import json

import pytest
from clearance_cases import reported
from event_cases import TEAM, dataset, event, model, name, own
from ledger_cases import KEYS, family, request
from sent_cases import sent

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage import ingest
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import PRODUCT_NAMESPACE
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.uses import Contamination, Families, contaminations, registered

NOBODY = Families({}, {})
UNIT = {"unit": "user"}


class Line:
    """One dataset's line in the graph: its table, a model that a ledger entry paid for, and a release."""

    def __init__(self, store: LineageStore, ledger: Ledger, key: str, *, account: str = "f") -> None:
        self.entry = ledger.reserve(account, key, request(dataset=key), None, "compose").entry_id
        guarantee = {"ledgerEntry": self.entry}
        table = dataset(f"{key} table", dpsynth_privacyUnit=UNIT)
        for inputs, output, job in (
            ([table], dataset(f"{key} rows", "1"), "scrubbed"),
            ([f"{key} rows"], model(f"{key} model", "1", dpsynth_guarantee=guarantee), "model"),
            ([f"{key} model"], dataset(key, f"{key}-1", dpsynth_guarantee=guarantee), "released"),
        ):
            store.record(own(inputs=inputs, outputs=[output], job=f"{key}.{job}"))


@pytest.fixture
def ledger(url: str) -> Ledger:
    opened = Ledger(url)
    for account in ("f", "g"):
        opened.open_account(family(account, mode="family"), KEYS)
    return opened


@pytest.fixture
def visits(store: LineageStore, ledger: Ledger) -> Line:
    return Line(store, ledger, "visits")


def kinds(found: list[Contamination]) -> list[tuple[str, str, str]]:
    return [(item.problem, item.data.name, item.origin) for item in found]


def test_a_model_of_a_release_is_not_to_be_tested_on_the_release_s_source(store: LineageStore, visits: Line) -> None:
    store.use("visits-1", by="Ada", purpose="train", product="ranker", reason="r")
    reported(store, event(inputs=["visits table"], outputs=["held out"]), event(outputs=["elsewhere"]))
    ranker = DatasetName(PRODUCT_NAMESPACE, "ranker")
    assert contaminations(store, ranker, NOBODY) == []
    assert contaminations(store, ranker, NOBODY, on=[name("elsewhere")]) == []
    (found,) = contaminations(store, ranker, NOBODY, on=[name("held out")])
    assert (found.problem, found.release, found.origin) == ("train-test", name("visits"), str(name("visits table")))
    assert found.product_path == (
        str(ranker),
        f"trained-on {name('visits')}",
        f"derived {name('visits model')}",
        f"trained-on {name('visits rows')}",
        f"derived {name('visits table')}",
    )
    assert found.data_path == (str(name("held out")), f"derived {name('visits table')}")
    assert "is evaluated on s3://lake:held out" in found.words
    assert found.to_json()["release"] == "s3://lake:visits"
    for data in ("visits table", "visits rows", "visits"):
        assert [item.problem for item in contaminations(store, ranker, NOBODY, on=[name(data)])] == ["train-test"], data
    with pytest.raises(LineageRefused, match="does not have"):
        contaminations(store, ranker, NOBODY, on=[name("never heard of")])


def test_evaluations_that_were_registered_are_looked_at(store: LineageStore, visits: Line) -> None:
    reported(
        store, event(inputs=["visits"], outputs=[model("m")]), event(inputs=["m", "web"], outputs=[model("deeper")])
    )
    evaluated = sent(inputs=["visits table"], outputs=["deeper"], dpsynth_use={"purpose": "evaluate", "release": "x"})
    assert ingest.record(store, evaluated, TEAM).new
    assert contaminations(store, name("m"), NOBODY) == []
    (found,) = contaminations(store, name("deeper"), NOBODY)
    assert (found.problem, found.data, found.release) == ("train-test", name("visits table"), name("visits"))
    assert len(found.product_path) == 6


def test_data_that_were_seen_as_they_are_need_no_release(store: LineageStore, visits: Line) -> None:
    reported(store, event(inputs=["visits table"], outputs=[model("m")]))
    (found,) = contaminations(store, name("m"), NOBODY, on=[name("visits table")])
    assert (found.release, found.origin) == (None, str(name("visits table")))
    assert found.product_path == (str(name("m")), f"trained-on {name('visits table')}")


def test_a_release_beside_its_own_source_weighs_twice(store: LineageStore, ledger: Ledger, visits: Line) -> None:
    Line(store, ledger, "census", account="g")
    reported(store, event(inputs=["visits", "census table", "web"], outputs=[model("fine")]))
    assert contaminations(store, name("fine"), NOBODY) == []
    reported(store, event(inputs=["visits table"], outputs=["part"]), event(inputs=["visits"], outputs=["copy"]))
    reported(store, event(inputs=["copy", "part", "web"], outputs=[model("heavy")]))
    (found,) = contaminations(store, name("heavy"), NOBODY)
    assert kinds([found]) == [("over-weighting", "visits table", str(name("visits table")))]
    assert found.data_path == (str(name("heavy")), f"trained-on {name('part')}", f"derived {name('visits table')}")
    assert found.product_path[:3] == (str(name("heavy")), f"trained-on {name('copy')}", f"derived {name('visits')}")
    assert "was trained on" in found.words


def test_a_mechanism_stands_before_what_it_read(store: LineageStore, visits: Line) -> None:
    reported(store, event(inputs=["visits", "visits model"], outputs=[model("both")]))
    assert contaminations(store, name("both"), NOBODY) == []


def test_a_family_is_one_origin(store: LineageStore, ledger: Ledger, visits: Line) -> None:
    calls = Line(store, ledger, "calls")
    census = Line(store, ledger, "census", account="g")
    reported(store, event(inputs=["visits"], outputs=[model("m")]))
    entries = {entry.entry_id: entry.family for entry in ledger.entries()}
    assert {entries[line.entry] for line in (visits, calls)} == {"f"}
    assert entries[census.entry] == "g"
    paid = Families({}, entries)
    (found,) = contaminations(store, name("m"), paid, on=[name("calls table"), name("census table")])
    assert kinds([found]) == [("train-test", "calls table", "family f")]
    assert found.product_path == (str(name("m")), f"trained-on {name('visits')}")
    # A table that no mechanism has read yet has its contract's family.
    reported(store, event(outputs=["new table"]), event(inputs=["m", "new table"], outputs=[model("more")]))
    declared = Families({name("new table"): "f"}, entries)
    assert kinds(contaminations(store, name("m"), declared, on=[name("new table")])) == [
        ("train-test", "new table", "family f")
    ]
    assert kinds(contaminations(store, name("more"), declared)) == [("over-weighting", "new table", "family f")]
    assert contaminations(store, name("more"), NOBODY) == []


def test_a_release_under_its_logical_name_is_no_data_in_clear(store: LineageStore, visits: Line) -> None:
    links = {"identifiers": [{"namespace": "dpsynth", "name": "visits/released", "type": "TABLE"}]}
    store.record(own(outputs=[dataset("visits", "visits-1", symlinks=links)], job="visits.released"))
    logical = {"namespace": "dpsynth", "name": "visits/released"}
    reported(store, event(inputs=[logical], outputs=[model("m")]))
    assert contaminations(store, name("m"), NOBODY) == []
    (found,) = contaminations(store, name("m"), NOBODY, on=[name("visits table")])
    assert found.release == name("visits")


def test_cycles_end(store: LineageStore, visits: Line) -> None:
    reported(store, event(inputs=["visits", "x"], outputs=["y"]), event(inputs=["y"], outputs=["x", "visits table"]))
    found = contaminations(store, name("y"), NOBODY, on=[name("x")])
    assert {item.problem for item in found} == {"train-test", "over-weighting"}


def test_uses_are_read_back_with_who_told_them(store: LineageStore, visits: Line) -> None:
    release = store.release("visits-1")
    assert registered(store, release) == []
    store.use("visits-1", by="Ada", purpose="train", product="ranker", reason="ticket 7")
    store.use("visits-1", by="Bo", purpose="other", reason="looked")
    use = {"release": "visits-1", "purpose": "train", "product": "theirs"}
    assert ingest.record(store, sent(inputs=["visits"], outputs=["theirs"], dpsynth_use=use), TEAM).new
    reported(store, event(inputs=["visits"], outputs=["read"]), event(inputs=["read"], outputs=["z"], dpsynth_use=use))
    reported(store, event(inputs=["visits"], outputs=["w"], note={"words": json.dumps({"dpsynth_use": 1})}))
    found = [(item.purpose, item.product, item.by, item.reason, item.source) for item in registered(store, release)]
    assert found == [
        ("train", f"{PRODUCT_NAMESPACE}:ranker", "Ada", "ticket 7", ""),
        ("other", "", "Bo", "looked", ""),
        ("train", "theirs", "", "", TEAM),
    ]
