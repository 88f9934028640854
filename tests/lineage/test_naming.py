from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.naming import DatasetName


@pytest.mark.parametrize(
    ("place", "namespace", "name"),
    [
        ("/data/census", "file", "/data/census"),
        ("/data/x/../census/", "file", "/data/census"),
        (Path("/data/census"), "file", "/data/census"),
        ("file:///data/my%20census", "file", "/data/my census"),
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3a://bucket/a/b/", "s3://bucket", "a/b"),
        ("s3://key:secret@bucket/a?token=1#x", "s3://bucket", "a"),
        ("gs://bucket", "gs://bucket", "/"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net", "a"),
    ],
)
def test_places_get_openlineage_names(place: str | Path, namespace: str, name: str) -> None:
    assert naming.dataset_name(place) == DatasetName(namespace, name)


def test_a_relative_path_is_named_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert naming.dataset_name("census") == DatasetName("file", str(tmp_path / "census"))


def test_outputs_of_one_step_share_a_name_and_differ_in_version() -> None:
    first, version_one = naming.output_name(Path("/r/census/all/model/aa"))
    second, version_two = naming.output_name(Path("/r/census/all/model/bb"))
    assert first == second == DatasetName("file", "/r/census/all/model")
    assert (version_one, version_two) == ("aa", "bb")


def test_jobs_and_logical_names() -> None:
    assert naming.job_name("census", "model") == "census.model"
    assert naming.logical_name("census", "model").name == "census/model"
    assert naming.logical_name("visits", "model", "2026-01").name == "visits/2026-01/model"


_parts = st.tuples(
    st.text(max_size=8), st.text(max_size=8), st.integers(0, 5), st.one_of(st.none(), st.text(max_size=8))
)


@given(_parts, _parts)
def test_run_ids_are_uuids_and_differ_when_their_parts_differ(one: tuple, two: tuple) -> None:
    assert uuid.UUID(naming.run_id(*one)).version == 5
    lines = [("\n" in part for part in (run, key, period or "")) for run, key, _, period in (one, two)]
    if not any(any(has) for has in lines):
        same = (one[0], one[1], one[2], one[3] or "") == (two[0], two[1], two[2], two[3] or "")
        assert (naming.run_id(*one) == naming.run_id(*two)) == same


def test_the_parent_is_the_dagster_run() -> None:
    dagster_run = str(uuid.uuid4())
    assert naming.parent_run_id(dagster_run) == dagster_run
    assert uuid.UUID(naming.parent_run_id("not-a-uuid"))


@pytest.mark.parametrize(
    ("namespace", "name", "place"),
    [
        ("s3a://lake", "visits", "s3://lake/visits"),
        ("s3://lake", "/visits", "s3://lake/visits"),
        ("s3://lake", "visits/", "s3://lake/visits"),
        ("S3://lake", "visits", "s3://lake/visits"),
        ("s3://lake/", "a//visits", "s3://lake/a/visits"),
        ("s3://lake/a", "visits", "s3://lake/a/visits"),
        ("s3://key:secret@lake", "visits", "s3://lake/visits"),
        ("file", "//data/x", "/data/x"),
        ("file", "/data/a/../x/", "/data/x"),
        ("FILE", "/data/x", "file:////data/x"),
        ("file://localhost", "/data/x", "//data/x"),
        ("file:///data", "x", Path("//data/x")),
    ],
)
def test_what_others_spell_differently_is_one_name(namespace: str, name: str, place: str | Path) -> None:
    assert naming.canonical(DatasetName(namespace, name)) == naming.dataset_name(place)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("dpsynth", "visits//2026-01/"),
        ("dpsynth:products", "Model/../x"),
        ("s3://lake", "a/../visits"),
        ("file://elsewhere", "/data/x"),
        ("postgres://db:5432", "shop.public.visits"),
    ],
)
def test_other_names_mean_what_they_say(namespace: str, name: str) -> None:
    assert naming.canonical(DatasetName(namespace, name)) == DatasetName(namespace, name)


@given(st.sampled_from(["file", "FILE://", "s3a://lake/", "gs://a@b/c", "team", "://"]), st.text("/.a ", max_size=12))
def test_there_is_one_spelling(namespace: str, name: str) -> None:
    once = naming.canonical(DatasetName(namespace, name))
    assert naming.canonical(once) == once
