"""Pictures that a public model behind an endpoint draws from synthetic texts (captions): post-processing.

What belongs here: requests with captions, the pictures of answers, and keeping what is drawn, so that drawing resumes.
What does not: writing captions (`synth.text`), and sending requests (`synth.endpoint_calls`).

A request holds a caption that a mechanism paid for, public words and the size: no picture, and nothing of a record. An
answer is decoded under the limits of sources, and nothing but its pixels is kept. No message and no log has a caption.

    POST {url}/images/random      {"model", "prompt", "width", "height"}
    answer                        {"data": [{"b64_json": a PNG, JPEG or WebP in base64}]}

The method is that of Wang, Lin et al. 2025 and of Kong and Syed 2025 (Ponomareva et al. 2026, section 4.5.2).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.sources.picture_files import PictureProblem
from dpsynth_platform.sources.pictures import Resize, decoded, encoded
from dpsynth_platform.synth.endpoint_access import Access, Endpoint, Transport
from dpsynth_platform.synth.endpoint_calls import MOST_FAILED, EndpointCalls, Request, UnusableAnswer
from dpsynth_platform.synth.images.foundations_endpoint import MOST_BYTES, answered_file

SETTING = "generate.text.pictures.endpoint"
BLOCK = 64
"""Captions that are drawn and stored together: an interruption loses at most so many pictures."""


@dataclass
class CaptionPainter:
    """Draws captions by a public model.

    Attributes:
        about: public words about the data, for the trial.
        style: public words before each caption; may be empty.
        resize: how an answer of another size gets the form.
    """

    endpoint: Endpoint
    access: Access
    form: ImageForm
    about: str
    style: str = ""
    resize: Resize = "crop"
    calls: EndpointCalls = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.calls = EndpointCalls(
            self.endpoint,
            lambda: self.access,
            SETTING,
            "its address, a model that it knows, and its key in the file that DPSYNTH_TEXT_KEY names",
            MOST_BYTES,
        )

    @classmethod
    def of(cls, contract: DataContract) -> CaptionPainter:
        """The painter that a contract declares.

        Raises:
            ContractError: it declares none.
            ConfigurationError: the deployment does not list the endpoint, or its key cannot be read.
        """
        drawn = contract.generate.drawn
        if drawn is None:
            raise ContractError(f"{contract.dataset}: generate.text.pictures: missing; accepted: with its endpoint")
        asked, resize = drawn.endpoint, contract.image.resize
        endpoint = Endpoint(asked.url, asked.model)
        transport = Transport(asked.timeout, asked.attempts, asked.at_once)
        return cls(
            endpoint,
            Access.of(endpoint, transport, Settings.from_environment(), SETTING),
            contract.image.form,
            contract.description,
            drawn.style or "",
            "crop" if resize == "refuse" else resize,  # a model's own sizes are few
        )

    def trial(self) -> None:
        """Requests a picture of public words, so that nothing is spent if the endpoint draws none.

        Raises:
            ConfigurationError: there was no picture.
        """
        if self.draw([self.about])[0] is None:
            raise ConfigurationError(
                f"{SETTING}: {self.endpoint.host} drew no picture on trial: {self.calls.failures}; accepted: an "
                "endpoint that answers images/random"
            )

    def draw(self, captions: Sequence[str]) -> list[bytes | None]:
        """A PNG file of each caption; None where there was no answer.

        Raises:
            ConfigurationError: the endpoint does not accept the key, the model or the address.
        """
        size = {"width": self.form.width, "height": self.form.height}
        prompts = (f"{self.style} {caption}".strip() for caption in captions)
        requests = [
            Request("images/random", {"model": self.endpoint.model, "prompt": words} | size) for words in prompts
        ]
        return self.calls.answers(requests, self._read)

    def _read(self, content: bytes | None) -> bytes:
        file = answered_file(content)
        try:
            return encoded(decoded(file, self.form, self.resize), "png")
        except PictureProblem as found:
            problem = found.kind
        raise UnusableAnswer(problem)  # outside: the decoder's exception is no context of this one


def drawing_terms(contract: DataContract) -> str:
    """Digest of what decides the drawn pictures: how requests are sent does not."""
    drawn = contract.generate.drawn
    assert drawn is not None  # noqa: S101  (asked for such contracts only)
    declared: list[Any] = [drawn.endpoint.url, drawn.endpoint.model, drawn.style, contract.image.resize]
    return canonical_digest([*declared, list(contract.image.form.shape), contract.image_column])


@dataclass(frozen=True)
class DrawnCaptions:
    """Synthetic rows without pictures in a directory, and the pictures that were drawn for them so far.

    Attributes:
        column: of the captions.
    """

    directory: Path
    column: str

    def write_rows(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
        """Stores the rows, in blocks; returns how many there are."""
        rows = pa.Table.from_batches(batches, schema).combine_chunks()
        place = str(private_directory(self.directory) / "rows.arrow")
        with pa.OSFile(place, "wb") as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_table(rows, max_chunksize=BLOCK)
        return int(rows.num_rows)

    def schema(self) -> pa.Schema:
        """Of the rows."""
        with pa.memory_map(str(self.directory / "rows.arrow")) as file:
            return pa.ipc.open_file(file).schema

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows in their order, at most `BLOCK` at a time."""
        with pa.memory_map(str(self.directory / "rows.arrow")) as file:
            found = pa.ipc.open_file(file)
            for number in range(found.num_record_batches):
                yield found.get_batch(number)

    def draw(self, painter: CaptionPainter, rows: int, most_missing: float, counted: Callable[[int, int], None]) -> int:
        """Draws what is not drawn yet; returns for how many captions there is no picture.

        Args:
            most_missing: the share of the rows that may have none.
            counted: called with the numbers of rows that were looked at, and of all.

        Raises:
            ConfigurationError: more have none, or the endpoint refuses. What is drawn is kept.
        """
        missing = done = 0
        for number, batch in enumerate(self.rows()):
            captions, pictures = batch.column(self.column).to_pylist(), self._kept(number, batch.num_rows)
            wanted = [row for row, known in enumerate(pictures) if known is None and (captions[row] or "").strip()]
            found = painter.draw([captions[row] for row in wanted]) if wanted else []
            if any(found):
                for row, picture in zip(wanted, found, strict=True):
                    pictures[row] = picture
                self._keep(number, pictures)
            missing, done = missing + pictures.count(None), done + batch.num_rows
            nothing_came = len(found) >= MOST_FAILED and not any(found)
            if missing > most_missing * rows or nothing_came:
                raise ConfigurationError(
                    f"{SETTING}: {painter.endpoint.host} drew no picture of {missing:,} among the first {done:,} of "
                    f"{rows:,} captions: {painter.calls.failures or 'they are blank'}; accepted: at most "
                    f"{most_missing:g} of all (most_missing). What is drawn is kept for a day, and nothing is paid "
                    "again: run again, and drawing continues"
                )
            counted(done, rows)
        return missing

    def pictured(self, schema: pa.Schema, column: str) -> Iterator[pa.RecordBatch]:
        """The rows that have a picture, with it."""
        for number, batch in enumerate(self.rows()):
            pictures = pa.array(self._kept(number, batch.num_rows), pa.binary())
            arrays = [pictures if field.name == column else batch.column(field.name) for field in schema]
            whole = pa.RecordBatch.from_arrays(arrays, [field.name for field in schema]).filter(pictures.is_valid())
            yield pa.RecordBatch.from_arrays(whole.columns, schema=schema)

    def _kept(self, block: int, rows: int) -> list[bytes | None]:
        """The pictures of a block; None where there is none yet."""
        try:
            content = self._file(block).read_bytes()
        except FileNotFoundError:
            return [None] * rows
        found: list[bytes | None] = pa.ipc.open_stream(content).read_all().column(0).to_pylist()
        return found

    def _keep(self, block: int, pictures: list[bytes | None]) -> None:
        table, written = pa.table({"picture": pa.array(pictures, pa.binary())}), io.BytesIO()
        with pa.ipc.new_stream(written, table.schema) as writer:
            writer.write_table(table)
        write_durably(self._file(block), written.getvalue())

    def _file(self, block: int) -> Path:
        return self.directory / f"block-{block:06d}.arrow"
