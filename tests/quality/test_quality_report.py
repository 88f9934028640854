from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.findings import findings_of
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.contracts.workload import Workload
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.quality import report as module
from dpsynth_platform.quality.completeness import missing_comparisons
from dpsynth_platform.quality.plots import plots
from dpsynth_platform.quality.report import NOTICE, measure_quality, measure_tables
from dpsynth_platform.quality.report_rows import HEADER

PLACES = ["north", "a|b", "west"]


@pytest.fixture
def contract_of() -> Callable[..., DataContract]:
    def make(**quality: Any) -> DataContract:
        document = {
            "dataset": "survey",
            "description": "A survey that exists in tests only.",
            "owners": ["nobody@example.org"],
            "source": {"uri": "/nowhere", "key": ["person"]},
            "family": "surveys",
            "privacy": {
                "unit": "user",
                "owner_columns": ["person"],
                "namespace": "person",
                "max_contributions": 1,
                "guarantee": {"epsilon": 1.0},
                "expected_units": 1000,
            },
            "columns": {
                "person": {"type": "identifier"},
                "place": {"type": "categorical", "values": PLACES},
                "age": {"type": "integer", "min": 0, "max": 99, "bins": 10},
                "insured": {"type": "boolean"},
            },
            "generate": {"rows": 100},
            "quality": quality,
            "release": {"uri": "/nowhere/public"},
        }
        return parse_contract(document, where="test", variables={})

    return make


def people(count: int) -> pa.Table:
    rng = np.random.default_rng(count)
    age = rng.integers(0, 100, count)
    return pa.table(
        {
            "_owner": [f"owner-{number}" for number in range(count)],
            "place": rng.choice(PLACES, count).tolist(),
            "age": age,
            "insured": age > 40,
        }
    )


def without_owner(table: pa.Table) -> pa.Table:
    return table.drop(["_owner"])


def test_the_whole_report(contract_of: Callable[..., DataContract]) -> None:
    contract = contract_of(target="insured", protected=["place", "age"])
    report = measure_quality(contract, None, people(1500), people(1000), people(600))
    rows = report.table()
    assert all(len(row) == len(HEADER) for row in rows)
    measures = [row[0] for row in rows]
    assert measures[:3] == ["one-way distance, mean", "two-way distance, mean", "three-way distance, mean"]
    for expected in (
        "similarity of columns (HIST), mean of 20 and 50 bins",
        "similarity of pairs of columns (Pair), 50 bins",
        "pairs of columns that are as strongly associated (CorAcc), share",
        "classifier of insured, mean of both: ROC AUC",
        "classifier of insured, XGBoost: F1 of the rarer class",
        "place: gap in selection rate (true)",
        "place: differences of false positive rates, sum (FPED) (true)",
        "nearer to a real row than held-out rows are, share",
        "exact copies of real rows",
    ):
        assert expected in measures
    shown = {row[0]: row for row in rows}
    assert not any("not available" in cell for name, row in shown.items() for cell in row if "age" not in name)
    assert report.rows == {"held_out": 600, "synthetic": 1000, "real": 1500}
    assert missing_comparisons(contract, report.to_json()) == []


def test_what_no_contract_asks_for_is_not_missing(contract_of: Callable[..., DataContract]) -> None:
    report = measure_quality(contract_of(), None, people(300), people(300), people(100))
    assert report.utility.not_available
    assert missing_comparisons(contract_of(), report.to_json()) == []


def test_without_rows_everything_is_missing(contract_of: Callable[..., DataContract]) -> None:
    contract = contract_of(target="insured")
    report = measure_quality(contract, None, people(0), people(300), people(60))
    assert missing_comparisons(contract, report.to_json()) == [
        "distances of columns: there are no real rows to compare",
        "closeness to real rows: a table has no rows",
        "classifiers trained on real rows: no row to train on has a target",
    ]


def test_it_says_that_it_is_restricted(contract_of: Callable[..., DataContract]) -> None:
    report = measure_quality(contract_of(), None, people(300), people(300), people(100))
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["restricted"] is True
    assert document["notice"] == NOTICE
    assert report.markdown().startswith(f"**{NOTICE}**")


def test_the_json_has_the_means(contract_of: Callable[..., DataContract]) -> None:
    report = measure_quality(contract_of(target="insured"), None, people(300), people(300), people(100))
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    similar = document["similarity"]
    assert similar["histogram"] == pytest.approx((similar["histogram_20"] + similar["histogram_50"]) / 2)
    assert document["real_similarity"]["pair"] == report.real_similarity.pair
    assert document["fidelity"]["mean_pair"] == report.fidelity.mean_pair
    assert document["utility"]["synthetic"]["mean"]["f1"] == report.utility.synthetic.mean.f1
    assert document["closeness"]["synthetic"]["copies"] == report.closeness.synthetic.copies


