"""The demonstration of pictures for real, with few and made-up ones: where it says that pictures are, they are."""

from __future__ import annotations

import base64
import gzip
import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
import yaml
from inside import InProcessAccelerator
from line_cases import NO_CHANCE
from PIL import Image

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.demo import images as demonstration_images
from dpsynth_platform.demo.line import run_demo
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.settings import PACKAGE_ROOT, Settings
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.quality.images import classifier
from dpsynth_platform.synth.images import moments_measuring

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
FEW = 900
SIDE = demonstration_images.SIDE


def few_pictures(directory: Path) -> None:
    """A bar in one of ten places, by the label."""
    random = np.random.default_rng(4)
    labels = random.integers(0, 10, FEW)
    columns = np.arange(SIDE)
    lit = np.abs(columns - (2.7 * labels + 1)[:, None]) < 1.5
    pixels = np.repeat((lit * random.integers(150, 256, (FEW, 1)))[:, None, :], SIDE, axis=1).astype(np.uint8)
    directory.mkdir()
    for name, content in {
        "train-images-idx3-ubyte.gz": struct.pack(">4I", 0x0803, FEW, SIDE, SIDE) + pixels.tobytes(),
        "train-labels-idx1-ubyte.gz": struct.pack(">2I", 0x0801, FEW) + labels.astype(np.uint8).tobytes(),
    }.items():
        (directory / name).write_bytes(gzip.compress(content))


def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The demonstration's deployment, sized for few pictures."""
    few_pictures(tmp_path / "installed")
    files = sorted((tmp_path / "installed").iterdir())
    monkeypatch.setattr(demonstration_images, "DIRECTORY", tmp_path / "installed")
    monkeypatch.setattr(demonstration_images, "SHA256", {file.name: digest_file(file) for file in files})
    monkeypatch.setattr(demonstration_images, "PICTURES", FEW)
    monkeypatch.setattr(classifier, "STEPS", 10)
    for number in ("DRAWN", "FEW_DRAWN"):
        monkeypatch.setattr(moments_measuring, number, 400)
    deploy = tmp_path / "deploy"
    for part in ("contracts/images.yaml", "families/images.yaml", "dagster.yaml"):
        (deploy / part).parent.mkdir(parents=True, exist_ok=True)
        (deploy / part).write_bytes((PACKAGE_ROOT / "deploy" / part).read_bytes())
    file = deploy / "contracts" / "images.yaml"
    contract = yaml.safe_load(file.read_text())
    contract["privacy"]["expected_units"] = 600
    contract["generate"]["rows"] = 60
    contract["audit"] |= {"canaries": 40} | NO_CHANCE
    file.write_text(yaml.safe_dump(contract))
    for name in ("DPSYNTH_HOME", "DPSYNTH_DEPLOY", "DPSYNTH_LEDGER_URL", "DPSYNTH_USER", "DAGSTER_HOME"):
        monkeypatch.setenv(name, "")  # so that what the runs export is taken back
    environment = {"DPSYNTH_HOME": tmp_path / "home", "DPSYNTH_DEPLOY": deploy, "DPSYNTH_USER": "runner"}
    return Settings.from_environment({name: str(value) for name, value in environment.items()})


class Heard:
    """Takes down what people would see."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def print(self, text: str = "") -> None:
        self.words.append(text)

    def heading(self, text: str) -> None:
        self.print(text)

    def table(self, header, rows) -> None:
        self.words += [" ".join(row) for row in rows]


@dataclass(frozen=True)
class Shown:
    """The demonstration's deployment after it, what it returned, and what it said."""

    settings: Settings
    summary: dict[str, Any]
    said: str

    @property
    def release(self) -> Path:
        return Path(self.summary["release"])

    @property
    def nearest(self) -> Path:
        """The drawing with real pictures."""
        (found,) = self.settings.restricted.rglob("nearest.svg")
        return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    def code_location(used: Settings) -> dg.Definitions:
        accelerator = InProcessAccelerator(device="cpu", logs=str(used.restricted / "logs"))
        return build_definitions(used, accelerator=accelerator)

    heard = Heard()
    with pytest.MonkeyPatch.context() as patches:
        settings = small(tmp_path_factory.mktemp("demonstration"), patches)
        summary = run_demo(settings, "images", heard, in_process=code_location)
        yield Shown(settings, summary, "\n".join(heard.words))


def test_it_ends_with_a_verified_release_and_says_where_its_pictures_are(shown: Shown) -> None:
    assert shown.summary["verified"] and len(shown.summary["new_entries"]) == 1
    assert sum(batch.num_rows for batch in read_table(shown.release / "data")) == 60
    sheet, page = shown.release / "pictures.png", shown.release / "dossier.html"
    for file in (sheet, page, shown.nearest):
        assert file.is_file() and f": {file}" in shown.said
    assert min(Image.open(io.BytesIO(sheet.read_bytes())).size) >= SIDE


def test_real_pictures_are_in_the_source_and_in_the_restricted_zone_only(shown: Shown) -> None:
    """In no release, and not in Dagster's event log or anything else that an engineer reads."""
    drawn = re.search(r"base64,([A-Za-z0-9+/]+)", shown.nearest.read_text())
    assert drawn is not None
    middle = len(drawn[1]) // 2
    source = pa.Table.from_batches(read_table(shown.settings.home / "sources" / "images"))["image"].to_pylist()
    sought = [drawn[1][middle : middle + 80].encode(), *source, *map(base64.b64encode, source[:100])]
    seen = [
        file.read_bytes()
        for file in shown.settings.home.rglob("*")
        if file.is_file()
        and not file.is_relative_to(shown.settings.restricted)
        and not file.is_relative_to(shown.settings.home / "sources")
    ]
    assert any(b"ASSET_MATERIALIZATION" in content for content in seen)  # Dagster's event log is among them
    everything = b"\n".join(seen)
    assert not [number for number, mark in enumerate(sought) if mark in everything]
