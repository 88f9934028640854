"""What the code location declares, and which part of the code may import what."""

import ast
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import dagster as dg
import pytest
import yaml
from inside import inside
from line_cases import PEOPLE, STEPS, run_here, small_deployment, storage_of

import resources as res
from assets import checks
from assets.checks import build_checks
from assets.line import LINE, build_line
from assets.shown import picture, table, together
from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.foundation.storage import StepRecord, Storage
from dpsynth_platform.operations.comparing import HEADER, NOTICE, compared_columns
from dpsynth_platform.operations.forking import PRELOADED, PRELOADED_LATER
from dpsynth_platform.operations.rehearsal import _mock_deployment
from dpsynth_platform.synth.planning import load_dataset

pytestmark = pytest.mark.end_to_end

HEAVY = (
    "torch",
    "presidio_analyzer",
    "presidio_anonymizer",
    "opacus",
    "sklearn",
    "xgboost",
    "spacy",
    "duckdb",
    "pandas",
    "deltalake",
    "dp_accounting",
    "scipy",
    "openlineage",
    "dpsynth_platform.scrub.detection",
    "plotly",
    "nicegui",
    "fastapi",
    "argon2",
)
OURS = ("dpsynth_platform", "assets", "resources", "sensors")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return small_deployment(tmp_path_factory.mktemp("definitions"))


@pytest.fixture(scope="module")
def definitions(deployment):
    return build_definitions(deployment.settings)


@pytest.fixture(scope="module")
def ran(deployment):
    ran = run_here(deployment, accelerator=inside(deployment))
    assert ran.success, ran.failures
    return ran


@pytest.fixture(scope="module")
def specs(definitions):
    return {spec.key.path[-1]: spec for spec in definitions.resolve_all_asset_specs()}


def test_owners_may_have_any_name(deployment):
    """Dagster accepts usual addresses and teams; another name made the whole code location fail."""
    contract, family = load_dataset(deployment.settings, "people")
    named = contract.model_copy(update={"owners": ["root", "a@b.example", "data@office.museums-x", "team:x", " "]})
    (first, *_) = build_line(named, family, "runner")
    (spec,) = first.specs
    assert list(spec.owners) == ["team:root", "a@b.example", "team:data@office.museums-x", "team:x"]


def test_one_asset_a_step(specs):
    assert set(specs) == set(STEPS)
    assert [step.name for step in LINE] == list(STEPS)


@pytest.mark.parametrize("step", STEPS)
def test_an_asset_says_what_it_is(specs, step):
    spec = specs[step]
    assert spec.key == dg.AssetKey(["people", step])
    assert spec.group_name == "people"
    assert list(spec.owners) == ["tests@example.org"]
    assert len(spec.description) > 40
    assert spec.kinds
    assert spec.tags["dpsynth/zone"] in ("restricted", "operator", "public")
    assert (spec.tags["dpsynth/zone"] == "public") == (step == "released")
    assert spec.tags["dpsynth/family"] == "tests"
    assert spec.code_version
    assert spec.metadata["dagster/column_schema"].columns
    assert {key.path[-1] for key in (dep.asset_key for dep in spec.deps)} == {
        item for step_ in LINE if step_.name == step for item in step_.upstream
    }


def test_nothing_is_repeated_by_itself(definitions):
    for asset in definitions.assets:
        assert asset.op.retry_policy is None
    for name in ("people_candidate", "people_release"):
        job = definitions.resolve_job_def(name)
        assert not job.op_retry_policy
        assert "dagster/max_retries" not in job.tags
    instance = yaml.safe_load((PACKAGE_ROOT / "deploy" / "dagster.yaml").read_text())
    assert instance["run_retries"] == {"enabled": False}


def test_only_the_model_takes_the_accelerator(definitions):
    pools = {asset.key.path[-1]: asset.op.pool for asset in definitions.assets}
    assert pools == {step: "accelerator" if step == "model" else None for step in STEPS}


def test_the_candidate_stops_before_the_release(definitions):
    def steps_of(job):
        return {key.path[-1] for key in definitions.resolve_job_def(job).asset_layer.executable_asset_keys}

    assert steps_of("people_candidate") == set(STEPS) - {"released"}
    assert steps_of("people_release") == {"released"}


