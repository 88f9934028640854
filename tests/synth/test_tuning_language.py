"""Language models among the settings of `generate.tune`: what is sealed, asked for and run."""

import dataclasses
import json

import pytest
from network_cases import SHORT as NETWORK
from network_cases import job
from synth_cases import SCHEMA, contract_with, people, write_bounded
from test_row_language import FIRST, SHORT, base, no_trial, public_table  # noqa: F401  (fixtures)

from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, GrantRefused
from dpsynth_platform.operations.admitting import deployed_base
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.neural import states_network
from dpsynth_platform.synth.neural.language_plan import LanguageParameters
from dpsynth_platform.synth.neural.small_model import write_small_model
from dpsynth_platform.synth.planning import changes, plan_release
from dpsynth_platform.synth.tabular import paid
from dpsynth_platform.synth.tuning.sealing import SealedTuning

MADE = generator("tuned")
ARN = {"method": "arn", "network": NETWORK}
GREAT = {"method": "great", "language": SHORT}
STAGES = {"method": "dp_2stage", "language": {**SHORT, "first": FIRST}}
LIKELIHOOD = {"measure": "likelihood", "share": 0.2}

pytestmark = pytest.mark.usefixtures("no_trial")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(paid, "ROWS", 20)
    monkeypatch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)


def tuned(base, candidates, score=None, **changes):  # noqa: F811
    tune = {"candidates": candidates, **({} if score is None else {"score": score})}
    named = {} if base is None else {"generate__base_model": base}
    return contract_with(generate__tune=tune, **named, **changes)


def tuned_plan(*given, **changes):
    return plan_release(tuned(*given, **changes), SCHEMA, None)


# What is sealed and asked for.


def test_the_base_model_is_sealed_in_each_setting_and_looked_for(base):  # noqa: F811
    plan = tuned_plan(base, [ARN, GREAT, STAGES])
    MADE.check(plan)
    alone = LanguageParameters.of(generator("great").plan(*_alone(base)).parameters)
    sealed = SealedTuning.of(plan)
    assert sealed.base == (alone.base_model, alone.base_digest) and alone.base_digest
    found, digest = deployed_base(plan)
    assert (found.declared, found.digest, digest) == (base, alone.base_digest, alone.base_digest)
    assert plan.describe()["base_model"] == base
    assert (
        deployed_base(
            plan_release(contract_with(generate__tune={"candidates": [ARN, {"method": "mst"}]}), SCHEMA, None)
        )
        is None
    )
    parameters = json.loads(json.dumps(plan.parameters))
    parameters["candidates"][1]["parameters"]["base_digest"] = "0" * 64
    with pytest.raises(GrantRefused, match="several language models"):
        MADE.check(dataclasses.replace(plan, parameters=parameters))


def _alone(base):  # noqa: F811
    from dpsynth_platform.privacy.guarantee import Guarantee

    contract = contract_with(generate__method="great", generate__base_model=base, generate__language=SHORT)
    return contract, SCHEMA, Guarantee.target(contract)


def test_the_public_table_of_a_setting_is_sealed_and_compared(base, tmp_path):  # noqa: F811
    public = public_table(tmp_path / "public")
    counted = {"method": "dp_2stage", "language": {**SHORT, "first": FIRST | {"rows": "counted"}}}
    plan = tuned_plan(base, [{"method": "aim"}, STAGES, counted], generate__public=public)
    assert MADE.check_public(plan) == (tmp_path / "public/rows.parquet",)
    counts, learns, other = SealedTuning.of(plan).plans(plan)
    assert "public" not in counts.parameters and learns.parameters["first"]["public"] is not None
    assert other.parameters["first"]["public"] is None
    public_table(tmp_path / "public", rows=44)
    with pytest.raises(ConfigurationError):
        MADE.check_public(plan)


