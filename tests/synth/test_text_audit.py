"""The audit of a language model, end to end in one process: does it see that the noise is missing?

The planted mistake was chosen beforehand: training adds no noise at all, everything else is as planned. Counts of the
columns keep theirs, so that whatever is found was found by the attack on the texts.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from test_dp_finetune import GENERATOR, SOURCE, TEXTS, contract_for, fitted
from text_cases import save_model

from dpsynth_platform.audit.canaries import make_canaries
from dpsynth_platform.audit.text_scoring import reconstructed_texts, score_texts
from dpsynth_platform.audit.verdict import AttackResult, AuditReport, judge
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, RECORD_COLUMN

PEOPLE, CANARIES = 60, 300


def audited(root: Path, *, steps: int) -> tuple[AuditReport, AttackResult]:
    """The report on a model that was trained on few people and half the canaries, and the attack on its texts."""
    declared = contract_for(
        save_model(root / "base"), steps=steps, batch_size=150, adapter="none", learning_rate=0.02, replay_steps=0
    )
    contract = declared.model_copy(
        update={
            "privacy": declared.privacy.model_copy(
                update={
                    "max_contributions": 1,
                    "expected_units": PEOPLE + CANARIES // 2,
                    "guarantee": declared.privacy.guarantee.model_copy(update={"epsilon": 0.5, "delta": 1e-8}),
                }
            ),
            # A correct mechanism fails one audit in a million.
            "audit": declared.audit.model_copy(update={"canaries": CANARIES, "confidence": 1 - 1e-6}),
        }
    )
    plan = GENERATOR.plan(contract, SOURCE, Guarantee.target(contract))
    canaries = make_canaries(contract, SOURCE, CANARIES, 1, None)
    people = pa.table(
        {
            "topic": pa.array(["sport", "trade"] * (PEOPLE // 2)),
            "year": pa.array([2000] * PEOPLE, pa.int32()),
            "body": pa.array([TEXTS["sport"], TEXTS["trade"]] * (PEOPLE // 2)),
            OWNER_COLUMN: pa.array([f"{number:032x}" for number in range(PEOPLE)]),
            RECORD_COLUMN: pa.array([f"{number:032x}" for number in range(PEOPLE)]),
        }
    )
    table = pa.concat_tables([people, canaries.joining.select(people.column_names).cast(people.schema)])
    write_table(root / "bounded", table.schema, table.to_batches())
    fitted(plan, root / "bounded", root / "model")
    # No text is drawn: what the model itself remembers is asked for, and rows without texts tell nothing.
    scored = score_texts(contract, plan, canaries, root / "model", ROWS)
    back = reconstructed_texts(plan, canaries, root / "model")
    report = judge(contract, None, canaries.included, scored, reconstructed=back)
    (attack,) = [item for item in report.attacks if item.name == "text likelihood"]
    return report, attack


ROWS = pa.table(
    {
        "letter": pa.array([0], pa.int64()),
        "reader": pa.array([0], pa.int64()),
        "topic": ["sport"],
        "year": pa.array([2000], pa.int32()),
        "body": ["the team was late"],
    }
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    # The gate and the watch would find the mistake first; they have tests of their own.
    monkeypatch.setattr("dpsynth_platform.training.soundness.refuse_unsound", lambda *_, **__: None)
    monkeypatch.setattr("dpsynth_platform.training.health.Watch.step", lambda *_: None)


def test_training_without_noise_fails_its_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsynth_platform.training.noise.GaussianNoise.add_", lambda self, sums, deviation: sums)
    report, attack = audited(tmp_path, steps=120)
    assert report.verdict == "fail"
    assert attack.epsilon_lower_bound > 0.5
    assert attack.area_under_curve > 0.9


def test_training_with_its_noise_passes(tmp_path: Path) -> None:
    report, attack = audited(tmp_path, steps=30)
    assert report.verdict == "pass"
    exact, near = report.reconstructed
    assert (exact.members, exact.held_out) == (0, 0) and exact.of_members + exact.of_held_out == CANARIES
    assert near.likeness == 0.75
    assert attack.epsilon_lower_bound <= 0.5
