import json

import pytest
import typer
from dp_accounting import dp_event
from line_cases import small_deployment
from typer.testing import CliRunner

from dpsynth_platform.cli.privacy import privacy_app
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import (
    GaussianCountsEvent,
    GaussianMeasuresEvent,
    event_from_json,
    event_to_json,
)

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
    assert "a reasonable guarantee\nfor one unit of at most 1 record, add-or-remove: there or not" in text
    _, text = use("calibrate", "histogram", "--epsilon", 1, "--delta", 1e-6, "--contributions", 3)
    assert "noise (standard deviation, in records): " in text and "at most 3 records" in text
    _, text = use("calibrate", "mst", "--columns", 3, "--epsilon", 1, "--delta", 1e-6)
    assert "noise of the one-column counts (standard deviation, in records): " in text
    assert "3 tables of counts with Gaussian noise, sigma " in text
    assert "2 choices by the exponential mechanism, range " in text


def test_a_delta_that_allows_to_show_somebody_is_noted(use):
    large = ["epsilon", "dp-sgd", "--records", 1000, "--batch-size", 10, "--steps", 1, "--noise", 1, "--delta", 0.001]
    assert answer(use(*large, "--json"))["tier"] is None
    assert "is not below 1/1000" in answer(use(*large, "--json"))["notes"][0]
    assert "note: delta 0.001" in use(*large)[1]
    assert answer(use(*large, "--units", 10, "--json"))["notes"] == []
    assert answer(use(*large, "--contributions", 2, "--json"))["notes"] == []


def test_every_mechanism_has_a_cost(use):
    at = ["--units", 100_000, "--json"]
    tokens = ["tokens", "--batch-size", 250, "--steps", 500, "--clipping-norm", 10, "--temperature", 2]
    assert answer(use("epsilon", *tokens, *at))["epsilon"] == pytest.approx(1.92, abs=0.01)
    assert answer(use("epsilon", "histogram", "--noise", 10, *at))["epsilon"] < 0.5
    assert answer(use("epsilon", "thresholded-histogram", "--noise", 10, "--threshold", 60, *at))["epsilon"] < 0.5
    mst = answer(use("calibrate", "mst", "--columns", 5, "--epsilon", 1, *at))
    assert mst["noise"] > 1 and 0.99 < mst["epsilon"] <= 1
    again = answer(use("epsilon", "mst", "--columns", 5, "--noise", mst["noise"], *at))
    assert 0.999 * mst["epsilon"] < again["epsilon"] <= mst["epsilon"]
    one = answer(use("epsilon", "mst", "--columns", 1, "--noise", 10, *at))
    counts = answer(use("epsilon", "histogram", "--noise", 10, *at))
    assert one["epsilon"] == pytest.approx(counts["epsilon"], rel=1e-3)
    most = answer(use("calibrate", "mst", "--columns", 3, "--noise", 40, "--for", "contributions", "--epsilon", 1, *at))
    assert most["contributions"] > 1 and most["epsilon"] <= 1


def test_delta_comes_from_the_units(use):
    found = answer(
        use("epsilon", "dp-sgd", "--records", 1000, "--batch-size", 10, "--steps", 1, "--noise", 1, "--json")
    )
    assert found["delta"] == pytest.approx(1000**-1.1)
    several = ["epsilon", "dp-sgd", "--records", 1000, "--batch-size", 10, "--steps", 1, "--noise", 1]
    assert "--units" in refusal(use(*several, "--contributions", 2, "--json"))["message"]


def test_threshold_and_temperature_can_be_looked_for(use):
    counts = ["thresholded-histogram", "--noise", 5, "--contributions", 2, "--delta", 1e-6]
    found = answer(use("calibrate", *counts, "--epsilon", 2, "--json"))
    assert found["for"] == "threshold" and found["epsilon"] <= 2
    assert answer(use("epsilon", *counts, "--threshold", found["threshold"], "--json"))["epsilon"] == found["epsilon"]
    tokens = ["tokens", "--batch-size", 250, "--steps", 500, "--clipping-norm", 10, "--delta", 1e-6]
    for asked in ([], ["--for", "temperature"]):
        found = answer(use("calibrate", *tokens, "--epsilon", 2, *asked, "--json"))
        assert found["temperature"] == pytest.approx(2.04, abs=0.01) and 1.99 < found["epsilon"] <= 2