def test_every_materialization_has_columns_and_tables_a_row_count(deployment, ran):
    assert set(ran.materializations) == set(STEPS) - {"released"}
    tables = {"scrubbed", "canaries", "bounded", "synthetic"}
    for step, metadata in ran.materializations.items():
        assert (metadata.get("dagster/row_count", 0) > 0) == (step in tables), step
        assert metadata["dagster/column_schema"].columns, step
        assert metadata["reused"] is False, step
    assert ran.materializations["synthetic"]["dagster/row_count"] == 200
    columns = ran.materializations["synthetic"]["dagster/column_schema"].columns
    assert {column.name for column in columns} == set(deployment.contract["columns"])
    assert next(column.description for column in columns if column.name == "score") == "0 to 9"
    assert "guarantee" in ran.materializations["model"]
    assert "ledger_entry" in ran.materializations["model"]
    assert "data:image/svg+xml" in ran.materializations["audit"]["plot"]
    assert ran.materializations["quality"]["quality"].startswith("| measure |")
    assert "one-way marginals" in ran.materializations["raw"]["what is measured"]
    numbers = {
        "raw": ("epsilon", "epsilon_left_before", "expected error of a count in one column"),
        "model": ("epsilon", "delta", "epsilon_left_after"),
        "audit": ("epsilon_lower_bound", "highest_bound", "bound accepted", "ROC AUC of measurements"),
        "quality": ("distance of columns, mean", "similarity of pairs", "classifier on synthetic rows, ROC AUC"),
        "synthetic": ("difference from noisy counts, mean", "difference that noise explains, mean"),
    }
    for step, labels in numbers.items():
        for label in labels:
            assert isinstance(ran.materializations[step][label], float), (step, label)
    for plot in ("marginals", "classifiers", "closeness"):
        assert "data:image/svg+xml" in ran.materializations["quality"][plot]


def test_rows_are_shown_beside_noisy_counts(deployment, ran, tmp_path):
    """What is shown follows from the output of `synthetic` alone, wherever that lies."""
    alone = shutil.copytree(storage_of(deployment).require(PEOPLE, "synthetic").directory, tmp_path / "alone")
    columns = compared_columns(alone)
    assert {column.name for column in columns} == {"region", "score", "outcome"}
    parts = table(HEADER, [column.row for column in columns]), *(picture(each.chart, each.in_words) for each in columns)
    assert ran.materializations["synthetic"]["columns beside noisy counts"] == together(NOTICE, *parts).value


def test_no_check_stops_a_run(definitions):
    """The gate is `released`; and what compares with real rows must not decide by itself."""
    checks = {spec.name: spec for check in definitions.asset_checks for spec in check.check_specs}
    assert {name: spec.asset_key.path[-1] for name, spec in checks.items()} == {
        "lineage_clearance": "clearance",
        "ledger_chain": "model",
        "audit_verdict": "audit",
        "quality_report": "quality",
    }
    assert not any(spec.blocking for spec in checks.values())


def quality_check(deployment, **of_family):
    """The check's result on the stored report, for a family with other terms."""
    contract, family = load_dataset(deployment.settings, "people")
    check = next(
        each
        for each in build_checks(contract, family.model_copy(update=of_family))
        if each.check_key.name == "quality_report"
    )
    resources = build_definitions(deployment.settings).resources
    return check(dg.build_asset_check_context(), storage=resources["storage"], ledger=resources["ledger"])


def test_quality_is_a_check_that_warns_at_most(deployment, ran):
    (found,) = (each for each in ran.result.get_asset_check_evaluations() if each.check_name == "quality_report")
    assert found.passed
    assert found.severity == dg.AssetCheckSeverity.WARN
    assert found.description == "Compares all that the contract asks for."
    assert found.metadata["restricted"].text.startswith("Restricted: this report compares with real data")
    for label in ("distance of columns, mean", "distance of pairs, mean", "classifier on synthetic rows, ROC AUC"):
        assert found.metadata[label].value == ran.materializations["quality"][label]


