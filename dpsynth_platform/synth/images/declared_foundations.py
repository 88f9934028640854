"""The foundation that a contract declares for an evolution of pictures.

What belongs here: from a sealed description to a foundation, and its description in words. What does not: foundations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_platform.contracts.columns import Column, ImageColumn, TextColumn
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.image_generation import Glyphs
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, SourceError
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.sources.directories import data_files
from dpsynth_platform.sources.image_folders import NAMES, open_folder
from dpsynth_platform.sources.pictures import read_pictures
from dpsynth_platform.synth.endpoint_access import Access, Endpoint, Transport
from dpsynth_platform.synth.images.encoders import AveragedPixels, Encoder
from dpsynth_platform.synth.images.encoders_network import NetworkEncoder, trained
from dpsynth_platform.synth.images.foundations import ImageFoundation
from dpsynth_platform.synth.images.foundations_endpoint import SETTING, EndpointFoundation
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.images.simulators import Fonts
from dpsynth_platform.synth.images.simulators_shapes import Shapes
from dpsynth_platform.synth.images.simulators_table import PublicTable
from dpsynth_platform.synth.text.public_text import PublicText

IMAGE = "image"


@dataclass(frozen=True)
class DeclaredFoundation:
    """A foundation as sealed plans hold it. Public.

    Attributes:
        kind: `shapes`, `fonts`, `table` or `endpoint`.
        directory: of fonts or pictures; empty for others.
        classes: for each class, the characters, the table's labels or the words of a request; empty: any.
        label: the column of labels in a table's `metadata.csv`.
        encoder: file of the network by whose features pictures are near; empty: means over cells.
        endpoint: whose model makes pictures; None for others.
    """

    kind: str
    directory: str = ""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    label: str = ""
    encoder: str = ""
    endpoint: Endpoint | None = None

    @classmethod
    def of(cls, contract: DataContract, layout: ImageLayout) -> DeclaredFoundation:
        """The contract's foundation. Raises `ContractError` if a class has no character, or something is no class."""
        image = contract.generate.image
        evolution = None if image is None else image.evolution
        if evolution is None:
            raise ContractError(f"{contract.dataset}: generate.image.evolution: missing; accepted: with its foundation")
        encoder = evolution.encoder or ""
        for part, declared in (("fonts", "characters"), ("table", "labels"), ("endpoint", "words")):
            named = getattr(getattr(evolution, part), declared, {})
            unknown = [name for name in named if name not in layout.names]
            if unknown:
                raise ContractError(
                    f"{contract.dataset}: generate.image.evolution.{part}.{declared}: {unknown[0]!r} is no class; "
                    f"accepted: {', '.join(layout.names[:20])}{', ...' if layout.number > 20 else ''}"
                )
        if evolution.foundation == "fonts":
            glyphs = evolution.fonts or Glyphs()
            characters = {name: glyphs.characters.get(name, name) for name in layout.names}
            long = [name for name in layout.names if name not in glyphs.characters and len(name) != 1]
            if long:
                raise ContractError(
                    f"{contract.dataset}: generate.image.evolution.fonts.characters: none for the class {long[0]!r}, "
                    "which is no single character; accepted: characters for each class"
                )
            return cls("fonts", glyphs.directory, characters, encoder=encoder)
        if evolution.table is not None:
            table = evolution.table
            return cls("table", table.directory, dict(table.labels), table.label, encoder)
        if evolution.endpoint is not None:
            asked = evolution.endpoint
            about = contract.description.rstrip(".")
            own = {name: f"{about}: {name}" if name else about for name in layout.names}
            return cls(
                "endpoint",
                classes={name: [asked.words.get(name, words)] for name, words in own.items()},
                encoder=encoder,
                endpoint=Endpoint(asked.url, asked.model),
            )
        return cls("shapes", encoder=encoder)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DeclaredFoundation:
        endpoint = document.get("endpoint")
        return cls(**{**document, "endpoint": None if endpoint is None else Endpoint(**endpoint)})

    @property
    def paths(self) -> tuple[Path, ...]:
        """The directories and files that are read."""
        return tuple(Path(path) for path in (self.directory, self.encoder) if path)

    def features_by(self) -> Encoder:
        """The encoder. Raises `ConfigurationError` if its file is no trained network."""
        return NetworkEncoder.load(Path(self.encoder)) if self.encoder else AveragedPixels()

    def access(self, transport: Transport) -> Access | None:
        """How to reach the endpoint; None without one.

        Raises:
            ConfigurationError: the deployment does not list the endpoint, or its key cannot be read.
        """
        if self.endpoint is None:
            return None
        return Access.of(self.endpoint, transport, Settings.from_environment(), SETTING)

    def tried(self, form: ImageForm, transport: Transport) -> Access | None:
        """The same, after the endpoint has made two pictures on trial. Raises as `access`, and if none came."""
        access = self.access(transport)
        if access is not None:
            self._behind(form, access).trial()
        return access

    def opened(self, form: ImageForm, encoder: Encoder, access: Access | None = None) -> ImageFoundation[Any]:
        """The foundation, with its public material read.

        Args:
            access: to the endpoint, if there is one; not needed for the digest alone.

        Raises:
            ConfigurationError: the material is not there, or lacks a class.
        """
        if self.endpoint is not None:
            return self._behind(form, access or Access(""))
        if self.kind == "fonts":
            characters = {name: str(own) for name, own in self.classes.items()}
            return Fonts(Path(self.directory), form, characters)
        if self.kind == "table":
            return self._table(form, encoder)
        return Shapes(form)

    def _behind(self, form: ImageForm, access: Access) -> EndpointFoundation:
        assert self.endpoint is not None  # noqa: S101  (callers ask)
        return EndpointFoundation(
            self.endpoint, access, form, {name: PublicText(words[0]) for name, words in self.classes.items()}
        )

    def _table(self, form: ImageForm, encoder: Encoder) -> PublicTable:
        directory = Path(self.directory)
        columns: dict[str, Column] = {
            IMAGE: ImageColumn(
                type="image",
                size=[form.height, form.width],
                channels=1 if form.channels == 1 else 3,
                accept_unscrubbed="public pictures",
            ),
            self.label: TextColumn(type="text"),
        }
        problem = ""
        try:
            table = open_folder(directory, data_files(directory, NAMES), columns)
            labelled = self.label in table.schema.names
            pixels, labels = [], []
            for batch in table.batches([IMAGE, *([self.label] if labelled else [])]):
                found, good, _ = read_pictures(batch.column(IMAGE), form, "fit", raw=False)
                pixels.append(found)
                if labelled:
                    labels += [str(value) for value in batch.column(self.label).filter(good).to_pylist()]
        except (SourceError, OSError) as error:
            problem = str(error) if isinstance(error, SourceError) else "it cannot be read"
        if problem:
            raise ConfigurationError(f"public pictures in {directory}: {problem}; accepted: a readable directory")
        whole = np.concatenate(pixels) if pixels else np.zeros((0, *form.shape), np.uint8)
        known = set(labels)
        of = {name: list(own) for name, own in self.classes.items()} or {name: [name] for name in sorted(known)}
        return PublicTable(whole, labels if labelled else None, encoder, of)


def train_encoder(contract: DataContract) -> NetworkEncoder:
    """A network that tells the random pictures of a contract's foundation apart by their class: public pictures only.

    Raises:
        ContractError: the contract declares no evolution, or there is one class.
        ConfigurationError: the foundation's material is not there.
    """
    layout = ImageLayout.of(contract)
    declared = DeclaredFoundation.of(contract, layout)
    if layout.number < 2 or declared.kind not in ("fonts", "table"):
        raise ContractError(
            f"{contract.dataset}: generate.image.evolution.encoder: {declared.kind} tell no {layout.number} classes "
            "apart; accepted: fonts or a table, and at least two classes"
        )
    return trained(declared.opened(layout.form, AveragedPixels()), layout.names)
