"""Contracts whose rows stay with participants: what is refused, and what a plan makes of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from drawing_cases import COLUMNS as DRAWINGS
from federated_cases import KEYS, NAMES, public
from test_federated_line import CONTRACT, FAMILY

from dpsynth_platform.contracts.family import FamilyBudget, check_family
from dpsynth_platform.contracts.federation import AUDITOR, METHODS_BY_TRUST
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.federation.contracts import described, plan_of_contract
from dpsynth_platform.federation.mechanisms import OF_COUNTS, PLANS, plan_of
from dpsynth_platform.federation.trust import TRUSTS
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import privacy_statement, words_of

FAMILY_OF_GUESTS = FamilyBudget.model_validate(FAMILY)


def with_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """The contract with values at dotted paths."""
    document = copy.deepcopy(CONTRACT)
    for path, value in changes.items():
        part, *keys = path.split(".")
        here = document if not keys else document.setdefault(part, {})
        for key in keys[:-1]:
            here = here[key]
        here[keys[-1] if keys else part] = value
    return document


def contract_of(**changes: Any) -> Any:
    return parse_contract(with_changes(changes), where="test", variables={"DPSYNTH_HOME": "/srv"})


FEDERATION = "source.federation."
LOCAL = {
    FEDERATION + "trust": "local",
    "generate.method": "independent",
    "privacy.adjacency": "replace-one",
}
TEXTS = {
    "columns.note": {"type": "text"},
    "generate": {"method": "aug_pe", "rows": 30, "text": {"column": "note", "evolution": {"about": "short notes"}}},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({FEDERATION + "minimum": 2}, "minimum: 2 of 4 with colluders: 1; accepted: 3 to 4"),
        ({FEDERATION + "minimum": 5}, "minimum: 5 of 4 with colluders: 1; accepted: 3 to 4"),
        ({FEDERATION + "colluders": 4}, "minimum: 3 of 4 with colluders: 4; accepted: 4, with fewer colluders"),
        ({FEDERATION + "colluders": 0}, "colluders: 0; accepted: at least 1"),
        ({FEDERATION + "silos": 5}, "silos: 5; accepted: up to 4, the number of participants"),
        (
            {FEDERATION + "most_records": 100},
            "most_records: 100, so that counts of one cell, or of the",
        ),
        ({FEDERATION + "participants": {"north": 64 * "0", AUDITOR: 64 * "1"}}, "auditor is the coordinator's own"),
        ({FEDERATION + "participants": dict.fromkeys(NAMES, 64 * "0")}, "two have the same key"),
        ({FEDERATION + "participants": dict.fromkeys(NAMES, "key")}, "64 hexadecimal digits, as `dpsynth node key`"),
        (
            {FEDERATION + "trust": "nobody"},
            "source.federation.trust: 'nobody'; accepted: 'distributed', 'central' or 'local'",
        ),
        (
            {**TEXTS, FEDERATION + "trust": "central"},
            "generate.method: 'aug_pe' with source.federation and trust: central; accepted: independent, mst, aim",
        ),
        (
            {FEDERATION + "trust": "local"},
            "generate.method: 'mst' with source.federation and trust: local; accepted: independent",
        ),
        (
            {FEDERATION + "trust": "local", "generate.method": "independent"},
            "privacy.adjacency: add-or-remove with source.federation.trust: local; accepted: replace-one",
        ),
        (
            {**LOCAL, "privacy.max_contributions": 2},
            "privacy.max_contributions: 2 with source.federation.trust: local; accepted: 1",
        ),
        (
            {**LOCAL, FEDERATION + "silos": 2},
            "source.federation.silos: 2 with source.federation.trust: local; accepted: 1",
        ),
        ({"source.format": "delta"}, "federation: with the format delta; accepted: with format: federated"),
        ({"source.uri": "/srv/meals"}, "accepted: federation://NAME with format: federated"),
        ({"source.federation": None}, "federation: missing with the format federated; accepted: participants, minimum"),
        (
            {"generate.method": "auto"},
            "generate.method: 'auto' with source.federation; accepted: independent, mst, aim",
        ),
        ({"generate.method": "privbayes"}, "generate.method: 'privbayes' with source.federation"),
        (
            {"generate.constraints": [{"forbid": {"food": "rice", "drink": "tea"}}]},
            "generate.constraints: declared with source.federation; accepted: none",
        ),
        ({"generate.time_limit": "2m"}, "generate.time_limit: '2m' with source.federation; accepted: none"),
        ({"generate.tune": {"candidates": [{"method": "mst"}, {"method": "aim"}]}}, "generate.tune: declared with"),
        ({"generate.method": "aim", "generate.workload": {"ways": 3}}, "generate.workload: declared with source.fed"),
        (
            {"generate.method": "aim", "generate.public": {"uri": "/srv/public", "why": "a published table"}},
            "generate.public: declared with source.federation; accepted: none",
        ),
        ({"audit.canaries": 300, FEDERATION + "most_records": 500, FEDERATION + "silos": 2}, "accepted: from 600"),
        ({"release.schedule": "0 5 * * *"}, "release.schedule: '0 5 * * *' with source.federation; accepted: none"),
        ({"quality.target": "drink"}, "quality: declared with source.federation; accepted: none: no real row"),
        ({"scrub.locale": "de_DE"}, "scrub: declared with source.federation; accepted: none: participants scrub"),
        ({"audit.model": "separate"}, "audit.model: 'separate' with source.federation; accepted: shared"),
        ({"privacy.on_overlap": "exclude"}, "privacy.on_overlap: 'exclude' with source.federation; accepted: compose"),
        (
            {"privacy.owner_normalization": ["trim"]},
            "privacy.owner_normalization: declared with source.federation; accepted: none",
        ),
        ({"columns.note": {"type": "text", "pii": "drop"}}, "columns.note: text with source.federation; accepted: ig"),
        (
            {**TEXTS, "generate.text.resample": {"by": "labels"}},
            "generate.text.resample: declared with source.federation",
        ),
        (
            {**TEXTS, "columns.note.pii": "mask"},
            "columns.note.pii: 'mask' with source.federation; accepted: none: partic",
        ),
        (
            {**TEXTS, "columns.more": {"type": "text"}},
            "columns.more: text with source.federation; accepted: ignore: true",
        ),
        ({**TEXTS, "generate.training": {"steps": 5}}, "generate.training"),
        ({"columns.my name": {"type": "boolean"}}, "columns: 'my name' with source.federation; accepted: letters"),
        (
            {"columns.drink": {"type": "categorical", "values": "learned"}},
            "columns.drink.values: learned with source.federation; accepted: a list",
        ),
        (
            {"release.cadence": "monthly", "release.start": "2026-01", "source.period_column": "day"},
            "release.cadence: 'monthly' with source.federation; accepted: none",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError) as refused:
        contract_of(**changes)
    assert words in str(refused.value)


def test_owners_that_are_not_known_are_not_charged_one_by_one() -> None:
    with pytest.raises(ContractError, match=r"mode per-owner, and the owners of source.federation are not known here"):
        check_family(contract_of(), FAMILY_OF_GUESTS.model_copy(update={"mode": "per-owner"}))


def test_a_plan_counts_the_auditor_besides_and_protects_a_person_in_several_silos() -> None:
    """The guarantee of plan, contract and statement is for the records of all silos together."""
    found = contract_of(**{FEDERATION + "silos": 2, "privacy.max_contributions": 3})
    sealed = plan_of_contract(found)
    plan = plan_of(sealed.to_json())
    assert plan.terms.participants == sorted([*NAMES, AUDITOR])
    assert (plan.terms.minimum, plan.terms.colluders, plan.terms.silos) == (4, 2, 2)
    assert plan.terms.max_contributions == 3 and plan.guarantee.max_contributions == 6
    assert Guarantee.target(found) == plan.guarantee
    statement = privacy_statement(found, FAMILY_OF_GUESTS, sealed.event, words_of("mst", sealed.event))
    assert statement.guarantee.max_contributions == 6
    assert "the guarantee is for these 6 records together" in statement.unit
    shown = described(found, sealed)
    assert shown["event"].endswith("each with the Skellam noise of at least 2 honest participants")
    assert 0 < shown["expected_error_per_two_way_cell"] < shown["expected_error_per_one_way_cell"]


def test_keys_of_participants_are_no_part_of_a_mechanism() -> None:
    keys = {name: public(KEYS[name]) for name in NAMES} | {"west": 64 * "0"}
    found = contract_of(**{FEDERATION + "participants": keys})
    assert found.mechanism_snapshot() == contract_of().mechanism_snapshot()
    fewer = {name: keys[name] for name in NAMES[:3]}
    assert contract_of(**{FEDERATION + "participants": fewer}).mechanism_snapshot() != found.mechanism_snapshot()


def test_who_adds_the_noise_is_part_of_a_mechanism_unless_each_participant_does() -> None:
    """Contracts without the key keep their digests."""
    plain, said = contract_of(), contract_of(**{FEDERATION + "trust": "distributed"})
    assert plain.snapshot() == said.snapshot() and plain.digest() == said.digest()
    assert "trust" not in plain.snapshot()["source"]["federation"]
    other = contract_of(**{FEDERATION + "trust": "central"})
    assert other.mechanism_snapshot() != plain.mechanism_snapshot()
    assert "trust" not in plan_of_contract(plain).parameters


def test_contracts_and_plans_have_the_same_methods_by_trust() -> None:
    of_counts = {trust: set(kind.METHODS) for kind, trust in OF_COUNTS.items()}
    assert {trust: set(METHODS_BY_TRUST[trust]) for trust in ("central", "local")} == {
        trust: of_counts[trust] for trust in ("central", "local")
    }
    assert set(METHODS_BY_TRUST) == set(of_counts) == set(TRUSTS)
    assert {name for kind in PLANS for name in kind.METHODS} == set(METHODS_BY_TRUST["distributed"])


def test_a_trusted_coordinator_has_the_noise_and_the_words_of_a_central_run() -> None:
    found = contract_of(**{FEDERATION + "trust": "central", FEDERATION + "silos": 2})
    sealed = plan_of_contract(found)
    statement = privacy_statement(found, FAMILY_OF_GUESTS, sealed.event, words_of("mst", sealed.event))
    assert statement.setting.startswith("Central model:") and "no guarantee against it" in statement.setting
    assert [item.epsilon for item in statement.against] == 2 * [statement.guarantee.epsilon]
    assert statement.not_covered[0].startswith("A record against the coordinator")
    said = " ".join(f"{item.assumption} {item.because}" for item in statement.assumptions)
    assert "Gaussian" in said and "Skellam" not in said and "exponential mechanism" in said
    assert "sees each participant's exact counts" in said
    shown = described(found, sealed)
    assert "3 choices of a pair of columns" in shown["event"] and "all drawn by the coordinator" in shown["event"]
    assert shown["expected_error_per_one_way_cell"] > 0 and shown["participants"] == sorted([*NAMES, AUDITOR])


def test_private_reports_hold_against_everybody_with_delta_0() -> None:
    found = contract_of(**LOCAL)
    sealed = plan_of_contract(found)
    family = FAMILY_OF_GUESTS.model_copy(update={"adjacency": "replace-one"})
    statement = privacy_statement(found, family, sealed.event, words_of("independent", sealed.event))
    assert statement.setting.startswith("Local model:")
    assert [(item.epsilon, item.delta) for item in statement.against] == 3 * [(2.0, 0.0)]
    assert statement.guarantee.epsilon <= 2.0 and statement.covered[0].startswith("Private reports (1 of each unit")
    said = " ".join(f"{item.assumption} {item.because}" for item in statement.assumptions)
    assert "no amplification is claimed" in said and "Skellam" not in said and "X25519" not in said
    assert statement.not_covered[0].startswith("How many units a participant has")
    shown = described(found, sealed)
    assert [item["column"] for item in shown["reports"]] == ["drink", "food", "town", "age"]
    assert "one private report of each unit, on one of 4 columns" in shown["event"]


def test_a_statement_of_pictures_says_what_makes_candidates_and_sees_them() -> None:
    """As that of pictures of one place does; the event is the same whatever makes candidates."""

    def pictured(**evolution: Any) -> Any:
        image = {"given": ["kind"], "evolution": {"rounds": 2, "variations": 2, "population": 20} | evolution}
        columns = {"person": {"type": "identifier"}, **DRAWINGS}
        generate = {"method": "image_pe", "image": image, "rows": 20}
        return contract_of(columns=columns, generate=generate)

    event = plan_of_contract(pictured(foundation="shapes")).event
    endpoint = {"url": "https://models.example.org/v1", "model": "painter"}
    table = {"directory": "/srv/pictures", "public": "their authors have published them"}
    for declared, words in (
        ({"foundation": "shapes"}, ["What made the candidates, at the coordinator (foundation: shapes)"]),
        (
            {"foundation": "endpoint", "endpoint": endpoint},
            ["What the endpoint models.example.org keeps", "What the model painter at models.example.org was trained"],
        ),
        (
            {"foundation": "table", "table": table},
            ["The public pictures in pictures, from which", "their authors have published them"],
        ),
    ):
        found = privacy_statement(pictured(**declared), FAMILY_OF_GUESTS, event, words_of("image_pe", event))
        said = " ".join(found.not_covered)
        assert [each for each in words if each not in said] == []
        assert "faces, plates and writing were not removed" in said
        assert "What the audit does not try" in said and "quality report" not in said
