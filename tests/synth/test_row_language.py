"""Language models that write rows: gradients, the first stage, interruptions, drawing, and a small model."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from network_cases import job, moved_by_an_owner
from row_cases import tokens
from synth_cases import SCHEMA, contract_with, people, write_bounded
from test_table_networks import fix
from text_cases import tiny_gpt2, tiny_llama, tiny_t5, tiny_tokenizer

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.contracts.methods import LANGUAGE_METHODS
from dpsynth_platform.contracts.network_training import RowLanguage, TableNetwork
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.neural import language_generator, language_plan, row_training
from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint
from dpsynth_platform.synth.neural.language_plan import FirstSteps, LanguageParameters
from dpsynth_platform.synth.neural.network_generator import NETWORK
from dpsynth_platform.synth.neural.row_reading import LanguageRows
from dpsynth_platform.synth.neural.row_training import LanguageBatches, RowSums, learn_form, refuse_unsound_rows
from dpsynth_platform.synth.neural.small_model import write_small_model
from dpsynth_platform.synth.planning import changes
from dpsynth_platform.synth.tabular.model import load_model, log_likelihood
from dpsynth_platform.synth.text import trained
from dpsynth_platform.synth.text.base_models import base_model, load
from dpsynth_platform.training import hooked
from dpsynth_platform.training.plan import Adapter, TrainingPlan
from dpsynth_platform.training.unit_probe import faults_of_unit_sums, unit_sums

CPU = torch.device("cpu")
PROGRAM = Path(__file__).with_name("killed_network.py")
PLAN = TrainingPlan(40, 8, 1, 1.0, clipping="automatic")
SHORT = {"steps": 6, "replay_steps": 4, "batch_size": 40, "adapter": "none"}
FIRST = {"steps": 4, "batch_size": 8}


@pytest.fixture
def the_same_each_time(monkeypatch):
    fix(monkeypatch)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    place = tmp_path_factory.mktemp("base")
    tiny_llama(positions=256).save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return str(place)


@pytest.fixture
def no_trial(monkeypatch):
    """Other tests have the gate."""
    monkeypatch.setattr(language_generator, "_try", lambda *given: None)


def contract_of(base, method="dp_2stage", language=None, **changes):
    own = {**SHORT, **({"first": FIRST} if method == "dp_2stage" else {}), **(language or {})}
    return contract_with(generate__method=method, generate__base_model=base, generate__language=own, **changes)


def plan_of(base, method="dp_2stage", language=None, schema=SCHEMA, **changes):
    contract = contract_of(base, method, language, **changes)
    return generator(method).plan(contract, schema, Guarantee.target(contract))


# Gradients and units.


def batches(value_weight=0.65, fixed_order=0.5, number_distance=0.0):
    parameters = {"fixed_order": fixed_order, "value_weight": value_weight, "evidence": ()}
    parameters["number_distance"] = number_distance
    return LanguageBatches(tokens(), SimpleNamespace(**parameters), CPU, [[0, 1, 2, None], [None] * 3])


def test_the_loss_is_that_of_the_paper():
    """DP-2Stage, equation 6, by an explicit loop over the tokens of a row."""
    made, model = batches(), tiny_llama()
    rows = made.arranged(torch.tensor([[1, 0]]), torch.tensor([[0, 1]]))
    scores = model(input_ids=rows["input_ids"]).logits[0].log_softmax(1).detach()
    name = [len(column.name) for column in tokens().columns]
    value = [tokens().columns[0].values[1], tokens().columns[1].values[0]]
    kinds = [None]
    for length, tokens_of in zip(name, value, strict=True):
        kinds += [0] * length + [1] * (len(tokens_of) - 1) + [0]
    expected = 0.0
    for place, kind in enumerate(kinds[1:], 1):
        token = rows["input_ids"][0, place]
        expected -= (0.65 if kind else 0.35) * scores[place - 1, token].item() / 2
    assert made.losses(model, rows)[0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", [tiny_llama, tiny_gpt2])
def test_the_gate_accepts_models_and_finds_planted_mistakes(model, monkeypatch):
    made, network = batches(), model()
    refuse_unsound_rows(network, PLAN, made, len(tiny_tokenizer()), tokens().longest)

    def tried(losses=made.losses, sums=RowSums):
        return faults_of_unit_sums(network, unit_sums(losses, sums), made.losses, made.made_up, PLAN)

    assert tried() == []

    class Unweighted(RowSums):
        def _backward(self, batch, weights):
            super()._backward({name: part for name, part in batch.items() if name != "token_weights"}, weights)

    class ByOthers(RowSums):
        def _backward(self, batch, weights):
            shares = batch["token_weights"] * batch["token_weights"].mean() * 20
            super()._backward({**batch, "token_weights": shares}, weights)

    for wrong in (Unweighted, ByOthers):
        assert tried(sums=wrong)


@pytest.mark.parametrize("number_distance", [0.0, 0.5])
@pytest.mark.parametrize("sampled", ["record", "user"])
def test_an_owner_with_four_records_moves_the_sum_by_the_clipping_norm(sampled, number_distance, monkeypatch):
    """Or by four times as much where records are sampled; b rows of one owner, weighted loss, orders at random."""
    norm = 1e-4
    plan = TrainingPlan(40, 8, 1, 1.0, max_contributions=4, sampled=sampled, clipping_norm=norm, clipping="automatic")
    moved, units = moved_by_an_owner(RowSums, tiny_llama(), plan, batches(number_distance=number_distance))
    assert units == (4 if sampled == "record" else 1)
    bound = norm * units
    assert 0.2 * bound < moved() <= bound * (1 + 1e-5)
    monkeypatch.setattr(hooked, "clipping_coefficients", lambda norms, plan: torch.ones_like(norms).float())
    assert moved() > bound  # what clips nothing is found


# What it costs.


@pytest.mark.parametrize("method", LANGUAGE_METHODS)
def test_the_event_is_what_counts_and_training_cost(base, method, no_trial):
    """By dp_accounting alone, from the plan's numbers; the first stage costs nothing."""
    guarantee = {"epsilon": 1.0, "delta": 1e-5}
    plan = plan_of(base, method, privacy__max_contributions=1, privacy__guarantee=guarantee)
    parameters = LanguageParameters.of(plan.parameters)
    step = dp_event.PoissonSampledDpEvent(40 / 2000, dp_event.GaussianDpEvent(parameters.training.noise_multiplier))
    counts = dp_event.GaussianDpEvent(parameters.sigma_total)
    found = PLDAccountant().compose(counts).compose(step, 10).get_epsilon(1e-5)
    assert 0.97 < found <= 1.0 + 1e-3
    generator(method).check(plan)
    weaker = plan.parameters["training"] | {"noise_multiplier": 0.5}
    with pytest.raises(GrantRefused):
        generator(method).check(dataclasses.replace(plan, parameters=plan.parameters | {"training": weaker}))
    described = plan.describe()
    assert ("learns the form of rows" in described["event"]) == (method == "dp_2stage")
    rows = 6 * 40 + (4 * 8 if method == "dp_2stage" else 0)
    of_token = 35e-6 + 0.075e-9 * parameters.base_bytes / 2
    expected = 0.05 + rows * (parameters.most_tokens // 2) * of_token
    assert described["predicted_training_seconds"] == pytest.approx(expected)


def test_what_cannot_be_written_or_trained_is_refused(base, tmp_path, no_trial):
    tiny_t5().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    for changed, words in (
        ({"privacy__weighting": "owners"}, r"generate\.language\.sampled"),
        (
            {
                "columns__city": {"type": "categorical", "values": [f"{n} abcdefghijkl" * 9 for n in range(3)]},
                "columns__town": {"type": "categorical", "values": "learned", "most": 5},
                "columns__land": {"type": "categorical", "values": "learned", "most": 5},
                "columns__isle": {"type": "categorical", "values": "learned", "most": 5},
                "columns__lake": {"type": "categorical", "values": "learned", "most": 5},
                "columns__hill": {"type": "categorical", "values": "learned", "most": 5},
                "columns__dale": {"type": "categorical", "values": "learned", "most": 5},
            },
            r"a row has up to \d+ tokens",
        ),
    ):
        with pytest.raises(ContractError, match=words):
            plan_of(base, schema=SCHEMA, **changed)
    with pytest.raises(ConfigurationError, match="encoder-decoder"):
        plan_of(str(tmp_path))


# The first stage.


def test_the_first_stage_reads_no_record_and_teaches_the_form(the_same_each_time):
    """After it, names and commas are nearly certain, and values as likely as the rows that it saw."""
    model, made = tiny_llama(seed=3), tokens()
    shares = [torch.tensor([0.7, 0.1, 0.1, 0.1]), torch.tensor([0.1, 0.1, 0.8])]
    first = FirstSteps("counted", 150, 32, 5e-3)
    learn_form(model, made, row_training.drawn_of(shares), first, CPU, lambda *given: None)
    joint = ColumnwiseJoint(LanguageRows(model.eval(), made), [share.numpy() for share in shares], (0, 1))
    every = np.array(list(itertools.product(range(4), range(3))), dtype=np.int32)
    expected = np.log([float(shares[0][a] * shares[1][b]) for a, b in every])
    assert np.abs(joint.log_likelihood(every) - expected).max() < 0.7
    rows = made.rows(torch.tensor([[0, 2]]), torch.tensor([[0, 1]]), 0.0)
    assert row_training.losses(model, rows)[0].item() < 0.5


def test_a_first_stage_that_diverges_stops_before_steps_are_spent(monkeypatch):
    """A gradient that is not finite counts as zero in the second stage, which would train nothing."""
    monkeypatch.setattr(
        row_training, "losses", lambda model, rows: model(rows["input_ids"]).logits.sum((1, 2)) * np.nan
    )
    states = row_training.drawn_of([torch.ones(size) for size in tokens().sizes])
    with pytest.raises(MechanismFailed, match="not finite"):
        learn_form(tiny_llama(), tokens(), states, FirstSteps("uniform", 1, 2, 0.1), CPU, lambda *given: None)


def public_table(place, rows=40):
    table = pa.table(
        {
            "word, other": pa.array(["a, b", "", None, "c"] * (rows // 4)).dictionary_encode(),
            "number": pa.array(range(rows)),
            "pair": pa.array([{"x": 1}] * rows),
            "tags": pa.array([["a"]] * rows),
            "bytes": pa.array([b"a"] * rows),
            "ids": pa.array([b"\xff\x00"] * rows, pa.binary(2)),
        }
    )
    place.mkdir(exist_ok=True)
    pq.write_table(table, place / "rows.parquet")
    return {"uri": str(place / "rows.parquet"), "why": "made up for a test"}


def test_a_public_table_of_other_columns_is_read_as_words(base, tmp_path, no_trial):
    public = public_table(tmp_path / "public")
    plan = plan_of(base, language={"first": FIRST | {"rows": "public"}}, generate__public=public)
    sealed = LanguageParameters.of(plan.parameters).first.public
    assert (sealed.rows, sealed.columns) == (40, 3)
    names, values, codes = sealed.read()
    assert names == ["word, other", "number", "pair.x"] and codes.shape == (40, 3)
    assert [values[0][code] for code in codes[:4, 0]] == ["a b", "empty", "missing", "c"]
    assert generator("dp_2stage").check_public(plan) == (tmp_path / "public/rows.parquet",)
    assert "learns the form of rows from 40 rows of a public table" in plan.describe()["event"]
    public_table(tmp_path / "public", rows=44)
    with pytest.raises(ConfigurationError, match="its rows are not those of the plan"):
        generator("dp_2stage").check_public(plan)
    contract = contract_of(base, generate__public=public)
    assert contract.generate.language.first.rows == "public", "the default beside such a table"
    assert [found.kind for found in contract.bases] == ["table", "checkpoint"]


def test_a_public_table_with_longer_rows_than_the_model_reads_is_refused(base, tmp_path, no_trial):
    """Before anything is spent: its first stage would fail each time, after the counts are paid for."""
    rows = {f"column {number}": ["abcdefgh" * 9, "a"] for number in range(8)}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    public = {"uri": str(tmp_path / "rows.parquet"), "why": "made up for a test"}
    with pytest.raises(ContractError, match=r"generate\.public: its longest row has \d+ tokens"):
        plan_of(base, language={"first": FIRST | {"rows": "public"}}, generate__public=public)


@pytest.mark.parametrize("fault", ["no table", "one column", "no rows", "csv in another dialect"])
def test_a_public_table_that_cannot_be_used_is_refused(base, tmp_path, no_trial, fault):
    place = tmp_path / "rows.parquet"
    if fault == "one column":
        pq.write_table(pa.table({"a": [1, 2]}), place)
    elif fault == "no rows":
        pq.write_table(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())}), place)
    elif fault == "csv in another dialect":
        place = tmp_path / "rows.csv"
        place.write_text("only\n1\n")
    with pytest.raises(ConfigurationError, match=r"public table .*rows\.(parquet|csv)"):
        plan_of(
            base,
            language={"first": FIRST | {"rows": "public"}},
            generate__public={"uri": str(place), "why": "for a test"},
        )