def test_the_bound_under_a_threshold(use):
    """Probes that the threshold cannot bear are no reason to give up."""
    found = answer(use("calibrate", "thresholded-histogram", "--threshold", 30, "--noise", 5, "--epsilon", 4,
                       "--for", "contributions", "--delta", 1e-6, "--json"))  # fmt: skip
    assert found["contributions"] == 4


def test_both_parts_of_a_split_budget_are_told(use):
    split = ["epsilon", *CTCL, *STEPS, "--noise", 3.03, "--histogram-noise", 10]
    alone = answer(use(*split, "--json"))["alone"]
    assert alone == {"--histogram-noise": pytest.approx(0.39, abs=0.005), "dp-sgd": pytest.approx(3.96, abs=0.01)}
    assert "epsilon of each alone: --histogram-noise 0.39" in use(*split)[1]
    short = ["calibrate", *CTCL, "--steps", 20, "--histogram-noise", 10, "--json", "--epsilon"]
    assert "above the 0.3 of all together; accepted: a larger --histogram-noise" in refusal(use(*short, 0.3))["message"]
    unmet = refusal(use("calibrate", "thresholded-histogram", "--threshold", 24, "--delta", 1e-6, "--histogram-noise",
                        10, "--epsilon", 0.5, "--json"))["message"]  # fmt: skip
    assert unmet.startswith("no noise meets epsilon 0.5 at delta 1e-06 with threshold 24; accepted: a higher threshold")
    assert unmet.endswith("a larger --histogram-noise leaves more)")


@pytest.mark.parametrize("delta", [0.5, 0.002])
def test_no_praise_at_a_large_delta(use, delta):
    large = ["epsilon", "histogram", "--noise", 3, "--delta", delta]
    told = answer(use(*large, "--json"))
    assert told["tier"] is None and "well below 1/n" in told["notes"][0]
    _, text = use(*large)
    assert f"delta {delta}: too large to promise anything" in text and "guarantee" not in text


def test_a_loose_bound_is_noted(use):
    small = ["epsilon", "dp-sgd", "--records", 500, "--batch-size", 9, "--steps", 10, "--noise", 1, "--delta", 1e-4]
    assert answer(use(*small, "--json"))["notes"] == []
    for adjacency in ("replace-one", "fixed-graph"):
        (note,) = answer(use(*small, "--adjacency", adjacency, "--json"))["notes"]
        assert f"sampling under {adjacency}" in note and "loose" in note


def test_explains_an_event_part_by_part(use, tmp_path):
    file = tmp_path / "calibrated.json"
    file.write_text(
        json.dumps(answer(use("calibrate", *CTCL, *STEPS, "--epsilon", 1, "--histogram-noise", 10, "--json")))
    )
    told = answer(use("explain", file, "--group", 2, "--json"))
    assert told["delta"] == 1.18e-6
    alone = {part["mechanism"]: part["epsilon_alone"] for part in told["parts"]}
    assert alone["discrete-gaussian-counts"] == pytest.approx(0.39, abs=0.005)
    assert alone["sampled-gaussian"] == pytest.approx(0.90, abs=0.01)
    assert told["group"]["bound"] == "loose" and told["group"]["epsilon"] > 2 * told["epsilon"]
    status, text = use("explain", file)
    assert status == 0 and "strong" in text
    assert "1 table of counts with discrete Gaussian noise, sigma 10 " in text
    assert "2000 steps of DP-SGD, noise multiplier " in text


