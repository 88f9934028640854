"""Public bases: what others made, and a contract's plan starts from.

What belongs here: the list of a contract's bases, for lineage and clearance. What does not: what lineage knows of them
(`lineage.survey`), and the declarations themselves, which are keys of `generate`.

To add one, yield it in `_declared`. Events then list it, and clearance looks for what it was made from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.image_generation import Glyphs
from dpsynth_platform.contracts.methods import EVOLVED_METHODS
from dpsynth_platform.contracts.text_generation import UNIVERSAL_TOPICS

BaseKind = Literal["checkpoint", "endpoint", "pictures", "table", "lookup", "fonts", "encoder", "topics", "package"]
SENTENCE_ENCODER = "all-MiniLM-L6-v2"

_FONTS = "they are fonts"
_ENCODER = "it was trained on pictures of its foundation, which is a base itself"
_PACKAGE = "it is installed with the platform"


@dataclass(frozen=True)
class PublicBase:
    """Something public that a plan starts from. Public.

    Attributes:
        kind: `checkpoint`: what training starts from, or the model of a text's endpoint. `endpoint`: a model that makes
            pictures elsewhere. `pictures`, `table`, `fonts`: data. `lookup`: a public one of linked tables, in their
            private source. `encoder`, `topics`: a model that only orders or compares. `package`: a part of an installed
            package.
        name: path, URI or product's name; of an endpoint's model its name alone, since hosts may serve the same model;
            of a lookup the source's path and the table's name, whatever kind of file it is.
        why: why it is public, by the contract; None where the contract does not say it.
        step: the step that reads it.
    """

    kind: BaseKind
    name: str
    why: str | None = None
    step: Literal["model", "synthetic"] = "model"

    @property
    def is_writer(self) -> bool:
        """Whether it is a model that writes or draws, and so may repeat what it was trained on.

        Its origin must be in lineage, or a person declares it public in the ledger: a contract's reason is not enough.
        """
        return self.kind in ("checkpoint", "endpoint")


def bases_of(generate: Generate) -> tuple[PublicBase, ...]:
    """All public bases of a contract's `generate`, each once."""
    return tuple(dict.fromkeys(_declared(generate)))


def lookups_of(uri: str, tables: Mapping[str, Any]) -> Iterator[PublicBase]:
    """The public ones of linked tables at a place: each is released as it is."""
    for name, table in tables.items():
        if table.public is not None:
            yield PublicBase("lookup", f"{uri.rstrip('/')}/{name}", table.public)


def _declared(generate: Generate) -> Iterator[PublicBase]:
    text, image = generate.text, generate.image
    if generate.public is not None:
        yield PublicBase("table", generate.public.uri, generate.public.why)
    if generate.checkpoint is not None:
        finetune = None if image is None else image.finetune
        yield PublicBase("checkpoint", generate.checkpoint, None if finetune is None else finetune.public)
    if text is not None:
        if text.topics is not None and text.topics.model != UNIVERSAL_TOPICS:
            yield PublicBase("topics", text.topics.model, text.topics.public)
        if generate.method in EVOLVED_METHODS or text.topics is not None or text.resample is not None:
            yield PublicBase("package", SENTENCE_ENCODER, _PACKAGE)
        if text.pictures is not None:
            yield PublicBase("endpoint", text.pictures.endpoint.model, step="synthetic")
    if image is not None:
        for part in (image.evolution, image.diffusion):
            if part is not None and part.table is not None:
                yield PublicBase("pictures", part.table.directory, part.table.public)
    evolution = None if image is None else image.evolution
    if evolution is not None:
        if evolution.foundation == "fonts":
            yield PublicBase("fonts", (evolution.fonts or Glyphs()).directory, _FONTS)
        if evolution.endpoint is not None:
            yield PublicBase("endpoint", evolution.endpoint.model)
        if evolution.encoder is not None:
            yield PublicBase("encoder", evolution.encoder, _ENCODER)
