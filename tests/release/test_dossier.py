from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from dpsynth_platform.contracts.columns import DateColumn, FloatColumn, IntegerColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.lineage.clearance import Clearance
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import PRODUCT_NAMESPACE
from dpsynth_platform.lineage.survey import KnownBase
from dpsynth_platform.release import page, schema
from dpsynth_platform.release.cards import dataset_card
from dpsynth_platform.release.dossier import (
    FORMAT,
    Evidence,
    PublishedFile,
    bounding_summary,
    build_dossier,
    check_svg,
    clearance_summary,
    contract_summary,
    expected_errors,
    scrubbing_summary,
)
from dpsynth_platform.release.drawing import lineage_graph, sparkline_text
from dpsynth_platform.release.profile import Profiler, treatment

DRAWN = re.compile(r'<rect class="(earlier|this_release|left)" x="([0-9.]+)" y="0" width="([0-9.]+)"')
SVG = '<svg xmlns="http://www.w3.org/2000/svg">{}</svg>'


@pytest.fixture
def dossier(evidence: Evidence, contract: DataContract, rows: list[pa.RecordBatch]) -> dict[str, Any]:
    profile = Profiler(contract)
    for batch in rows:
        assert profile.add(batch) is batch
    files = [PublishedFile("data/part-0.parquet", "f0" * 32, 4711)]
    made = build_dossier(evidence, {"": rows[0].schema}, {"": sum(batch.num_rows for batch in rows)}, profile, files)
    return json.loads(json.dumps(made, allow_nan=False))


def shown(dossier: dict[str, Any], **changes: Any) -> str:
    return " ".join(page.render(dossier | changes, "f1" * 32).split())


def test_the_page_says_of_what_the_noisy_counts_are(evidence: Evidence, rows: list[pa.RecordBatch]) -> None:
    profile = Profiler(evidence.contract, evidence.measured)
    for batch in rows:
        profile.add(batch)
    dossier = build_dossier(
        evidence, {"": rows[0].schema}, {"": 400}, profile, [PublishedFile("data/part-0.parquet", "f0" * 32, 1)]
    )
    assert "the exact counts of what the mechanism read lie within their lines" in shown(dossier)
    assert "with the audit&#39;s fictional owners (canaries)" in shown(dossier)
    apart = dossier["contract"] | {"audit": dossier["contract"]["audit"] | {"model": "separate"}}
    assert "without fictional owners (canaries), since the audit had a model of its own" in shown(
        dossier, contract=apart
    )
    assert "No row was copied" in shown(dossier)
    columns = [
        column | {"treatment": "written"} if column["name"] == "remark" else column
        for column in dossier["synthetic"]["columns"]
    ]
    for text in (
        shown(dossier, synthetic=dossier["synthetic"] | {"columns": columns}),
        dataset_card(dossier | {"synthetic": dossier["synthetic"] | {"columns": columns}}, "f1" * 32),
    ):
        assert "No row was copied" not in text
        assert "remark" in text
        assert "what that can tell of any one person is bounded by the guarantee" in text


def test_the_page_says_of_whom_the_shares_of_the_budget_are(dossier: dict[str, Any]) -> None:
    assert "Left after this release&#39;s mechanisms: 35.0%" in shown(dossier).replace("'", "&#39;")
    assert "took part in every mechanism" not in shown(dossier)
    budget = {"this_release": 0.4, "earlier": 1.2, "left": 0.0, "mechanisms_before": 3}
    more = shown(dossier, ledger=dossier["ledger"] | {"mode": "per-owner", "budget": budget})
    assert "Of a person who took part in every mechanism" in more
    assert "nobody took part in all" in more
    at = {name: (float(x), float(width)) for name, x, width in DRAWN.findall(more)}
    assert at == {"earlier": (0, 600), "this_release": (600, 0), "left": (600, 0)}


def test_the_dossier_tells_what_was_asked_and_what_came_out(dossier: dict[str, Any], evidence: Evidence) -> None:
    assert dossier["release"]["id"] == evidence.release_id
    assert dossier["release"]["demonstration"] is True
    assert dossier["guarantee"]["epsilon"] == 1.0
    assert dossier["guarantee"]["tier"] == "strong"
    assert dossier["synthetic"]["rows"] == 400
    assert {column["name"]: column["treatment"] for column in dossier["synthetic"]["columns"]} == {
        "patient_id": "regenerated", "visit_date": "modelled", "full_name": "absent", "department": "modelled",
        "insured": "modelled", "minutes": "modelled", "score": "modelled", "remark": "empty",
    }  # fmt: skip
    assert dossier["approvals"] == [
        {"by": "grace", "at": "2026-11-20T06:59:00+00:00", "of": evidence.commitments["candidate"]}
    ]
    assert dossier["ledger"]["head"] == {"sequence": 17, "hash": "c0" * 32}