def test_a_report_that_lacks_something_is_a_warning(deployment, ran, monkeypatch):
    record = storage_of(deployment).require(PEOPLE, "quality")
    report = json.loads((record.directory / "report.json").read_text())
    report["utility"]["not_available"] = "too few rows"
    monkeypatch.setattr(checks, "report_for_operator", lambda *_: report)
    found = quality_check(deployment)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert found.description == "Not compared:\n\nclassifiers of outcome: too few rows"


def test_a_report_of_earlier_rows_is_a_warning(deployment, ran, monkeypatch):
    require = Storage.require

    def drawn_anew(self, place, step, **how):
        record = require(self, place, step, **how)
        return replace(record, content_hash="other") if step == "synthetic" else record

    monkeypatch.setattr(Storage, "require", drawn_anew)
    found = quality_check(deployment)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert found.description == "The report is of earlier rows; materialize people/quality."
    assert not found.metadata


def test_where_owners_are_left_out_in_silence_the_check_shows_no_figure(deployment, ran, monkeypatch):
    """Nor does it read the report, so that its result says nothing of the rows either."""
    monkeypatch.setattr(StepRecord, "directory", deployment.root / "not there")
    found = quality_check(deployment, mode="per-owner")
    assert found.passed
    assert not found.metadata
    assert found.description.endswith("It is shown by: dpsynth release show people")


def test_the_only_io_manager_refuses(definitions):
    keys = {asset.key.path[-1]: asset.get_io_manager_key_for_asset_key(asset.key) for asset in definitions.assets}
    assert {step for step, key in keys.items() if key != "line_io_manager"} == {"released"}
    assert keys["released"] == "release_io_manager"
    for name in ("people_candidate", "people_release"):
        resources = definitions.resolve_job_def(name).resource_defs.items()
        managers = {name: item for name, item in resources if isinstance(item, dg.IOManagerDefinition)}
        assert {item.configurable_resource_cls for item in managers.values()} == {res.RefusingIOManager}
        assert managers.keys() <= {"io_manager", "line_io_manager", "release_io_manager"}


def test_no_step_runs_where_encryption_is_required_and_missing(tmp_path):
    deployment = small_deployment(tmp_path)
    settings = replace(deployment.settings, require_encrypted="yes")
    storage = build_definitions(settings).resources["storage"]
    assert (storage.encrypted, set(storage.places)) == ("yes", {"restricted zone", "vault", "ledger"})
    ran = run_here(deployment, steps=["raw"], storage=replace(storage, places={"restricted zone": Path("/proc")}))
    assert "DPSYNTH_REQUIRE_ENCRYPTED=yes, but not all storage is encrypted: restricted zone: " in ran.failures["raw"]
    assert storage_of(deployment).places() == []
    assert not deployment.settings.vault.exists()


def test_a_rehearsal_needs_no_encryption(tmp_path):
    deployment = small_deployment(tmp_path)
    settings = replace(deployment.settings, require_encrypted="yes")
    contract, _ = load_dataset(settings, "people")
    assert _mock_deployment(settings, contract, None, 10, tmp_path / "apart").require_encrypted == "no"


def test_loading_is_light(deployment):
    code = f"import sys, dpsynth_platform.definitions; print(*[name for name in {HEAVY} if name in sys.modules])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | deployment.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == ""


def test_what_steps_find_loaded_is_there():
    """The fork server passes over what it cannot import, without a word."""
    assert [name for name in (*PRELOADED, *PRELOADED_LATER) if find_spec(name) is None] == []


def sources():
    """Every file of ours with its path below the project's root."""
    found = [path for package in OURS for path in (PACKAGE_ROOT / package).rglob("*.py")]
    assert len(found) > 80
    return {path.relative_to(PACKAGE_ROOT).as_posix(): path for path in found}


def test_only_settings_read_the_environment():
    for name, path in sources().items():
        if name == "dpsynth_platform/foundation/settings.py":
            continue
        tree = ast.parse(path.read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not (used | named) & {"environ", "environb", "getenv", "getenvb", "putenv"}, name
