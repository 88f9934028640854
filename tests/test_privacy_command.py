import json

import pytest
import typer
from typer.testing import CliRunner

from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.privacy_command import privacy_app

CTCL = ["dp-sgd", "--records", "75316", "--batch-size", "4096", "--delta", "1.18e-6"]
STEPS = ["--steps", "2000"]


@pytest.fixture
def use(capfd):
    def call(*arguments):
        result = CliRunner().invoke(privacy_app, list(map(str, arguments)))
        text = capfd.readouterr().out + result.stdout
        return result.exit_code, text

    return call


def answer(used):
    status, text = used
    assert status == 0, text
    return json.loads(text)


def refusal(used):
    status, text = used
    assert status == 1
    return json.loads(text)["error"]


@pytest.mark.parametrize(("more", "noise"), [((), 3.01), (("--histogram-noise", 10), 3.03)])
def test_calibrates_ctcl(use, more, noise):
    found = answer(use("calibrate", *CTCL, *STEPS, "--epsilon", 4, *more, "--json"))
    assert found["noise"] == pytest.approx(noise, rel=0.01)
    assert found["epsilon"] <= 4 and found["tier"] == "reasonable"
    assert epsilon(event_from_json(found["event"]), 1.18e-6).epsilon == found["epsilon"]
    spent = answer(use("epsilon", *CTCL, *STEPS, "--noise", found["noise"], *more, "--json"))
    assert spent["epsilon"] == found["epsilon"]


def test_calibrates_steps_and_contributions(use):
    steps = answer(use("calibrate", *CTCL, "--noise", 3.01, "--epsilon", 4, "--json"))
    assert (steps["for"], steps["steps"]) == ("steps", pytest.approx(2000, rel=0.01))
    bound = answer(use("calibrate", "histogram", "--noise", 10, "--for", "contributions", "--epsilon", 1.3,
                       "--delta", 1e-6, "--json"))  # fmt: skip
    assert bound["contributions"] == 3 and 1.1 < bound["epsilon"] <= 1.3
    users = answer(use("calibrate", *CTCL, *STEPS, "--contributions", 9, "--sampled", "user", "--epsilon", 4, "--json"))
    assert users["noise"] == pytest.approx(3.01, rel=0.01)


def test_steps_and_bound_of_a_split_budget(use):
    split = ["--histogram-noise", 40, "--epsilon", 4, "--json"]
    steps = answer(use("calibrate", *CTCL, "--noise", 3.03, *split))
    assert (steps["for"], steps["steps"]) == ("steps", pytest.approx(2030, rel=0.02))
    bound = answer(use("calibrate", *CTCL, *STEPS, "--noise", 12, *split, "--for", "contributions"))
    assert bound["contributions"] == 4 and bound["epsilon"] <= 4
    kinds = [part["kind"] for part in bound["event"]["events"]]
    assert kinds == ["discrete-gaussian-counts", "repeated"]


def test_records_with_several_owners_cost_as_replacement(use):
    small = ["dp-sgd", "--records", 10_000, "--batch-size", 100, "--steps", 50, "--noise", 4, "--contributions", 2]
    fixed, replaced = (
        answer(use("epsilon", *small, "--delta", 1e-6, "--adjacency", name, "--json"))
        for name in ("fixed-graph", "replace-one")
    )
    assert fixed["epsilon"] == replaced["epsilon"] > 0
    assert fixed["event"]["event"]["adjacency"] == "fixed-graph"
    assert use("epsilon", *small, "--delta", 1e-6, "--adjacency", "node")[0] == 2


def test_says_what_was_found_and_for_whom(use):
    status, text = use("calibrate", *CTCL, *STEPS, "--epsilon", 4)
    assert status == 0
    assert "noise multiplier (times the clipping norm): 3.00" in text
    assert "a reasonable guarantee\nfor one unit of at most 1 record, add-or-remove" in text
    _, text = use("calibrate", "histogram", "--epsilon", 1, "--delta", 1e-6, "--contributions", 3)
    assert "noise (standard deviation, in records): " in text and "at most 3 records" in text
    _, text = use("calibrate", "mst", "--columns", 3, "--epsilon", 1, "--delta", 1e-6)
    assert "noise: sigma_one " in text


def test_a_delta_that_allows_to_show_somebody_is_noted(use):
    large = ["epsilon", "dp-sgd", "--records", 1000, "--batch-size", 10, "--steps", 1, "--noise", 1, "--delta", 0.01]
    assert "is not below 1/1000" in answer(use(*large, "--json"))["notes"][0]
    assert "note: delta 0.01" in use(*large)[1]
    assert answer(use(*large, "--units", 10, "--json"))["notes"] == []
    assert answer(use(*large, "--contributions", 2, "--json"))["notes"] == []


def test_every_mechanism_has_a_cost(use):
    at = ["--units", 100_000, "--json"]
    tokens = ["tokens", "--batch-size", 250, "--steps", 500, "--clipping-norm", 10, "--temperature", 2]
    assert answer(use("epsilon", *tokens, *at))["epsilon"] == pytest.approx(2.03, abs=0.01)
    assert answer(use("epsilon", "histogram", "--noise", 10, *at))["epsilon"] < 0.5
    assert answer(use("epsilon", "thresholded-histogram", "--noise", 10, "--threshold", 60, *at))["epsilon"] < 0.5
    mst = answer(use("calibrate", "mst", "--columns", 5, "--epsilon", 1, *at))
    assert mst["noise"]["sigma_one"] > 1 and 0.99 < mst["epsilon"] <= 1