def test_markdown_keeps_its_columns_whatever_the_values(contract_of: Callable[..., DataContract]) -> None:
    contract = contract_of(target="place", protected=["insured"])
    lines = measure_quality(contract, None, people(300), people(300), people(300)).markdown().splitlines()
    widths = {line.replace("\\|", "").count("|") for line in lines if line.startswith("|")}
    assert widths == {len(HEADER) + 1}


def test_missing_parts_are_explained(contract_of: Callable[..., DataContract]) -> None:
    contract = contract_of(target="insured", protected=["place"])
    report = measure_quality(contract, None, people(300), people(300), people(3))
    said = [row[1] for row in report.table()]
    assert "not available: fewer than 50 held-out rows have a target" in said
    assert "not available: there is no classifier to compare" in said
    assert missing_comparisons(contract, report.to_json()) == [
        "classifiers of insured: fewer than 50 held-out rows have a target",
        "fairness by place: there is no classifier to compare",
    ]
    assert report.similarity is not None
    for tables in ((people(0), people(300), people(0)), (people(300), people(0), people(60))):
        empty = measure_quality(contract, None, *tables)
        said = [row[1] for row in empty.table()]
        assert any("rows to compare" in text for text in said)
        assert empty.similarity is None
        assert empty.closeness is None
        json.dumps(empty.to_json(), allow_nan=False)
        plots(empty)


def test_nobody_left_to_compare_with_is_said(contract_of: Callable[..., DataContract]) -> None:
    report = measure_quality(contract_of(target="insured"), None, people(0), people(300), people(60))
    assert report.real_similarity is None
    assert report.utility.real.not_available == "no row to train on has a target"
    assert report.utility.synthetic.mean is not None
    assert "not available: there are no real rows to compare" in [row[1] for row in report.table()]


def test_a_target_of_numbers_is_predicted_by_its_cells(contract_of: Callable[..., DataContract]) -> None:
    report = measure_quality(contract_of(target="age"), None, people(400), people(400), people(300))
    assert report.utility.classes == 10
    assert report.utility.synthetic.mean.accuracy > 0


def test_pictures(contract_of: Callable[..., DataContract]) -> None:
    report = measure_quality(contract_of(target="insured"), None, people(300), people(300), people(100))
    drawn = plots(report)
    assert set(drawn) == {"marginals", "ways", "classifiers", "precision", "recall", "closeness"}
    for picture in drawn.values():
        assert picture.startswith("<svg")
        assert "synthetic" in picture
    assert "insured" in drawn["classifiers"]


def test_larger_tables_are_drawn_from(
    contract_of: Callable[..., DataContract], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 200)
    report = measure_quality(contract_of(target="insured"), None, people(500), people(400), people(300))
    assert report.utility.holdout_rows == 200
    assert report.rows == {"held_out": 300, "synthetic": 400, "real": 500}


def test_tables_without_a_contract() -> None:
    real, synthetic, train = (without_owner(people(count)) for count in (600, 900, 800))
    report = measure_tables(real, synthetic, "insured", train=train, protected=["place"])
    assert report.dataset is None
    assert report.rows == {"real": 600, "synthetic": 900, "train": 800}
    assert report.real_similarity is not None
    assert report.utility.real.mean.accuracy > 0.9
    assert [group.value for group in report.fairness[0].groups] == ["group 1", "group 2", "group 3"]
    text = json.dumps(report.to_json(), allow_nan=False)
    assert "north" not in text, "values of undeclared columns are nobody's to see"
    assert "north" not in report.markdown()


def test_without_training_rows_nothing_is_compared_with_them() -> None:
    table = without_owner(people(300))
    report = measure_tables(table, table, "insured")
    assert report.real_similarity is None
    assert report.utility.real is None
    assert report.closeness is None
    assert report.fidelity.mean_pair == 0.0
    assert report.similarity.histogram == report.similarity.pair == report.similarity.association_accuracy == 1.0
    measures = [row[0] for row in report.table()]
    assert "exact copies of real rows" not in measures
    assert set(plots(report)) == {"marginals", "ways", "classifiers", "precision", "recall"}
    assert report.records.real is None


def test_distances_are_from_the_training_rows_where_there_are_any() -> None:
    real, synthetic = without_owner(people(300)), without_owner(people(400))
    assert measure_tables(real, synthetic, "insured", train=synthetic).fidelity.mean_pair == 0.0
    assert measure_tables(real, synthetic, "insured").fidelity.mean_pair > 0.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"target": "size"}, "target: no column 'size' in the real table; accepted: place, age, insured"),
        ({"target": "insured", "protected": ["size"]}, "protected: no column 'size'"),
        ({"target": "insured", "protected": ["age"]}, "protected: column 'age' holds numbers; accepted: columns of"),
        ({"target": "insured", "categorical": ["size"]}, "categories: no column 'size'"),
        ({"target": "age"}, "target: column 'age' of the real table has 100 different values; accepted: 2 to 50"),
    ],
)
def test_what_is_asked_of_tables_must_be_there(arguments: dict, said: str) -> None:
    table = without_owner(people(2000))
    with pytest.raises(SourceError, match=said):
        measure_tables(table, table, **arguments)