def test_explains_that_owners_are_counted(use, tmp_path):
    neighbours = {"adjacency": "add-or-remove", "max_contributions": 5, "weighting": "owners"}
    parts = [
        {"kind": "gaussian-counts", "sigma": 4.0} | neighbours,
        {"kind": "bounded-range-selection", "epsilon": 0.1} | neighbours,
    ]
    file = tmp_path / "event.json"
    file.write_text(json.dumps({"event": {"kind": "composed", "events": parts}, "target": {"delta": 1e-6}}))
    told = answer(use("explain", file, "--json"))
    assert told["weighting"] == "owners"
    file.write_text(json.dumps({"event": parts[0] | {"weighting": "rows"}, "target": {"delta": 1e-6}}))
    assert answer(use("explain", file, "--json"))["epsilon"] > 4 * told["parts"][0]["epsilon_alone"]
    file.write_text(json.dumps({"event": {"kind": "composed", "events": parts}, "target": {"delta": 1e-6}}))
    _, text = use("explain", file)
    assert "sigma 4, owners counted once each" in text
    assert "range 0.1, owners counted once each" in text


def test_explains_sums_of_several_participants(use, tmp_path):
    neighbours = {"variance": 25600.0, "adjacency": "add-or-remove", "max_contributions": 1}
    parts = [
        {"kind": "skellam-counts", "scale": 16} | neighbours,
        {"kind": "skellam-sums", "l1": 32, "l2_squared": 256} | neighbours,
    ]
    file = tmp_path / "event.json"
    file.write_text(json.dumps({"event": {"kind": "composed", "events": parts}, "target": {"delta": 1e-6}}))
    words = [part["words"] for part in answer(use("explain", file, "--json"))["parts"]]
    assert words == [
        "1 table of counts with Skellam noise, sigma 160 for a change of 16",
        "1 set of sums of vectors with Skellam noise, sigma 160 for a change of 16",
    ]


COUNTS = {"kind": "discrete-gaussian-counts", "sigma": 55.23, "adjacency": "add-or-remove", "max_contributions": 2}
EVENT = {"kind": "repeated", "count": 16, "event": COUNTS}


@pytest.mark.parametrize(
    "document",
    [
        {"event": EVENT, "event_in_words": "16 marginals", "target": {"delta": 1e-6}},
        {"statement": {"event": EVENT, "guarantee": {"delta": 1e-6}}, "ledger": {}},
        {"plan": {"event": EVENT, "guarantee": {"delta": 1e-6}}, "digest": "0"},
        {"event": EVENT, "delta": 1e-6},
    ],
)
def test_reads_plan_dossier_and_its_own_results(use, tmp_path, document):
    file = tmp_path / "document.json"
    file.write_text(json.dumps(document))
    told = answer(use("explain", file, "--json"))
    assert told["delta"] == 1e-6 and told["event"] == EVENT
    assert told["parts"][0]["words"] == "16 tables of counts with discrete Gaussian noise, sigma 55.23"
    assert answer(use("explain", file, "--delta", 1e-5, "--json"))["delta"] == 1e-5
    assert answer(use("explain", file, "--units", 1000, "--json"))["delta"] == pytest.approx(1000**-1.1)


def test_explains_the_event_of_a_real_plan(use, tmp_path):
    deployment = small_deployment(tmp_path)
    forecast = deployment.json("plan", "people")
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(forecast))
    told = answer(use("explain", file, "--json"))
    assert (told["epsilon"], told["delta"]) == (forecast["claimed"], forecast["target"]["delta"])
    assert "marginals" in forecast["event_in_words"]