def test_delta_comes_from_the_units(use):
    found = answer(
        use("epsilon", "dp-sgd", "--records", 1000, "--batch-size", 10, "--steps", 1, "--noise", 1, "--json")
    )
    assert found["delta"] == pytest.approx(1000**-1.1)
    several = ["epsilon", "dp-sgd", "--records", 1000, "--batch-size", 10, "--steps", 1, "--noise", 1]
    assert "--units" in refusal(use(*several, "--contributions", 2, "--json"))["message"]


def test_explains_an_event_part_by_part(use, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(
        json.dumps(answer(use("calibrate", *CTCL, *STEPS, "--epsilon", 1, "--histogram-noise", 10, "--json")))
    )
    told = answer(use("explain", file, "--delta", 1.18e-6, "--group", 2, "--json"))
    alone = {part["mechanism"]: part["epsilon_alone"] for part in told["parts"]}
    assert alone["DiscreteGaussianCountsEvent"] == pytest.approx(0.39, abs=0.005)
    assert alone["SampledGaussianEvent"] == pytest.approx(0.90, abs=0.01)
    assert told["group"]["bound"] == "loose" and told["group"]["epsilon"] > 2 * told["epsilon"]
    dossier = tmp_path / "dossier.json"
    dossier.write_text(json.dumps({"statement": json.loads(file.read_text()), "ledger": {}}))
    assert answer(use("explain", dossier, "--delta", 1.18e-6, "--group", 2, "--json")) == told
    status, text = use("explain", file, "--delta", 1.18e-6)
    assert status == 0 and "2000" in text and "strong" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["epsilon", "dp-sgd"], "--records"),
        (["epsilon", *CTCL, *STEPS, "--noise", "nan"], "--noise nan; accepted: a finite number above 0"),
        (["epsilon", *CTCL, *STEPS, "--noise", "1", "--histogram-noise", "0"], "--histogram-noise 0; accepted"),
        (["epsilon", *CTCL, *STEPS, "--noise", "-1"], "above 0"),
        (["epsilon", *CTCL, "--steps", "0", "--noise", "1"], "--steps 0; accepted: a whole number from 1"),
        (["epsilon", "dp-sgd", "--records", "5", "--batch-size", "9", "--steps", "1", "--noise", "1"], "at most"),
        (["epsilon", "histogram", "--noise", "1", "--delta", "0"], "between 0 and 1"),
        (["epsilon", "histogram", "--noise", "1", "--delta", "1.5"], "between 0 and 1"),
        (["epsilon", "histogram", "--noise", "1", "--units", "1"], "from 3"),
        (["epsilon", "histogram", "--noise", "1", "--delta", "1e-6", "--contributions", "0"], "--contributions 0"),
        (["calibrate", *CTCL, *STEPS, "--contributions", "0", "--epsilon", "4"], "--contributions 0"),
        (["calibrate", *CTCL, *STEPS, "--epsilon", "nan"], "epsilon nan"),
        (["epsilon", "histogram", "--noise", "1", "--delta", "nan"], "between 0 and 1"),
        (
            [
                "calibrate",
                *CTCL,
                *STEPS,
                "--noise",
                "3",
                "--sampled",
                "user",
                "--for",
                "contributions",
                "--epsilon",
                "4",
            ],
            "every bound costs the same",
        ),
        (
            ["calibrate", *CTCL, *STEPS, "--sampled", "user", "--adjacency", "fixed-graph", "--epsilon", "4"],
            "several owners",
        ),
        (
            ["epsilon", "thresholded-histogram", "--noise", "10", "--threshold", "20", "--delta", "1e-6"],
            "thresholds alone take 0.0359",
        ),
        (["epsilon", "mst", "--delta", "1e-6"], "calibrate mst"),
        (["calibrate", "mst", "--epsilon", "1", "--delta", "1e-6"], "--columns"),
        (["calibrate", "tokens", "--epsilon", "1", "--delta", "1e-6", "--for", "noise"], "temperature"),
        (["calibrate", "histogram", "--epsilon", "1", "--delta", "1e-6", "--for", "steps"], "no steps"),
        (["calibrate", "histogram", "--epsilon", "1", "--delta", "1e-6", "--noise", "3"], "nothing is left"),
        (["calibrate", "histogram", "--epsilon", "-1", "--delta", "1e-6"], "above 0"),
        (["explain", "/nowhere/at/all.json", "--delta", "1e-6"], "cannot be read"),
    ],
)
def test_bad_arguments_are_refused_in_words(use, arguments, words):
    error = refusal(use(*arguments, "--json"))
    assert error["code"] == "accounting"
    assert words in error["message"]


@pytest.mark.parametrize(
    "text", ["not json", "[" * 100_000, "{}", '{"event": {"kind": "other"}}', '{"statement": 3}', "3"]
)
def test_bad_files_are_refused_in_words(use, tmp_path, text):
    file = tmp_path / "event.json"
    file.write_text(text)
    assert refusal(use("explain", file, "--delta", 1e-6, "--json"))["code"] == "accounting"


def test_every_command_has_help_and_json(use):
    for name, command in typer.main.get_command(privacy_app).commands.items():
        status, text = use(name, "--help")
        assert status == 0 and command.help.split()[0] in text
        assert any("--json" in parameter.opts for parameter in command.params)
