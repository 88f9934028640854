"""Models whose origin only other producers tell: named with whose word it is, and never taken for more."""

from __future__ import annotations

from typing import Any

import pytest
from clearance_cases import contract_of, guarantee, line, reported, spend, trained, verdict
from event_cases import event, model, name, own

from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage.clearance import MOST_LISTED, Clearance, Finding
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.survey import LONGEST_PATH
from dpsynth_platform.release.dossier import clearance_summary
from dpsynth_platform.release.evidence import _related_mechanisms

pytestmark = pytest.mark.usefixtures("starting")


def foreign(found: Clearance) -> list[Finding]:
    return [item for item in found.findings if item.kind == "unverified-source"]


def says(store: LineageStore, producer: str, told: dict[str, Any]) -> int:
    number = store.record(told, origin="ingested", source=producer).sequence
    assert number is not None
    return number


def test_a_checkpoint_that_a_producer_tells_of_is_named_with_whose_word_it_is(
    ledger: Ledger, store: LineageStore
) -> None:
    first = says(store, "team-search", trained("A", "web"))
    second = says(store, "team-ads", trained("A", "crawl"))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    assert (found.decision, found.adding, found.promises) == ("compose", (), ())
    (finding,) = foreign(found)
    assert (finding.told_by, finding.events) == (("team-ads", "team-search"), (first, second))
    said = "only other producers report (reported by team-ads, team-search, events 1, 2): s3://lake:A"
    assert said in finding.words
    assert any(said in sentence for sentence in found.words)
    assert Clearance.from_json(found.to_json()) == found
    earlier = found.to_json()
    for item in earlier["findings"]:
        item["stranger"] = item.pop("incomparable")
        item["kind"] = {"unverified-source": "foreign-word"}.get(item["kind"], item["kind"])
    assert Clearance.from_json(earlier) == found, "steps recorded by earlier versions are read alike"


def test_each_model_upstream_is_named_with_its_own_producers(ledger: Ledger, store: LineageStore) -> None:
    says(store, "one", trained("A", "web"))
    says(store, "two", trained("B", model("A"), "more"))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/B"))
    assert [(item.path[-1], item.told_by) for item in foreign(found)] == [
        ("s3://lake:B", ("two",)),
        ("base s3://lake:A", ("one",)),
    ]


def test_what_a_contract_names_needs_no_model_s_type_to_be_a_word(ledger: Ledger, store: LineageStore) -> None:
    says(store, "one", event("COMPLETE", ["web"], ["B"]))
    assert len(foreign(verdict(ledger, store, contract_of(base_model="s3://lake/B")))) == 1


def test_the_public_part_says_that_it_is_a_word_and_not_whose(ledger: Ledger, store: LineageStore) -> None:
    says(store, "team-search", trained("A", "web"))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    said = " ".join(_related_mechanisms(found).accesses())
    assert "1 model" in said
    assert "this deployment has not verified their events" in said
    assert clearance_summary(found)["findings"] == []
    assert "team-search" not in f"{said} {clearance_summary(found)}"


@pytest.mark.parametrize("how", ["we made it", "a registered use", "declared public"])
def test_what_somebody_here_vouches_for_is_not_unverified(ledger: Ledger, store: LineageStore, how: str) -> None:
    line(store, "visits", spend(ledger, "clinic", "visits"))
    says(store, "one", trained("A", "web"))
    if how == "we made it":
        store.record(own("COMPLETE", ["web"], [model("A")]))
    elif how == "a registered use":
        store.use(name("visits/release"), by="Ada", purpose="train", product=name("A"), reason="r")
    else:
        store.declare_public(name("A"), by="Ada", reason="r")
    assert foreign(verdict(ledger, store, contract_of(base_model="s3://lake/A"))) == []


def test_another_name_that_a_producer_gives_vouches_for_nothing(ledger: Ledger, store: LineageStore) -> None:
    """They call their checkpoint one of ours: whatever is in it, it is their word that it is the same."""
    entry = spend(ledger, "clinic", "visits")
    line(store, "visits", entry)
    links = {"identifiers": [{"namespace": "s3://lake", "name": "visits/model", "type": "MODEL"}]}
    says(store, "one", event("COMPLETE", [], [model("A", symlinks=links)]))
    found = verdict(ledger, store, contract_of("reviews", base_model="s3://lake/A"))
    assert [item.entry for item in found.adding] == [entry.entry_id]
    assert [item.told_by for item in foreign(found)] == [("one",)]


def test_a_model_under_two_names_is_named_once(ledger: Ledger, store: LineageStore) -> None:
    links = {"identifiers": [{"namespace": "s3://lake", "name": "A2", "type": "MODEL"}]}
    says(store, "one", event("COMPLETE", [], [model("A2")]))
    says(store, "two", event("COMPLETE", ["web"], [model("A", symlinks=links)]))
    assert len(foreign(verdict(ledger, store, contract_of(base_model="s3://lake/A")))) == 1
    links["identifiers"][0]["name"] = "C2"
    says(store, "one", event("COMPLETE", [], [model("C2")]))
    says(store, "two", event("COMPLETE", [], [model("C", symlinks=links)]))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/C"))
    assert [item.path for item in found.findings if item.kind == "unknown"] == [("s3://lake:C",)]


