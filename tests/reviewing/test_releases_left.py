"""How many more releases a family's cap pays for: by the ledger's own filter, and in the periods of the cadence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings, embedded_ledger
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.reviewing import forecasts
from dpsynth_platform.synth import planning
from dpsynth_platform.synth.mock import source_schema_of


def deployment(root: Path, cadence: str, start: str) -> tuple[Settings, FamilyBudget]:
    documents = {
        path: yaml.safe_load((PACKAGE_ROOT / "deploy" / path).read_text(encoding="utf-8"))
        for path in ("contracts/visits.yaml", "families/clinic-patients.yaml")
    }
    documents["contracts/visits.yaml"]["release"] |= {"cadence": cadence, "start": start}
    documents["families/clinic-patients.yaml"] |= {"mode": "family"}
    for path, document in documents.items():
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(yaml.safe_dump(document))
    settings = Settings(
        home=root / "home", deploy=root, ledger_url=embedded_ledger(root / "home" / "ledger"), user="Ada"
    )
    return settings, FamilyBudget.model_validate(documents["families/clinic-patients.yaml"])


@pytest.mark.parametrize(
    ("cadence", "start", "period", "noun"),
    [
        ("weekly", "2026-01-05-week", "2026-02-02-week", "weeks"),
        ("monthly", "2026-01", "2026-02", "months"),
        ("quarterly", "2026-01-quarter", "2026-01-quarter", "quarters"),
    ],
)
def test_a_cap_pays_for_as_many_releases_as_the_filter_takes(
    tmp_path: Path, cadence: str, start: str, period: str, noun: str
) -> None:
    settings, family = deployment(tmp_path, cadence, start)
    contract, _ = planning.load_dataset(settings, "visits")
    request = planning.cost_request(planning.plan_release(contract, source_schema_of(contract), period), "Ada")
    sealed = RenyiFilter.seal(family.cap.epsilon, family.cap.delta)
    whole = next(n for n in range(1, 100) if not sealed.fits([(request.curve, request.delta_slack)] * (n + 1)))

    def left() -> tuple[int | None, str]:
        found = forecasts.forecast(settings, "visits", period)
        return found.releases_left, dict(found.rows())["how long it lasts"]

    assert left() == (whole, f"for {whole} {noun}, at one release each, for people who all take part every time")
    ledger = Ledger(settings.ledger_url)
    ledger.open_account(family, ("k1", "k2"))
    assert left()[0] == whole
    spent = ledger.reserve(family.family, "key", request, None, "compose")
    ledger.start(spent.entry_id)
    ledger.complete(spent.entry_id, "5" * 64)
    assert left()[0] == whole - 1
