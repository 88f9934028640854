"""Plans and run keys: what is the same run, what is another spend, and how contracts and families are found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import contract_path, dataset_named, family_path, parse_contract
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings
from dpsynth_platform.sources.source import PinnedSource
from dpsynth_platform.synth.mock import source_schema_of
from dpsynth_platform.synth.planning import (
    audited_key,
    changes,
    check_contract,
    load_all,
    load_dataset,
    mechanism_keys,
    plan_release,
    run_key,
)

DOCUMENT: dict[str, Any] = yaml.safe_load((PACKAGE_ROOT / "deploy" / "contracts" / "census.yaml").read_text())


def contract(change: Callable[[dict[str, Any]], object] | None = None) -> DataContract:
    document = copy.deepcopy(DOCUMENT)
    if change is not None:
        change(document)
    return parse_contract(document, where="census.yaml", variables={"DPSYNTH_HOME": "/home"})


@pytest.fixture(scope="module")
def pinned() -> PinnedSource:
    return PinnedSource(uri="/table", table_id="table", version=3, schema=pa.schema([]), first=3, read=3)


@pytest.fixture(scope="module")
def plan() -> Any:
    return plan_release(contract(), source_schema_of(contract()), None)


def test_what_may_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch, plan: Any) -> None:
    needed = plan.describe()["predicted_memory_bytes"]
    monkeypatch.setenv("DPSYNTH_MEMORY", f"{needed // 10**6 + 1}MB")
    assert plan_release(contract(), source_schema_of(contract()), None) == plan
    monkeypatch.setenv("DPSYNTH_MEMORY", f"{needed // 10**6 - 1}MB")
    with pytest.raises(ContractError, match=rf"method {plan.method} may need [0-9,]+ MB .* above DPSYNTH_MEMORY"):
        plan_release(contract(), source_schema_of(contract()), None)


def independent(document: dict[str, Any]) -> None:
    document["generate"] = {"method": "independent", "rows": document["generate"]["rows"]}


def separate_audit_model(**privacy: Any) -> DataContract:
    def change(document: dict[str, Any]) -> None:
        document["audit"]["model"] = "separate"
        independent(document)
        document["privacy"].update(privacy)

    return contract(change)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"on_overlap": "exclude"}, "audit.model: 'separate' with on_overlap: exclude"),
        ({"on_overlap": "block"}, "audit.model: 'separate' with on_overlap: block"),
        ({"guarantee": {"epsilon": 5.5}}, "audit.model: 'separate' with privacy.guarantee.epsilon: 5.5"),
    ],
)
def test_a_second_model_is_refused_where_it_cannot_be(privacy: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as refused:
        separate_audit_model(**privacy)
    assert message in str(refused.value) and "accepted: shared" in str(refused.value)
    separate_audit_model(**privacy | {"on_overlap": "compose", "accept_weak_guarantee": "because it is a test"})


def test_a_second_model_makes_another_run_and_has_a_key_of_its_own() -> None:
    separate = separate_audit_model()
    assert separate.mechanism_snapshot()["audit_model"] == "separate"
    assert "audit_model" not in contract().mechanism_snapshot(), "runs without a choice keep their keys"
    assert mechanism_keys(contract(), "run") == ("run",)
    assert mechanism_keys(separate, "run") == (audited_key("run"), "run")
    assert audited_key("run") not in (audited_key("other"), "run")


def test_each_of_two_mechanisms_is_planned_as_one_alone() -> None:
    schema = source_schema_of(separate_audit_model())
    one = plan_release(contract(independent), schema, None)
    assert plan_release(separate_audit_model(), schema, None).event == one.event


def test_thresholds_that_two_mechanisms_cannot_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsynth_platform.privacy.accounting.delta_slack", lambda event: contract().privacy.delta / 2)
    with pytest.raises(ContractError, match="thresholds of two mechanisms take all of delta"):
        plan_release(separate_audit_model(), source_schema_of(separate_audit_model()), None)


def test_changes_are_named_where_they_make_another_run() -> None:
    def change(document: dict[str, Any]) -> None:
        document.update(description="Another description.")
        document["privacy"]["guarantee"].update(epsilon=0.7)
        document["columns"]["age"].update(max=95)
        document["columns"]["shoe_size"] = {"type": "integer", "min": 20, "max": 60}

    assert changes(contract(), contract()) == []
    assert changes(contract(), contract(change)) == [
        "privacy.guarantee.epsilon",
        "columns.age.max",
        "columns.shoe_size",
    ]


def test_changes_of_bought_measures_are_named_as_in_a_contract() -> None:
    def paid(share: float, target: str) -> DataContract:
        bought = {"measures": ["accuracy"], "share": share}
        return contract(lambda document: document.update(quality={"target": target, "paid": bought}))

    one, other = contract().modelled[:2]
    assert changes(contract(), paid(0.1, one)) == ["quality.paid"]
    assert changes(paid(0.1, one), paid(0.2, other)) == ["quality.paid.share", "quality.target"]


def test_a_plan_is_of_public_facts_alone(plan: Any) -> None:
    again = plan_release(contract(), source_schema_of(contract()), None)
    assert again.digest == plan.digest
    assert plan.guarantee["epsilon"] == DOCUMENT["privacy"]["guarantee"]["epsilon"]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(description="Another description."),
        lambda d: d.update(owners=["somebody@example.org"]),
        lambda d: d["generate"].update(rows=7),
        lambda d: d["release"].update(approvals=2),
        lambda d: d.update(retention={"raw": "1d"}),
        lambda d: d["audit"].update(confidence=0.9),
    ],
)
def test_what_the_mechanism_does_not_depend_on_is_the_same_run(change: Any, pinned: PinnedSource, plan: Any) -> None:
    assert contract(change).digest() != contract().digest()
    assert run_key(contract(change), pinned, None, plan) == run_key(contract(), pinned, None, plan)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["privacy"]["guarantee"].update(epsilon=0.7),
        lambda d: d["privacy"].update(max_contributions=1),
        lambda d: d["privacy"].update(on_overlap="exclude"),
        lambda d: d["privacy"].update(owner_normalization=["casefold"]),
        lambda d: d["columns"]["age"].update(max=95),
        lambda d: d["columns"]["full_name"].update(pii="mask"),
        lambda d: d["audit"].update(canaries=100),
        lambda d: d["quality"].update(holdout=0.2),
        lambda d: d["source"].update(uri="/elsewhere"),
    ],
)
def test_what_it_depends_on_is_another_run(change: Any, pinned: PinnedSource, plan: Any) -> None:
    assert run_key(contract(change), pinned, None, plan) != run_key(contract(), pinned, None, plan)


def test_source_period_and_plan_are_part_of_the_key(pinned: PinnedSource, plan: Any) -> None:
    keys = {
        run_key(contract(), pinned, None, plan),
        run_key(contract(), replace(pinned, version=4), None, plan),
        run_key(contract(), replace(pinned, table_id="other"), None, plan),
        run_key(contract(), pinned, "2026-01", plan),
        run_key(contract(), pinned, None, replace(plan, period="2026-01")),
    }
    assert len(keys) == 5
    assert all(len(key) == 32 for key in keys)
    assert run_key(contract(), replace(pinned, uri="/moved"), None, plan) in keys, "a table may move"


def test_a_time_zone_is_part_of_the_key_where_it_says_which_rows_a_month_has(pinned: PinnedSource, plan: Any) -> None:
    def key(zone: str, type_: pa.DataType) -> str:
        declared = contract()
        release = declared.release.model_copy(update={"time_zone": zone})
        named = declared.source.model_copy(update={"period_column": "day"})
        declared = declared.model_copy(update={"release": release, "source": named})
        return run_key(declared, replace(pinned, schema=pa.schema([("day", type_)])), "2026-01", plan)

    zones = ("UTC", "Asia/Kolkata", "America/New_York")
    assert len({key(zone, pa.timestamp("us", "UTC")) for zone in zones}) == 3
    for type_ in (pa.date32(), pa.timestamp("us")):
        assert {key(zone, type_) for zone in zones} == {key("UTC", pa.timestamp("us", "UTC"))}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("contracts", "families"):
        (tmp_path / name).mkdir()
    (tmp_path / "contracts" / "census.yaml").write_text(yaml.safe_dump(DOCUMENT))
    family = PACKAGE_ROOT / "deploy" / "families" / "household-surveys.yaml"
    (tmp_path / "families" / family.name).write_bytes(family.read_bytes())
    return Settings.from_environment({"DPSYNTH_DEPLOY": str(tmp_path), "DPSYNTH_HOME": str(tmp_path / "home")})


def test_a_dataset_is_found_with_its_family(settings: Settings) -> None:
    declared, family = load_dataset(settings, "census")
    assert (declared.dataset, family.family) == ("census", "household-surveys")
    assert declared.source.uri == str(settings.home / "sources" / "census")
    assert load_all(settings) == ([(declared, family)], [])
    assert family_path(settings, declared).is_file()


def test_a_format_that_the_place_contradicts_is_said_by_the_check(settings: Settings) -> None:
    place = settings.home / "people.parquet"
    changed = {**DOCUMENT["source"], "uri": str(place)}
    changed.pop("format", None)
    file = settings.contracts / "census.yaml"
    file.write_text(yaml.safe_dump({**DOCUMENT, "source": changed}))
    with pytest.raises(
        ContractError, match=r"source\.format: delta, .* ends as a parquet file does; accepted: format: p"
    ):
        check_contract(settings, file)
    (place / "_delta_log").mkdir(parents=True)
    assert check_contract(settings, file).dataset == "census"


def test_a_dataset_is_named_by_its_name_or_its_contract(settings: Settings, tmp_path: Path) -> None:
    file = settings.contracts / "census.yaml"
    assert contract_path(settings, "census") == contract_path(settings, str(file)) == file
    assert dataset_named(settings, "census") == dataset_named(settings, str(file)) == "census"
    with pytest.raises(ContractError, match=r"accepted: a dataset's name, a contract there, or another DPSYNTH_DEPLOY"):
        dataset_named(settings, str(tmp_path / "census.yaml"))


def test_an_unknown_dataset_names_the_known_ones(settings: Settings) -> None:
    with pytest.raises(ContractError, match=r"dataset 'consus' has no contract in .*/contracts; accepted: census$"):
        load_dataset(settings, "consus")
    (settings.contracts / "census.yaml").unlink()
    with pytest.raises(ContractError, match="accepted: none yet; `dpsynth contract init` drafts one"):
        load_dataset(settings, "census")
    assert load_all(settings) == ([], [])


def test_a_file_is_named_after_its_dataset(settings: Settings) -> None:
    (settings.contracts / "census.yaml").rename(settings.contracts / "other.yaml")
    with pytest.raises(ContractError, match=r"other\.yaml: dataset: 'census'; accepted: 'other', as the file is named"):
        load_dataset(settings, "other")


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("${DPSYNTH_HOME}/restricted/public", "restricted zone"),
        ("${DPSYNTH_HOME}/vault", "vault"),
        ("${DPSYNTH_HOME}/public/../ledger/public", "ledger"),
        ("${DPSYNTH_HOME}/sources/census/public", "source"),
        ("${DPSYNTH_HOME}", "restricted zone"),
        ("${DPSYNTH_HOME}/restricted/${x-y}census", "restricted zone"),
    ],
)
def test_a_release_lies_apart_from_what_is_restricted(settings: Settings, uri: str, place: str) -> None:
    file = settings.contracts / "census.yaml"
    file.write_text(yaml.safe_dump(DOCUMENT | {"release": DOCUMENT["release"] | {"uri": uri}}))
    for refused in (lambda: load_dataset(settings, "census"), lambda: check_contract(settings, file)):
        with pytest.raises(ContractError, match=rf"release\.uri: .* and the {place} overlap"):
            refused()


@pytest.mark.parametrize("uri", ["${DPSYNTH_HOME}/" + "ü" * 128, "/public" * 600])
def test_a_release_whose_path_is_too_long_is_refused_before_it_is_paid_for(settings: Settings, uri: str) -> None:
    file = settings.contracts / "census.yaml"
    file.write_text(yaml.safe_dump(DOCUMENT | {"release": DOCUMENT["release"] | {"uri": uri}}))
    for refused in (lambda: load_dataset(settings, "census"), lambda: check_contract(settings, file)):
        with pytest.raises(ContractError, match=r"release\.uri: '.*\.\.\.' is too long to be written; accepted: "):
            refused()


def test_a_place_that_no_delta_table_can_have_is_refused_before_anything_is_paid_for(settings: Settings) -> None:
    """The library would panic there, which ends a step without a word."""
    file = settings.contracts / "census.yaml"
    for release in ({"uri": "${DPSYNTH_HOME}/a[1]"}, {"publish": [{"uri": "${DPSYNTH_HOME}/open/a^b"}]}):
        file.write_text(yaml.safe_dump(DOCUMENT | {"release": DOCUMENT["release"] | release}))
        for refused in (lambda: load_dataset(settings, "census"), lambda: check_contract(settings, file)):
            with pytest.raises(ContractError, match=r"uri: .*: the path contains .*; accepted: one without \["):
                refused()
    with pytest.raises(ConfigurationError, match=r"DPSYNTH_HOME: .* the path contains"):
        Settings.from_environment({"DPSYNTH_HOME": str(settings.home / "a|b")})


def test_one_bad_file_stops_no_other_dataset(settings: Settings) -> None:
    (settings.contracts / "other.yaml").write_text("dataset: other\n")
    loaded, faults = load_all(settings)
    assert [contract.dataset for contract, _ in loaded] == ["census"]
    assert len(faults) == 1
    assert "other.yaml: description: missing" in str(faults[0])


def test_a_family_without_a_file(settings: Settings) -> None:
    (settings.families / "household-surveys.yaml").unlink()
    with pytest.raises(
        ContractError, match=r"family: 'household-surveys' has no file in .*families; accepted: none yet; `dp"
    ):
        load_dataset(settings, "census")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "family",
            "others",
            "household-surveys.yaml: family: 'others'; accepted: 'household-surveys', the name of the file",
        ),
        ("unit", "group", "census: privacy.unit: 'user' differs from the family's 'group'; accepted: group"),
        ("adjacency", "zero-out", "privacy.adjacency: 'add-or-remove' differs from the family's 'zero-out'"),
        ("namespace", "email", "privacy.namespace: 'person' differs from the family's 'email'; accepted: email"),
        (
            "cap",
            {"epsilon": 1.0, "delta": 1e-9},
            "exceeds the delta of family household-surveys's account; accepted: ",
        ),
    ],
)
def test_a_family_that_cannot_carry_the_contract(settings: Settings, key: str, value: Any, message: str) -> None:
    path = settings.families / "household-surveys.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {key: value}))
    with pytest.raises(ContractError) as caught:
        load_dataset(settings, "census")
    assert message in str(caught.value)