def test_a_word_stops_no_run_and_a_new_one_is_news_once(ledger: Ledger, store: LineageStore) -> None:
    says(store, "one", trained("A", "web"))
    contract = contract_of(base_model="s3://lake/A", policy="exclude")
    mine = spend(ledger, "clinic", "visits")
    before = verdict(ledger, store, contract, entry_id=mine.entry_id)
    assert before.decision == "exclude"
    says(store, "two", trained("A", "more"))  # more words of the same model
    assert verdict(ledger, store, contract, entry_id=mine.entry_id).new_findings(before) == ()
    says(store, "two", trained("A", model("Z")))
    says(store, "two", trained("Z", "web"))
    (news,) = verdict(ledger, store, contract, entry_id=mine.entry_id).new_findings(before)
    assert (news.kind, news.told_by) == ("unverified-source", ("two",))


# Long ancestries


def test_of_many_unknown_ancestors_the_nearest_are_listed(ledger: Ledger, store: LineageStore) -> None:
    number = MOST_LISTED + 30
    reported(store, trained("A", *(model(f"mystery-{place:03}") for place in range(number))))
    found = verdict(ledger, store, contract_of(base_model="s3://lake/A"))
    unknown = [item for item in found.findings if item.kind == "unknown"]
    assert (len(unknown), sum(item.number for item in unknown)) == (MOST_LISTED + 1, number)
    assert "and 47 more" in found.reason
    assert "30 more" in unknown[-1].words
    assert Clearance.from_json(found.to_json()) == found


def test_what_is_not_listed_is_news_when_it_changes(ledger: Ledger, store: LineageStore) -> None:
    """Whoever claims enough cannot hide a claim among the others."""
    mine = spend(ledger, "clinic", "visits")
    contract = contract_of(base_model="s3://lake/A")

    def claim(place: int) -> None:
        forged = {"dpsynth_guarantee": {"ledgerEntry": f"{place:032}"}}
        reported(store, event("COMPLETE", ["web"], [model(f"claims-{place:03}", **forged)]))
        reported(store, trained("A", model(f"claims-{place:03}")))

    for place in range(MOST_LISTED + 2):
        claim(place)
    before = verdict(ledger, store, contract, entry_id=mine.entry_id)
    assert before.unproven == MOST_LISTED + 2
    assert f"{MOST_LISTED + 2} findings of another unit" in " ".join(before.promises)
    assert verdict(ledger, store, contract, entry_id=mine.entry_id).new_findings(before) == ()
    claim(999)
    news = verdict(ledger, store, contract, entry_id=mine.entry_id).new_findings(before)
    assert "unproven" in {item.kind for item in news}


def test_a_long_path_is_told_by_its_ends(ledger: Ledger, store: LineageStore) -> None:
    entry = spend(ledger, "clinic", "visits")
    line(store, "visits", entry)
    reported(
        store, trained("M0", "visits/release"), *(trained(f"M{place + 1}", model(f"M{place}")) for place in range(40))
    )
    found = verdict(ledger, store, contract_of("reviews", base_model="s3://lake/M40"))
    (finding,) = found.adding
    assert len(finding.path) == LONGEST_PATH + 1
    assert finding.path[0] == "s3://lake:M40"
    assert "31 more steps" in finding.path[LONGEST_PATH // 2]
    assert finding.path[-1] == f"paid-by dpsynth:ledger:{entry.entry_id}"


@pytest.mark.parametrize("really", [False, True])
def test_an_entry_that_is_claimed_otherwise_than_it_is_stands_once(
    ledger: Ledger, store: LineageStore, really: bool
) -> None:
    """It is composed, and cannot be told apart; where it is upstream besides, the claim of another model stays one."""
    entry = spend(ledger, "clinic", "visits")
    line(store, "visits", entry)
    forged = guarantee(entry)
    forged["dpsynth_guarantee"]["epsilon"] = 1e9
    reported(store, event("COMPLETE", ["web"], [model("A", **forged)]))
    start = "A"
    if really:
        reported(store, trained("B", "visits/release", model("A")))
        start = "B"
    contract = contract_of("reviews", base_model=f"s3://lake/{start}")
    found = verdict(ledger, store, contract)
    kinds = [(item.kind, item.entry) for item in found.adding]
    if really:
        assert kinds == [("unproven", None), ("base-model", entry.entry_id)]
    else:
        assert kinds == [("unproven", entry.entry_id)]
    assert found.comparable == (entry.entry_id,), "reviewers are told how many people are in common all the same"
    assert found.related == (entry.entry_id,)
    assert found.resulting is not None
    assert found.resulting.mechanisms == 2
    assert "no guarantee for all of them together is known" in " ".join(found.promises)
    for policy in ("exclude", "block"):
        refused = contract_of("reviews", base_model=f"s3://lake/{start}", policy=policy)
        assert verdict(ledger, store, refused).decision == "refuse"


def test_the_sum_of_caps_speaks_of_raised_ones(ledger: Ledger, store: LineageStore) -> None:
    spend(ledger, "archive", "w")
    assert "raised" in " ".join(verdict(ledger, store, contract_of()).promises)
