"""Pictures that a generative model behind an endpoint makes: from public words, and from pictures that it made before.

What belongs here: the documents of the two requests, and the pictures in answers. What does not: sending them
(`synth.endpoint_calls`), and the allowed endpoints with their keys (`synth.endpoint_access`).

**No private picture can get into a request.** A request consists of `PublicText` and of `MadePicture`, which only an
endpoint's answer makes (or the journal, of such an answer); pixels have another type, which is refused.

The endpoint sees words, its own pictures that noisy votes chose, and the times and numbers of requests. An answer is
decoded under limits of bytes and pixels, and kept as pixels of the declared form; nothing else of it is kept.

    POST {url}/images/random      {"model", "prompt", "width", "height"}
    POST {url}/images/variation   the same, "image" (PNG in base64) and "strength" (from 0 to 1)
    answer of both                {"data": [{"b64_json": a PNG, JPEG or WebP in base64}]}
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.synth.endpoint_access import Access, Endpoint
from dpsynth_platform.synth.endpoint_calls import EndpointCalls, Request, UnusableAnswer
from dpsynth_platform.synth.text.public_text import PublicText

MOST_SIDE = 2048
"""Pixels on a side of an answered picture; a larger one is dropped without being decoded."""
MOST_BYTES = 2**24
"""Of an answer."""
SETTING = "generate.image.evolution.endpoint"
_FORMATS = ("PNG", "JPEG", "WEBP")
_DECODED = "RGB"


@dataclass(frozen=True)
class MadePicture:
    """A picture that an endpoint made, of the declared form.

    Attributes:
        packed: its pixels, compressed; a sample's JSON form is this in base64.
    """

    packed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if type(self.packed) is not bytes:
            raise TypeError(f"a made picture of {type(self.packed).__name__}; accepted: what an endpoint answered")

    @classmethod
    def answered(cls, content: bytes, form: ImageForm) -> MadePicture:
        """Of an answer's encoded picture, resized to the form.

        Raises:
            UnusableAnswer: it is no picture of an accepted format and size.
        """
        from PIL import Image

        try:
            with Image.open(io.BytesIO(content), formats=_FORMATS) as found:
                if max(found.size) > MOST_SIDE:
                    raise UnusableAnswer("too large")
                mode = "L" if form.channels == 1 else _DECODED
                scaled = found.convert(mode).resize((form.width, form.height), Image.Resampling.BOX)
            return cls(zlib.compress(np.asarray(scaled, dtype=np.uint8).tobytes(), 9))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            raise UnusableAnswer("no picture") from None

    def pixels(self, form: ImageForm) -> Pixels:
        """Shape (height, width, channels)."""
        reader = zlib.decompressobj()
        content = reader.decompress(self.packed, form.values)
        return np.frombuffer(content, dtype=np.uint8).reshape(form.shape)

    def png(self, form: ImageForm) -> bytes:
        from PIL import Image

        pixels, written = self.pixels(form), io.BytesIO()
        Image.fromarray(pixels[..., 0] if form.channels == 1 else pixels).save(written, "PNG")
        return written.getvalue()


def answered_file(content: bytes | None) -> bytes:
    """The encoded picture in an endpoint's answer, unchecked. Raises `UnusableAnswer` if there is none."""
    try:
        return base64.b64decode(json.loads(content or b"")["data"][0]["b64_json"], validate=True)
    except (ValueError, LookupError, TypeError, RecursionError, binascii.Error):
        raise UnusableAnswer("garbage") from None


@dataclass
class EndpointFoundation:
    """An endpoint as an `ImageFoundation`.

    Attributes:
        words: what a picture of each label shows.
    """

    endpoint: Endpoint
    access: Access
    form: ImageForm
    words: Mapping[str, PublicText]
    name: str = field(default="endpoint", init=False)

    def __post_init__(self) -> None:
        if any(type(words) is not PublicText for words in self.words.values()):
            raise TypeError("a request's words; accepted: public texts")
        self._calls = EndpointCalls(
            self.endpoint,
            lambda: self.access,
            SETTING,
            "its address, a model that it knows, and its key in the file that the deployment names",
            MOST_BYTES,
        )

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many requests were repeated or had no answer, by reason."""
        return self._calls.dropped

    @property
    def digest(self) -> str:
        """Of the address, the model's name and the words; what answers there is not known."""
        words = sorted((label, words.words) for label, words in self.words.items())
        content = [self.endpoint.url, self.endpoint.model, words, list(self.form.shape)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def random(self, label: str, number: int, generator: np.random.Generator) -> list[MadePicture | None]:
        """Raises `ConfigurationError`: the endpoint does not accept the key, the model or the address."""
        return self._made([self._request("random", label)] * number)

    def variation(
        self,
        samples: Sequence[MadePicture],
        label: str,
        strength: float,
        generator: np.random.Generator,
        peers: Sequence[MadePicture] | None = None,
    ) -> list[MadePicture | None]:
        """See `random`."""
        if any(type(sample) is not MadePicture for sample in samples):
            raise TypeError("a request's picture; accepted: pictures that the endpoint made")
        images = (base64.b64encode(sample.png(self.form)).decode() for sample in samples)
        return self._made([self._request("variation", label, image=own, strength=strength) for own in images])

    def trial(self) -> None:
        """Requests a picture and a variation of it, so that nothing is spent if the endpoint makes none.

        Raises:
            ConfigurationError: there was no picture.
        """
        label, generator = next(iter(self.words)), np.random.default_rng()
        found = self.random(label, 1, generator)
        varied = self.variation([found[0]], label, 0.5, generator) if found[0] is not None else [None]
        if varied[0] is None:
            raise ConfigurationError(
                f"{SETTING}: {self.endpoint.host} made no picture on trial: {self._calls.failures}; accepted: an "
                "endpoint that answers images/random and images/variation"
            )

    def pixels(self, samples: Sequence[MadePicture]) -> Pixels:
        found = [sample.pixels(self.form) for sample in samples]
        return np.stack(found) if found else np.zeros((0, *self.form.shape), dtype=np.uint8)

    def to_json(self, sample: MadePicture) -> Any:
        if type(sample) is not MadePicture:
            raise TypeError("a sample; accepted: pictures that the endpoint made")
        return base64.b64encode(sample.packed).decode()

    def from_json(self, document: Any) -> MadePicture:
        return MadePicture(base64.b64decode(document))

    def _request(self, path: str, label: str, **more: Any) -> Request:
        document = {
            "model": self.endpoint.model,
            "prompt": self.words[label].words,
            "width": self.form.width,
            "height": self.form.height,
        }
        return Request(f"images/{path}", document | more)

    def _made(self, requests: Sequence[Request]) -> list[MadePicture | None]:
        return self._calls.answers(requests, lambda content: MadePicture.answered(answered_file(content), self.form))