def test_a_bare_event_keeps_its_repetition(use, tmp_path):
    file = tmp_path / "event.json"
    file.write_text(json.dumps(EVENT))
    assert answer(use("explain", file, "--delta", 1e-6, "--json"))["parts"][0]["times"] == 16
    assert "--delta" in refusal(use("explain", file, "--json"))["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["epsilon", "dp-sgd"], "--records"),
        (["epsilon", *CTCL, *STEPS, "--noise", "nan"], "--noise nan; accepted: a finite number above 0"),
        (["epsilon", *CTCL, *STEPS, "--noise", "1", "--histogram-noise", "0"], "--histogram-noise 0; accepted"),
        (["epsilon", *CTCL, *STEPS, "--noise", "-1"], "above 0"),
        (["epsilon", *CTCL, "--steps", "0", "--noise", "1"], "--steps 0; accepted: a whole number from 1"),
        (
            ["epsilon", "dp-sgd", "--records", "5", "--batch-size", "9", "--steps", "1", "--noise", "1"],
            "--batch-size 9 of --records 5",
        ),
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
        (["epsilon", "mst", "--delta", "1e-6"], "mst needs --columns, --noise"),
        (["epsilon", "mst", "--columns", "3", "--noise", "1e9", "--delta", "1e-6"], "--noise 1e+09 of mst"),
        (["calibrate", "mst", "--columns", "3", "--noise", "4", "--epsilon", "1"], "leave out --noise, which is"),
        (["epsilon", *CTCL], "dp-sgd needs --noise, --steps"),
        (["calibrate", "dp-sgd", "--epsilon", "4"], "needs --records, --batch-size, --noise, --steps; accepted: leave"),
        (["calibrate", "dp-sgd", "--epsilon", "4", "--for", "noise"], "needs --records, --batch-size, --steps to look"),
        (["calibrate", *CTCL, *STEPS, "--for", "noise", "--noise", "3", "--epsilon", "4"], "is what is looked for"),
        (["epsilon", "tokens", "--threshold", "3"], "--threshold does not belong to tokens; accepted: --batch-size,"),
        (["epsilon", "histogram", "--steps", "3", "--sampled", "user"], "--steps, --sampled do not belong to"),
        (["calibrate", "mst", "--histogram-noise", "4", "--epsilon", "1"], "does not belong to mst"),
        (["epsilon", "histogram", "--noise", "1", "--units", "0", "--delta", "1e-6"], "--units 0; accepted"),
        (["epsilon", "histogram", "--noise", "1", "--units", "-5", "--delta", "1e-6"], "--units -5; accepted"),
        (
            ["epsilon", "dp-sgd", "--records", "2", "--batch-size", "1", "--steps", "1", "--noise", "1"],
            "--records 2: too",
        ),
        (["epsilon", "histogram", "--noise", "1", "--delta", "1"], "--delta 1; accepted: between 0 and 1, exclusive"),
        (
            ["epsilon", "thresholded-histogram", "--noise", "1", "--threshold", "2", "--contributions", "2"],
            "above that",
        ),
        (["calibrate", "mst", "--epsilon", "1", "--delta", "1e-6"], "--columns"),
        (["calibrate", "tokens", "--epsilon", "1", "--delta", "1e-6", "--for", "noise"], "temperature"),
        (["calibrate", "histogram", "--epsilon", "1", "--delta", "1e-6", "--for", "steps"], "no steps"),
        (["calibrate", "histogram", "--epsilon", "1", "--delta", "1e-6", "--noise", "3"], "has all that it needs"),
        (["calibrate", "histogram", "--epsilon", "-1", "--delta", "1e-6"], "above 0"),
        (["explain", "/nowhere/at/all.json", "--delta", "1e-6"], "cannot be read"),
    ],
)
def test_bad_arguments_are_refused_in_words(use, arguments, words):
    error = refusal(use(*arguments, "--json"))
    assert error["code"] == "accounting"
    assert words in error["message"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "holds no event; accepted: JSON of dpsynth plan"),
        ('{"event": {"kind": "other"}}', "'other' is unknown"),
        ('{"event": "a sentence"}', "is an object"),
        ('{"statement": 3}', "holds no event"),
        ("3", "holds no event"),
        (json.dumps({"event": EVENT, "delta": "0.1"}), "its delta is not between 0 and 1"),
    ],
)
def test_bad_files_are_refused_in_words(use, tmp_path, text, words):
    file = tmp_path / "event.json"
    file.write_text(text)
    error = refusal(use("explain", file, "--json"))
    assert error["code"] == "accounting" and words in error["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--records", "abc"], "accepted: a whole number"),
        (["--records", "1.5"], "accepted: a whole number"),
        (["--noise", "x"], "accepted: a number"),
        (["--adjacency", "foo"], "'foo' is not one of 'add-or-remove'"),
    ],
)
def test_values_of_another_kind_are_refused_in_our_words(arguments, words):
    result = CliRunner().invoke(privacy_app, ["epsilon", "dp-sgd", *arguments])
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())
    assert "Input should be" not in result.output and "Value error" not in result.output