def test_no_place_and_no_plain_hash_of_restricted_content_is_told(dossier: dict[str, Any]) -> None:
    text = json.dumps(dossier)
    assert "/restricted/place" not in text
    assert "/public/visits" not in text
    for restricted in ("ab" * 32, "cd" * 32):
        assert restricted not in text
        assert restricted[:16] not in text


def test_the_contract_is_told_without_places(contract: DataContract) -> None:
    summary = contract_summary(contract)
    assert "source" not in summary
    assert summary["release"] == {"approvals": 1, "cadence": None}
    assert list(summary["columns"]) == list(contract.columns)


def test_histograms_count_every_synthetic_value(dossier: dict[str, Any], rows: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(rows)
    drawn = {c["name"]: c["histogram"] for c in dossier["synthetic"]["columns"] if "histogram" in c}
    assert set(drawn) == {"visit_date", "department", "insured", "minutes", "score"}
    for name, histogram in drawn.items():
        assert sum(histogram["counts"]) + histogram["missing"] == 400
        assert histogram["missing"] == table[name].null_count
    assert drawn["minutes"]["edges"] == ["5", "10", "20", "30", "60", "120"]
    values = table["minutes"].to_pylist()
    assert drawn["minutes"]["counts"][:2] == [sum(v < 10 for v in values), sum(10 <= v < 20 for v in values)]
    assert drawn["department"]["labels"] == ["general", "cardiology", "dermatology"]
    assert drawn["department"]["counts"][0] == table["department"].to_pylist().count("general")
    assert drawn["insured"]["labels"] == ["false", "true"]
    assert drawn["insured"]["counts"][1] == table["insured"].to_pylist().count(True)
    assert (drawn["visit_date"]["edges"][0], drawn["visit_date"]["edges"][-1]) == ("2026-01-01", "2026-12-31")


def test_values_outside_not_finite_or_in_other_types_are_counted(contract: DataContract) -> None:
    profile = Profiler(contract)
    table = pa.table(
        {
            "minutes": pa.array([-5, 500, 7, None], pa.int64()),
            "score": pa.array([float("nan"), float("inf"), 0.5, None]),
            "department": pa.array(["general", None, "general", "cardiology"]).dictionary_encode(),
            "visit_date": pa.array([0, 0, 1767225600, None], pa.timestamp("s")),
        }
    )
    for batch in table.to_batches():
        profile.add(batch)
    minutes, score = profile.histogram("minutes"), profile.histogram("score")
    assert minutes is not None
    assert (minutes["counts"], minutes["missing"]) == ([2, 0, 0, 0, 1], 1)
    assert score is not None
    assert (sum(score["counts"]), score["missing"]) == (1, 3)
    department = profile.histogram("department")
    assert department is not None
    assert (department["counts"], department["missing"]) == ([2, 1, 0], 1)
    date = profile.histogram("visit_date")
    assert date is not None
    assert (sum(date["counts"]), date["missing"]) == (3, 1)
    assert profile.histogram("patient_id") is None
    assert treatment(contract, "a column of nobody") == "empty"


def test_numbers_at_the_end_of_64_bits_have_a_histogram(contract: DataContract) -> None:
    largest = IntegerColumn(type="integer", min=2**64 - 6, max=2**64 - 1)
    profile = Profiler(contract.model_copy(update={"columns": contract.columns | {"minutes": largest}}))
    profile.add(pa.record_batch({"minutes": pa.array([2.0**64])}))
    assert profile.histogram("minutes")["missing"] == 0


def test_labels_at_the_ends_of_their_types(contract: DataContract) -> None:
    widest = contract.model_copy(
        update={
            "columns": contract.columns
            | {
                "visit_date": DateColumn(type="date", min=dt.date.min, max=dt.date.max),
                "minutes": IntegerColumn(type="integer", min=-(2**63), max=2**63 - 1),
                "score": FloatColumn(type="float", min=-8e307, max=8e307),
            }
        }
    )
    profile = Profiler(widest)
    shown = {name: profile.histogram(name) for name in ("visit_date", "minutes", "score")}
    ends = {name: (found["edges"][0], found["edges"][-1]) for name, found in shown.items() if found}
    assert ends == {
        "visit_date": ("0001-01-01", "9999-12-31"),
        "minutes": ("-9.22337e+18", "9.22337e+18"),
        "score": ("-8e+307", "8e+307"),
    }


def test_the_release_is_named_after_its_candidate(evidence: Evidence, with_approvals: Callable[..., Evidence]) -> None:
    assert evidence.release_id == "visits-" + evidence.commitments["candidate"][:16]
    assert with_approvals(period="2026-01").release_id.startswith("visits-2026-01-")


def test_evidence_that_must_not_be_published_is_refused(evidence: Evidence) -> None:
    with pytest.raises(ReleaseRefused, match="commitment"):
        replace(evidence, commitments={})
    with pytest.raises(ReleaseRefused, match="publishable"):
        replace(evidence, audit_report={**evidence.audit_report, "publishable": False})
    with pytest.raises(ReleaseRefused, match="script"):
        replace(evidence, audit_plots={"x": SVG.format("<script>1</script>")})


@pytest.mark.parametrize(
    "inside",
    [
        "<script/>", "<style>a{}</style>", "<image/>", "<a/>", "<foreignObject/>", "<use/>",
        '<rect onclick="x"/>', '<rect href="x"/>', '<rect style="fill: url(http://x)"/>', "<!-- x -->", "<?x?>",
        '<rect xmlns:x="http://www.w3.org/1999/xlink" x:href="y"/>', "<html:p xmlns:html='http://www.w3.org/1999/xhtml'/>",
        "<rect>", '<text ONFOCUS="x" tabindex="0">x</text>', '<rect OnLoad="x"/>', '<rect HREF="javascript:x"/>',
        '<rect style="position:fixed;inset:0"/>', '<rect class="notice"/>', '<rect tabindex="0"/>',
    ],
)  # fmt: skip
def test_a_plot_is_shapes_and_text_only(inside: str) -> None:
    with pytest.raises(ReleaseRefused, match="the plot 'x'"):
        check_svg("x", SVG.format(inside))
    check_svg("x", SVG.format("<text>one = 1, once=2, href</text><rect/>"))


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_self_contained(dossier: dict[str, Any]) -> None:
    html = _Page(page.render(dossier, "f1" * 32))
    tags = {tag for tag, _ in html.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "image", "use", "b"}
    for _, attributes in html.tags:
        assert not any(name.startswith("on") or name in ("src", "srcset") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#"), "links lead to places of the page itself"
    policies = [a["content"] for t, a in html.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_the_page_says_what_a_reviewer_needs(dossier: dict[str, Any], evidence: Evidence) -> None:
    html = page.render(dossier, "f1" * 32)
    said = " ".join(" ".join(_Page(html).words).split())
    for sentence in evidence.plain_words:
        assert sentence in said
    for fact in (
        "Demonstration", "1 in 140,000", "grace", "Exact totals such as row counts", evidence.release_id, "f1" * 32,
        "fresh surrogate ids", "not part of the release", "models/clinic-base", "only the cap is claimed", "f0" * 32,
        "Best effort, before the mechanism", "At most so many records", "20.25", "attestation.dsse.json",
        "c0" * 32, evidence.ledger_entry, "<b>made up</b>",
    ):  # fmt: skip
        assert fact in said, fact
    assert html.count("<svg") == 2 + 1 + 5 + 1
    assert (
        "demonstration"
        not in page.render(dossier | {"release": dossier["release"] | {"demonstration": False}}, "f1").lower()
    )


def test_what_comes_from_people_is_escaped(dossier: dict[str, Any]) -> None:
    evil = "<script>alert(1)</script>"
    changed = json.loads(json.dumps(dossier).replace("grace", evil).replace("dermatology", evil))
    changed["lineage"]["steps"][0]["step"] = changed["lineage"]["upstream"][0]["name"] = changed["ledger"]["entry"] = (
        evil
    )
    changed["statement"][evil] = {evil: [evil]}
    changed["synthetic"]["columns"][3]["histogram"] = {
        "kind": "categories", "labels": [evil], "counts": [1], "missing": 0,
    }  # fmt: skip
    assert "<script" not in page.render(changed, evil)
    with pytest.raises(ReleaseRefused):
        page.render(dossier | {"audit": dossier["audit"] | {"plots": {"x": SVG.format("<script/>")}}}, "f1")


def test_a_weak_guarantee_shows_its_reason(dossier: dict[str, Any]) -> None:
    weak = dossier["guarantee"] | {"tier": "weak", "epsilon": 20.0, "why_weak": "a reason that was given"}
    html = page.render(dossier | {"guarantee": weak}, "f1")
    assert "a reason that was given" in html
    assert "Weak: epsilon above 10." in html


@pytest.mark.parametrize(
    ("number", "text"), [(7.09e-6, "1 in 140,000"), (1e-5, "1 in 99,000"), (0.5, "1 in 2"), (0.0, "0")]
)
def test_small_numbers_are_never_made_to_look_smaller(number: float, text: str) -> None:
    assert page.small(number) in (text, text.replace("99,000", "100,000"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"), (0.999735, "1"), (0.9911, "0.992"), (4.0, "4"), (12.34, "12.4"), (0.01, "0.01"),
        (0.1, "0.1"), (0.3, "0.3"), (0.1230000000001, "0.124"), (1e-5, "1e-05"), (22026.47, "2.21e+04"),
    ],
)  # fmt: skip
def test_bounds_are_rounded_up(number: float, text: str) -> None:
    assert page.upper_bound(number) == text
    assert float(page.upper_bound(number)) >= number


def test_delta_is_one_figure_on_a_page(dossier: dict[str, Any]) -> None:
    written = shown(dossier, guarantee=dossier["guarantee"] | {"delta": 6.9817e-5})
    assert "6.99e-05" in written and "6.98e-05" not in written


def test_what_lies_above_the_line_is_drawn_left_of_what_it_went_into() -> None:
    steps = [{"step": "raw", "inputs": []}, {"step": "model", "inputs": ["raw"]}]
    upstream = [
        {"kind": "checkpoint", "name": "hub/base", "into": "model", "own": False},
        {"kind": "release", "name": "older", "into": "hub/base", "own": True},
        {"kind": "checkpoint", "name": "hub/base", "into": "older", "own": False},  # a cycle
        {"kind": "checkpoint", "name": 'a "lost" one', "into": "nothing that is known", "own": False},
    ]
    drawn = lineage_graph(steps, upstream)
    check_svg("graph", drawn)
    root = ElementTree.fromstring(drawn)
    svg = "{http://www.w3.org/2000/svg}"
    left = {
        group.findtext(f"{svg}title"): float(group.find(f"{svg}rect").get("x")) for group in root.findall(f"{svg}g")
    }
    base, lost = (f"checkpoint {name} (name reported by others)" for name in ('"hub/base"', '"a \\"lost\\" one"'))
    assert left.keys() == {"raw", "model", base, "release older", lost}
    assert left["release older"] < left[base] < left["model"]
    assert len(root.findall(f"{svg}path")) == 4, "every edge, also the one that closes the cycle"


def test_a_dossier_tells_kinds_of_scrubbing_and_bounding_and_no_words_of_the_contract(contract: DataContract) -> None:
    rules = {"patterns": [{"entity": "STAFF_ID", "pattern": r"E\d{6}"}], "deny": {"PROJECT": ["Blue Bird"]}}
    told = scrubbing_summary(contract.model_copy(update={"scrub": Scrub.model_validate(rules)}))
    assert told["text_columns"] == {"full_name": "drop", "remark": "replace"}
    assert (told["own_patterns"], told["listed_words_of"]) == (["STAFF_ID"], ["PROJECT"])
    assert "Blue Bird" not in json.dumps(told)
    assert r"\d{6}" not in json.dumps(told)
    bounding = bounding_summary(contract)
    assert (bounding["max_contributions"], bounding["on_overlap"], bounding["several_owners"]) == (2, "compose", False)


def test_a_clearance_tells_entries_and_what_follows_and_no_places(dossier: dict[str, Any]) -> None:
    told = dossier["clearance"]
    (finding,) = told["findings"]
    assert (finding["entry"], finding["family"], finding["comparable"]) == ("entry-0", "clinic-staff", True)
    assert told["together"]["epsilon"] == 1.4
    assert told["caps_together"] == {"epsilon": 5.0, "delta": 2e-5}
    assert any("epsilon 1.4" in sentence for sentence in told["in_words"])
    assert "path" not in finding


def test_a_clearance_lists_the_public_bases_without_their_places(dossier: dict[str, Any]) -> None:
    why = "drawn by ourselves and published"
    bases = (
        KnownBase("pictures", DatasetName("file", "/srv/place/strokes"), why, "model", "contract"),
        KnownBase("endpoint", DatasetName(PRODUCT_NAMESPACE, "makers/painter"), None, "synthetic", "declaration"),
    )
    found = clearance_summary(Clearance("compose", "compose", "nothing", (), None, (), (), (), None, bases=bases))
    assert [(item["kind"], item["name"], item["public_because"], item["known_by"]) for item in found["bases"]] == [
        ("pictures", "strokes", why, "contract"),
        ("endpoint", "makers/painter", None, "declaration"),
    ]
    assert "/srv" not in repr(found)
    assert not schema.breaches(dossier | {"clearance": found}, schema.DOSSIERS[FORMAT])
    stray = found | {"bases": [found["bases"][0] | {"place": "/srv/place"}]}
    assert schema.breaches(dossier | {"clearance": stray}, schema.DOSSIERS[FORMAT])


def test_figures_of_quality_follow_from_the_plan() -> None:
    described = {"expected_error_per_one_way_cell": 20, "rho": 0.1, "expected_error_by_weighting": {}, "columns": []}
    assert expected_errors(described) == {"expected_error_per_one_way_cell": 20.0}


def test_drawings_of_nothing() -> None:
    assert lineage_graph([]).startswith("<svg")
    assert sparkline_text({"kind": "bins", "edges": ["0", "1"], "counts": [0], "missing": 3}) == "no values"