@pytest.mark.parametrize(
    ("method", "first", "public", "words"),
    [
        ("great", FIRST, False, r"language.first: declared with method 'great'"),
        ("dp_2stage", FIRST | {"rows": "counted"}, True, r"first.rows: 'counted' beside generate.public"),
        ("dp_2stage", FIRST | {"rows": "public"}, False, r"first.rows: 'public' without generate.public"),
    ],
)
def test_contracts_declare_a_first_stage_that_the_method_has(base, tmp_path, method, first, public, words):
    changes = {"generate__public": public_table(tmp_path)} if public else {}
    with pytest.raises(ContractError, match=words):
        contract_of(base, method, {"first": first}, **changes)


def test_every_key_of_networks_and_language_models_makes_another_mechanism():
    """Otherwise a run with other steps or another share would take the earlier plan, and its paid model."""
    other = {
        "sampled": "owners", "steps": 7, "batch_size": 9, "clipping_norm": 0.5, "learning_rate": 0.01, "width": 3,
        "replay_steps": 3, "columns_share": 0.2, "fixed_order": 0.5, "value_weight": 0.5, "adapter": "none",
        "first": {"steps": 5}, "number_distance": 0.5,
    }  # fmt: skip
    for method, part, model in (("arn", "network", TableNetwork), ("dp_2stage", "language", RowLanguage)):
        plain = contract_with(generate__method=method).mechanism_snapshot()
        for name in model.model_fields:
            changed = contract_with(**{"generate__method": method, f"generate__{part}": {name: other[name]}})
            assert changed.mechanism_snapshot() != plain, name