def test_help_says_which_mechanism_needs_what(use):
    for name in ("epsilon", "calibrate"):
        text = " ".join(use(name, "--help")[1].replace("│", " ").split())
        assert "tokens needs --batch-size, --steps, --clipping-norm, --temperature" in text
        assert "privacy loss distributions" in text


def test_every_command_has_help_and_json(use):
    for name, command in typer.main.get_command(privacy_app).commands.items():
        status, text = use(name, "--help")
        assert status == 0 and command.help.split()[0] in text
        assert any("--json" in parameter.opts for parameter in command.params)


def test_the_best_of_several_runs(use, tmp_path):
    """As the event says, between one run and many; without a delta of its own, at that of the files."""
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file, noise in zip(files, (8, 6), strict=True):
        file.write_text(use("epsilon", "histogram", "--noise", noise, "--delta", 1e-6, "--json")[1])
    found = answer(use("tuning", *files, "--runs", 4, "--shape", 0, "--json"))
    event = event_from_json(found["event"])
    assert event.mean == pytest.approx(4) and len(event.events) == 2
    assert found["delta"] == 1e-6 and found["epsilon"] == epsilon(event, 1e-6).epsilon
    ones = list(found["epsilon_of_one_run"].values())
    assert ones == [epsilon(part, 1e-6).epsilon for part in event.events]
    assert max(ones) < found["epsilon_of_all_shown"] < found["epsilon"]
    file = tmp_path / "best.json"
    file.write_text(json.dumps(found))
    explained = answer(use("explain", file, "--json"))
    assert explained["epsilon"] == found["epsilon"] and explained["epsilon_by_pld"] is None
    (part,) = explained["parts"]
    assert part["words"] == "the best of 4 runs in expectation (shape 0), each of one of 2 mechanisms"
    status, text = use("tuning", *files, "--runs", 4)
    assert status == 0 and "note: PLD does not reach the best of several runs" in text
    assert "one run of each file (2), all results shown" in text and "nothing else shown" in text
    assert "accepted: above 1" in refusal(use("tuning", *files, "--runs", 1, "--json"))["message"]
    assert "larger shape" in refusal(use("tuning", *files, "--runs", 5, "--shape", -0.99, "--json"))["message"]


def test_a_run_without_a_noisy_score_is_named(use, tmp_path):
    """What decides would be a look at the data that nobody has paid for."""
    plain, scored = tmp_path / "plain.json", tmp_path / "scored.json"
    plain.write_text(use("epsilon", "histogram", "--noise", 8, "--delta", 1e-6, "--json")[1])
    parts = [GaussianCountsEvent(8.0, "add-or-remove", 1), GaussianMeasuresEvent(20.0, "add-or-remove", 1)]
    scored.write_text(json.dumps(event_to_json(dp_event.ComposedDpEvent(parts))))
    notes = answer(use("tuning", plain, scored, "--delta", 1e-6, "--json"))["notes"]
    assert [note for note in notes if note.startswith(f"{plain}: no measure of quality is part of it")]
    assert not [note for note in answer(use("tuning", scored, "--delta", 1e-6, "--json"))["notes"] if "quality" in note]