def test_a_target_of_one_class_is_refused_and_its_class_not_named() -> None:
    table = without_owner(people(300))
    constant = table.set_column(0, "place", pa.array(["Zaphod"] * 299 + [None]))
    with pytest.raises(SourceError, match="column 'place' of the real table has 1 different values") as caught:
        measure_tables(constant, table, "place")
    assert "Zaphod" not in str(caught.value)


def test_codes_can_be_categories() -> None:
    table = without_owner(people(300))
    report = measure_tables(table, table, "insured", protected=["age"], categorical=["age"])
    assert len(report.fairness[0].groups) > 50


def test_a_contract_declares_workload_and_findings(contract_of: Callable[..., DataContract]) -> None:
    finding = {"name": "the insured are older", "compare": "age", "groups": [{"insured": True}, {"insured": False}]}
    contract = contract_of(target="insured", findings=[finding, {"correlate": ["age", {"place": "west"}]}])
    report = measure_quality(contract, None, people(1500), people(1000), people(600))
    assert report.parity.findings[0].conclusion == "higher"
    assert report.parity.findings[0].synthetic
    # All pairs are the workload where none is declared.
    assert report.workload.synthetic == pytest.approx(report.fidelity.mean_pair)
    shown = {row[0]: row for row in report.table()}
    assert shown["findings that hold, share of 2 (epistemic parity)"][1] in ("0.500", "1.000")
    assert shown["workload: distance, weighted mean"][1] == shown["two-way distance, mean"][1]
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["parity"]["synthetic"] == report.parity.synthetic
    assert document["records"]["synthetic"]["detection_auc"] == report.records.synthetic.detection_auc
    assert missing_comparisons(contract, report.to_json()) == []


def test_findings_do_not_change_contracts_without_them(contract_of: Callable[..., DataContract]) -> None:
    assert "findings" not in contract_of(target="insured").snapshot()["quality"]


def test_findings_are_about_modelled_columns(contract_of: Callable[..., DataContract]) -> None:
    with pytest.raises(ContractError, match=r"quality\.findings: column 'person' is not modelled"):
        contract_of(findings=[{"correlate": ["age", "person"]}])
    with pytest.raises(ContractError, match=r"quality\.findings: column 'size' is not declared"):
        contract_of(findings=[{"correlate": ["age", "size"]}])
    with pytest.raises(ContractError, match=r"quality\.findings: column 'place' is categorical; accepted: a column of"):
        contract_of(findings=[{"correlate": ["age", "place"]}])
    with pytest.raises(ContractError, match=r"quality\.task: regression: column 'insured' is boolean"):
        contract_of(target="insured", task="regression")
    assert contract_of(findings=[{"correlate": ["age", "insured"]}])


def test_a_contract_may_predict_numbers(contract_of: Callable[..., DataContract]) -> None:
    contract = contract_of(target="age", task="regression", protected=["place"])
    report = measure_quality(contract, None, people(400), people(500), people(300))
    # Within the insured (41 to 99) and the others (0 to 40), age is uniform: 72% of its variance is between them.
    assert report.regression.real.linear.r_squared == pytest.approx(0.72, abs=0.08)
    assert report.regression.synthetic.linear.r_squared == pytest.approx(0.72, abs=0.08)
    rows = {row[0]: row for row in report.table()}
    assert rows["regression of age, ridge regression: R squared"][3] == "0.000"
    assert not any(name.startswith("classifier") for name in rows)
    assert missing_comparisons(contract, report.to_json()) == ["fairness by place: there is no classifier to compare"]
    few = measure_quality(contract, None, people(400), people(500), people(3))
    assert "models of age: fewer than 50 held-out rows have a target" in missing_comparisons(contract, few.to_json())


def test_tables_without_a_contract_have_regression_a_workload_and_findings_too() -> None:
    table = without_owner(people(300))
    asked = findings_of([{"compare": "age", "groups": [{"insured": True}, {"place": "west"}]}])
    workload = Workload(queries=[{"columns": ["place", "age", "insured"], "weight": 2}])
    report = measure_tables(table, table, "age", task="regression", findings=asked, workload=workload)
    assert report.regression.synthetic.mean.r_squared > 0.5
    assert report.parity.synthetic == 1.0
    assert (report.workload.marginals, report.workload.synthetic) == (4, 0.0)
    for arguments, said in (
        ({"target": "place"}, "target: column 'place' of the real table holds categories"),
        ({"target": "age", "workload": Workload(weights={"size": 2})}, "workload: no column 'size' in the real table"),
    ):
        with pytest.raises(SourceError, match=said):
            measure_tables(table, table, task="regression", **arguments)