@pytest.mark.parametrize(("method", "same"), [("great", False), ("dp_2stage", False), ("arn", True)])
def test_another_target_is_another_mechanism_where_it_decides_the_order_of_columns(method, same):
    """Otherwise a line with another target would keep the earlier plan, and its order."""
    plain = contract_with(generate__method=method)
    aimed = contract_with(generate__method=method, quality={"target": "member"})
    assert (plain.mechanism_snapshot() == aimed.mechanism_snapshot()) is same
    assert changes(plain, aimed) == ([] if same else ["quality.target"])


# Interruptions.


@pytest.mark.parametrize(
    ("method", "at", "executed"), [("dp_2stage", "counts", [6]), ("dp_2stage", "form", [6]), ("great", 3, [7, 8, 9])]
)
def test_killed_it_counts_no_second_time_and_continues_within_what_is_paid_for(
    base, tmp_path, method, at, executed, no_trial
):
    """After the counts, within the first stage, and within the third step of the second."""
    plan, bounded = plan_of(base, method), write_bounded(people(2000), tmp_path / "table")
    (tmp_path / "plan.json").write_text(plan.to_json())
    directory = tmp_path / "model"
    directory.mkdir()
    command = [sys.executable, str(PROGRAM), str(tmp_path / "plan.json"), str(bounded), str(directory), str(at)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, timeout=300, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    made = generator(method)
    assert made.can_resume(directory) and not made.is_complete(directory)
    counts = (directory / "measurements.jsonl").read_bytes()
    made.run(job(plan, bounded, directory, resume=True))
    assert (directory / "measurements.jsonl").read_bytes() == counts
    assert json.loads((directory / NETWORK / "trained.json").read_text())["executed_steps"] in executed
    assert sorted(path.name for path in (directory / NETWORK).iterdir()) == ["trained.json", "weights.safetensors"]
    assert made.sample(directory, 30).num_rows == 30


def test_a_worker_takes_the_base_model_that_its_job_describes(base, tmp_path, no_trial, monkeypatch):
    """It knows neither the deployment's converted models nor its hub, when it trains, and draws to measure."""
    plan, found, drawn = plan_of(base), trained.deployed(base), []
    (tmp_path / "base.json").write_text(json.dumps(dataclasses.asdict(found) | {"directory": base}))
    run = job(plan, write_bounded(people(200), tmp_path / "table"), tmp_path / "model")
    described = dataclasses.replace(run.checkpoints, base_model=tmp_path / "base.json")

    def nowhere(*given, **how):
        raise ConfigurationError("not on this machine")

    with monkeypatch.context() as patch:
        patch.setattr(trained, "base_model", nowhere)
        measured = lambda self, run: drawn.append(self.sample(run.directory, 20))  # noqa: E731
        patch.setattr(language_generator.LanguageGenerator, "measure_quality", measured)
        generator("dp_2stage").run(dataclasses.replace(run, checkpoints=described))
        with pytest.raises(ConfigurationError, match="not on this machine"):
            trained.deployed(base)
    assert [table.num_rows for table in drawn] == [20]


def test_another_base_model_is_refused_before_it_is_trained(base, tmp_path, no_trial):
    tiny_llama(seed=8, positions=256).save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    plan = plan_of(base)
    parameters = plan.parameters | {"base_model": str(tmp_path / "other")}
    changed = dataclasses.replace(plan, parameters=parameters)
    run = job(changed, write_bounded(people(50), tmp_path / "table"), tmp_path / "model")
    with pytest.raises(ConfigurationError, match="is not the one that the plan was made for"):
        generator("dp_2stage").run(run)


@pytest.mark.parametrize("sampled", ["records", "owners"])
def test_it_trains_on_no_record(base, tmp_path, sampled, no_trial):
    bounded = write_bounded(people(1).slice(0, 0), tmp_path / "table")
    plan = plan_of(base, language={"sampled": sampled})
    generator("dp_2stage").run(job(plan, bounded, tmp_path / "model"))
    assert generator("dp_2stage").is_complete(tmp_path / "model")
    assert generator("dp_2stage").sample(tmp_path / "model", 20).num_rows == 20


def test_columns_of_one_state_stop_nothing(base, tmp_path, no_trial, the_same_each_time):
    """Noise may merge all values of columns; with one column left there is nothing to learn."""
    guarantee = {"epsilon": 0.01, "delta": 1e-5}
    plan = plan_of(base, "great", privacy__guarantee=guarantee)
    run = job(plan, write_bounded(people(60), tmp_path / "table"), tmp_path / "model")
    generator("great").run(run)
    assert generator("great").sample(run.directory, 30).num_rows == 30


# What it draws.


@pytest.fixture(scope="module", params=["full", "adapter"])
def fitted(tmp_path_factory, request, base):
    place = tmp_path_factory.mktemp(request.param)
    language = {"steps": 30, "replay_steps": 0, "batch_size": 300, "learning_rate": 0.01, "first": {"steps": 100}}
    if request.param == "adapter":
        language |= {"adapter": {"rank": 8, "alpha": 16}, "steps": 8, "first": {"steps": 20}}
    with pytest.MonkeyPatch.context() as patch:
        fix(patch)
        torch.manual_seed(5)  # an adapter's first weights
        patch.setattr(language_generator, "_try", lambda *given: None)
        plan = plan_of(base, language=language, privacy__guarantee={"epsilon": 9.0, "delta": 1e-5})
        run = job(plan, write_bounded(people(2000), place / "table"), place / "model")
        generator("dp_2stage").run(run)
    return run.directory


def test_rows_have_given_values_constraints_and_missing_values(fitted, the_same_each_time):
    made = generator("dp_2stage")
    drawn = made.draw(fitted, 300, given={"city": "Bern"}).table()
    assert set(drawn["city"].to_pylist()) == {"Bern"}
    rule = Constraint.model_validate({"forbid": {"city": "Bern", "member": False}})
    drawn = made.draw(fitted, 1000, constraints=[rule]).table()
    assert ("Bern", False) not in set(zip(drawn["city"].to_pylist(), drawn["member"].to_pylist(), strict=True))
    assert 20 < drawn["city"].null_count < 100  # 5% of 1000, from noisy counts
    assert drawn["score"].null_count == 0


def test_what_it_learned_is_in_its_rows_and_its_likelihood(fitted, the_same_each_time):
    """Members are of Bern: without learning it, half of its rows would be members'. An adapter learns too slowly."""
    drawn = generator("dp_2stage").draw(fitted, 1500).table().to_pylist()
    members = [row["member"] for row in drawn if row["city"] == "Bern" and row["member"] is not None]
    model, near = load_model(fitted), people(200, seed=5)
    place = near.schema.get_field_index("member")
    far = near.set_column(place, "member", pc.invert(near["member"]))
    found = [log_likelihood(model, table) for table in (near, far)]
    assert np.isfinite(found).all() and len(members) > 200
    if "full" in str(fitted):
        assert sum(members) > 0.7 * len(members)
        assert found[0].mean() > found[1].mean() + 0.5


# A small model of a table's own words.


def test_a_small_model_writes_declared_words_as_one_token_and_all_else(tmp_path, no_trial):
    columns = contract_with().columns
    weights = write_small_model(tmp_path / "small", columns)
    model, tokenizer = load(base_model(str(tmp_path / "small"), tmp_path))
    assert weights == sum(value.numel() for value in model.parameters()) < 100_000
    for text in (" city is", " Bern", " member is"):
        assert len(tokenizer(text)["input_ids"]) == 1
    assert tokenizer.decode(tokenizer(" \u65e5 12, x")["input_ids"]) == " \u65e5 12, x"
    contract = contract_with(generate__method="dp_2stage", generate__base_model=str(tmp_path / "small"))
    sealed = LanguageParameters.of(generator("dp_2stage").plan(contract, SCHEMA, Guarantee.target(contract)).parameters)
    assert (sealed.training.adapter, sealed.training.learning_rate, sealed.weights) == (None, 0.01, weights)
    other = write_small_model(tmp_path / "other", columns)
    assert other == weights and base_model(str(tmp_path / "other"), tmp_path).digest != sealed.base_digest


@pytest.mark.parametrize(("width", "layers"), [(12, 3), (0, 3), (32, 0)])
def test_a_small_model_of_no_size_is_refused(tmp_path, width, layers):
    with pytest.raises(ConfigurationError, match="accepted: a width of 8 or a multiple of it, and 1 layer or more"):
        write_small_model(tmp_path / "small", contract_with().columns, width, layers)
    (tmp_path / "small").mkdir()
    with pytest.raises(ConfigurationError, match="exists; accepted: the name of a new directory"):
        write_small_model(tmp_path / "small", contract_with().columns)


def test_a_large_model_gets_an_adapter_by_default(base, tmp_path, no_trial, monkeypatch):
    monkeypatch.setattr(language_plan, "SMALL_BYTES", 10)
    contract = contract_with(generate__method="great", generate__base_model=base)
    sealed = LanguageParameters.of(generator("great").plan(contract, SCHEMA, Guarantee.target(contract)).parameters)
    assert (sealed.training.adapter, sealed.training.learning_rate) == (Adapter(), 0.002)
