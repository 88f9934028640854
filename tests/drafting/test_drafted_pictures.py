"""Drafts of contracts with pictures: recognized by names and types, never opened, and answered to the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deployment import Deployment
from line_cases import small_deployment

from dpsynth_platform.cli import main as cli
from dpsynth_platform.drafting.draft import drafted, drafted_pictures
from dpsynth_platform.drafting.pictures import is_folder_of_pictures, looks_like_pictures
from dpsynth_platform.drafting.questions import ask_gaps
from dpsynth_platform.foundation.errors import SourceError

OPEN = {"type": "image", "size": None, "channels": None, "accept_unscrubbed": None}
BROKEN = b"no picture, so that opening it would fail"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return small_deployment(tmp_path / "deployment")


def scans(directory: Path) -> Path:
    path = directory / "scans.parquet"
    pq.write_table(
        pa.table(
            {
                "person": ["P1", "P2"],
                "kind": ["bar", "disc"],
                "scan": pa.array([BROKEN] * 2, pa.binary()),
                "image": pa.array([{"bytes": BROKEN, "path": "a.png"}] * 2),
                "sound": pa.array([{"bytes": BROKEN, "path": "a.wav"}] * 2),
                "checksum": pa.array([BROKEN] * 2, pa.binary()),
                "image_url": ["x", "y"],
            }
        ),
        path,
    )
    return path


def folder(directory: Path, metadata: str | None = None) -> Path:
    path = directory / "drawings"
    for kind in ("bar", "disc"):
        (path / kind).mkdir(parents=True)
        (path / kind / "1.PNG").write_bytes(BROKEN)
    if metadata is not None:
        (path / "metadata.csv").write_text(metadata)
    return path


def test_bytes_that_are_named_as_pictures_are_proposed_as_ones(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted(deployment.settings, scans(tmp_path), "scans", "tests")
    columns = draft.contract["columns"]
    assert columns["scan"] == columns["image"] == OPEN
    assert columns["checksum"] == columns["sound.bytes"] == {"ignore": True}
    assert columns["image_url"] == {"type": None}
    assert not [name for name in columns if name.startswith("image.")]
    assert draft.contract["generate"] == {"method": "auto", "image": {}}
    faults = "\n".join(draft.gaps(deployment.settings.variables))
    for key in ("size", "channels", "accept_unscrubbed"):
        assert f"columns.scan.{key}: " in faults, key
    assert yaml.safe_load(draft.text())["columns"]["scan"] == OPEN


@pytest.mark.parametrize(
    ("name", "pictured"),
    [
        ("image", True),
        ("frontImage", True),
        ("IMG_1", True),
        ("x-ray photos", True),
        ("png", True),
        ("imagination", False),
        ("payload", False),
        ("topic", False),
        ("scandal", False),
    ],
)
def test_words_of_a_name_speak_of_pictures(name: str, pictured: bool) -> None:
    assert looks_like_pictures(name, pa.binary()) == pictured
    assert not looks_like_pictures(name, pa.string())


def test_a_directory_of_pictures_is_drafted_by_its_form(tmp_path: Path, deployment: Deployment) -> None:
    """Names of class folders are values of the data: none is in the draft."""
    path = folder(tmp_path)
    assert is_folder_of_pictures(path)
    draft = drafted_pictures(deployment.settings, path, "drawings", "tests")
    assert draft.contract["source"] == {"uri": str(path), "format": "images", "key": ["file_name"]}
    assert draft.contract["columns"] == {
        "file_name": {"type": "identifier"},
        "label": {"type": "categorical", "values": None},
        "image": OPEN,
    }
    assert "disc" not in draft.text()


def test_metadata_names_the_columns_and_its_rows_are_not_read(tmp_path: Path, deployment: Deployment) -> None:
    path = folder(tmp_path, "file_name,pupil,kind\nbar/1.PNG,Maria,secret\n")
    draft = drafted_pictures(deployment.settings, path, "drawings", "tests")
    assert draft.contract["columns"] == {
        "file_name": {"type": "identifier"},
        "pupil": {"type": None},
        "kind": {"type": None},
        "image": OPEN,
    }
    assert "Maria" not in draft.text() and "secret" not in draft.text()


def test_what_is_no_directory_of_pictures_is_refused(tmp_path: Path, deployment: Deployment) -> None:
    with pytest.raises(SourceError, match="is no directory; accepted with format images: a directory of pictures"):
        drafted_pictures(deployment.settings, scans(tmp_path), "scans", "tests")
    assert not is_folder_of_pictures(scans(tmp_path)) and not is_folder_of_pictures(tmp_path)
    with pytest.raises(SourceError):
        drafted_pictures(deployment.settings, folder(tmp_path, "name,kind\nMaria,secret\n"), "drawings", "tests")


def answering(answers: dict[str, str]) -> Callable[[str], str]:
    """Answers by the key that the last line of a question asks for, each once."""
    left = dict(answers)

    def ask(question: str) -> str:
        return left.pop(question.splitlines()[-1].partition(" (")[0], "")

    return ask


ANSWERS = {
    "description": "Drawings of pupils.",
    "owners": "a@example.org",
    "privacy.owner_columns": "pupil",
    "privacy.max_contributions": "2",
    "privacy.guarantee.epsilon": "1",
    "privacy.expected_units": "3000",
    "columns.kind": "bar, disc",
    "columns.kind.type": "categorical",
    "columns.kind.values": "bar, disc",
    "columns.image.size": "28 x 20",
    "columns.image.channels": "1",
    "columns.image.accept_unscrubbed": "They show strokes, and nobody wrote a name.",
}


@pytest.mark.parametrize("at_once", [False, True])
def test_answers_make_a_sound_contract(tmp_path: Path, deployment: Deployment, at_once: bool) -> None:
    path = folder(tmp_path, "file_name,pupil,kind\n")
    draft = drafted_pictures(deployment.settings, path, "drawings", None)
    answers: dict[str, Any] = dict(ANSWERS)
    if at_once:
        answers["columns"] = "kind = bar|disc; image = 28x20x1"
        for key in ("columns.kind.values", "columns.image.size", "columns.image.channels"):
            del answers[key]
    problems: list[str] = []
    made = ask_gaps(deployment.settings, draft, answering(answers), problems.append)
    assert problems == []
    assert made.gaps(deployment.settings.variables) == ()
    assert made.contract["columns"]["image"] == {
        "type": "image",
        "size": [28, 20],
        "channels": 1,
        "accept_unscrubbed": ANSWERS["columns.image.accept_unscrubbed"],
    }
    assert made.contract["columns"]["pupil"] == {"type": "identifier"}


def test_pictures_that_are_left_out_are_not_made(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted_pictures(deployment.settings, folder(tmp_path), "drawings", "tests")
    made = ask_gaps(deployment.settings, draft, answering({"columns": "image = ignore"}), lambda _: None)
    assert made.contract["generate"] == {"method": "auto"}


def test_a_size_that_none_has_is_asked_for_again(tmp_path: Path, deployment: Deployment) -> None:
    draft = drafted_pictures(deployment.settings, folder(tmp_path), "drawings", "tests")
    sizes = iter(["28", "0 x 28", "28, 20"])

    def ask(question: str) -> str:
        asked = question.splitlines()[-1]
        if asked.startswith("columns.image.size"):
            assert "The height and width of all pictures" in question
            return next(sizes, "")
        return ""

    problems: list[str] = []
    made = ask_gaps(deployment.settings, draft, ask, problems.append)
    assert made.contract["columns"]["image"]["size"] == [28, 20]
    assert len(problems) == 2 and all("height and width in pixels, such as [28, 28]" in line for line in problems)


def test_the_command_recognizes_a_directory_of_pictures(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in deployment.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        cli.app(["contract", "init", str(folder(tmp_path))])
    out = capfd.readouterr().out
    assert "columns.image.accept_unscrubbed: " in out
    made = yaml.safe_load((deployment.settings.contracts / "drawings.yaml").read_text())
    assert made["source"]["format"] == "images"