def test_clearance_asks_for_the_same_bases_as_of_one_method(base, tmp_path):  # noqa: F811
    public = public_table(tmp_path / "public")
    one = contract_with(
        generate__method="dp_2stage",
        generate__base_model=base,
        generate__public=public,
        generate__language={**SHORT, "first": FIRST},
    )
    several = tuned(base, [ARN, STAGES], generate__public=public)
    assert several.bases == one.bases and {each.kind for each in one.bases} == {"table", "checkpoint"}
    assert several.generate.checkpoint == one.generate.checkpoint == base
    assert tuned(None, [ARN, GREAT]).generate.checkpoint == "smollm2-135m"
    assert tuned(None, [ARN, {"method": "mst"}]).generate.checkpoint is None


def test_what_decides_a_language_model_makes_another_run(base, tmp_path):  # noqa: F811
    plain = tuned(base, [ARN, GREAT])
    assert changes(plain, tuned(base, [ARN, GREAT], quality={"target": "member"})) == ["quality.target"]
    assert changes(plain, tuned("/elsewhere", [ARN, GREAT])) == ["base_model"]
    other = {"method": "great", "language": {**SHORT, "value_weight": 0.5}}
    assert changes(plain, tuned(base, [ARN, other])) == ["generate.tune.candidates"]
    without = [ARN, {"method": "mst"}]
    assert changes(tuned(None, without), tuned(None, without, quality={"target": "member"})) == []


def test_candidates_have_the_defaults_of_their_method(base):  # noqa: F811
    candidates = tuned(base, [{"method": "great"}, {"method": "dp_2stage"}]).snapshot()["generate"]["tune"][
        "candidates"
    ]
    great, stages = (candidate["language"] for candidate in candidates)
    assert (great["fixed_order"], great["first"]) == (0.0, None)
    assert (stages["fixed_order"], stages["first"]["rows"]) == (1.0, "counted")


REFUSED = {
    "a base that nobody starts from": ([ARN, {"method": "mst"}], {"generate__base_model": "x"}, "generate.base_model"),
    "keys of another method": (
        [ARN, {"method": "tbart", "language": {}}],
        {},
        r"candidates\.1\.language: is for method",
    ),
    "a first stage of great": (
        [ARN, {"method": "great", "language": {"first": {}}}],
        {},
        r"tune\.candidates\.1\.language\.first: declared with method 'great'",
    ),
    "rows of no table": (
        [ARN, {"method": "dp_2stage", "language": {"first": {"rows": "public"}}}],
        {},
        r"candidates\.1\.language\.first\.rows: 'public' without",
    ),
    "a table that nobody learns": (
        [ARN, GREAT],
        {"generate__public": {"uri": "/a.parquet", "why": "made up for tests"}},
        r"generate\.public: with tune, and no candidate",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    candidates, more, message = REFUSED[name]
    with pytest.raises(ContractError, match=message):
        tuned(None, candidates, **more)


# Runs.


@pytest.mark.parametrize("score", [None, LIKELIHOOD])
@pytest.mark.parametrize("kept", [GREAT, STAGES])
def test_a_kept_language_model_draws_rows(base, tmp_path, monkeypatch, score, kept):  # noqa: F811
    plan, bounded = tuned_plan(base, [ARN, kept], score), write_bounded(people(300), tmp_path / "table")
    scores = iter([0, 1])
    monkeypatch.setattr(paid, "score_of", lambda directory: next(scores))
    MADE.run(run := job(plan, bounded, tmp_path / "model"))
    assert MADE.kept_plan(plan, run.directory).method == kept["method"]
    rows = MADE.draw(run.directory, 20, given={"city": "Bern"}).table()
    assert rows.column("city").to_pylist() == ["Bern"] * 20
    MADE.estimate(plan, run.directory)


def test_a_small_model_of_the_table_is_a_candidate(tmp_path):
    contract = contract_with()
    write_small_model(tmp_path / "small", contract.columns, 16, 1)
    plan = tuned_plan(str(tmp_path / "small"), [ARN, GREAT], LIKELIHOOD)
    MADE.run(run := job(plan, write_bounded(people(300), tmp_path / "table"), tmp_path / "model"))
    assert MADE.sample(run.directory, 10).num_rows == 10
