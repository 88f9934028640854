"""An endpoint that makes pictures well, badly or not at all; and what its requests hold."""

import base64
import io
import json
import zlib

import numpy as np
import pytest
from endpoint_cases import serving

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import endpoint_calls
from dpsynth_platform.synth.endpoint_access import Access, Endpoint, Transport
from dpsynth_platform.synth.endpoint_calls import UnusableAnswer
from dpsynth_platform.synth.evolution.journal import EvolutionJournal
from dpsynth_platform.synth.evolution.loop import Rounds
from dpsynth_platform.synth.evolution.votes import noisy_votes
from dpsynth_platform.synth.images import foundations_endpoint
from dpsynth_platform.synth.images.encoders import AveragedPixels
from dpsynth_platform.synth.images.evolution import draw, evolve, planned
from dpsynth_platform.synth.images.evolution_votes import ImageVoters
from dpsynth_platform.synth.images.foundations_endpoint import EndpointFoundation, MadePicture
from dpsynth_platform.synth.text.public_text import PublicText

image = pytest.importorskip("PIL.Image")

FORM = ImageForm(6, 8, 3)
WORDS = {"cat": PublicText("a grey cat"), "dog": PublicText("a brown dog")}
SECRET = np.random.default_rng(3).integers(0, 256, (40, *FORM.shape), dtype=np.uint8)


def encoded(pixels, kind="PNG"):
    written = io.BytesIO()
    image.fromarray(pixels).save(written, kind)
    return written.getvalue()


def answer(content):
    return json.dumps({"data": [{"b64_json": base64.b64encode(content).decode()}]}).encode()


def painted(server, document, number):
    """A fictional model: bright pictures of cats, and pictures near to those that it is asked to vary."""
    random = np.random.default_rng(number)
    if "image" in document:
        found = np.asarray(image.open(io.BytesIO(base64.b64decode(document["image"])))).astype(int)
        found = found + random.integers(-20, 21, found.shape) * document["strength"]
    else:
        found = random.integers(0, 128, FORM.shape) + 100 * ("cat" in document["prompt"])
    return answer(encoded(np.clip(found, 0, 255).astype(np.uint8)))


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(endpoint_calls, "FIRST_WAIT", 0.001)
    with serving() as found:
        found.answer = lambda document, number: painted(found, document, number)
        yield found


def foundation(server, key="", **changes):
    transport = Transport(**({"seconds": 120.0, "at_once": 1, "attempts": 2} | changes))
    return EndpointFoundation(Endpoint(server.url, "painter"), Access(key, transport), FORM, WORDS)


def test_what_is_asked_and_answered(server):
    made = foundation(server, key="top-secret")
    samples = made.random("cat", 3, np.random.default_rng())
    varied = made.variation(samples, "cat", 0.25, np.random.default_rng())
    path, authorization, document = server.asked[0]
    assert (path, authorization) == ("/v1/images/random", "Bearer top-secret")
    assert document == {"model": "painter", "prompt": "a grey cat", "width": 8, "height": 6}
    path, _, document = server.asked[3]
    assert path == "/v1/images/variation"
    sent = np.asarray(image.open(io.BytesIO(base64.b64decode(document.pop("image")))))
    assert document == {"model": "painter", "prompt": "a grey cat", "width": 8, "height": 6, "strength": 0.25}
    pixels = made.pixels(samples)
    assert (sent == pixels[0]).all()
    assert pixels.shape == (3, *FORM.shape)
    assert 0 < np.abs(made.pixels(varied).astype(int) - pixels).max() <= 5
    assert not made.dropped
    again = [made.from_json(json.loads(json.dumps(made.to_json(sample)))) for sample in samples]
    assert again == samples
    assert made.pixels([]).shape == (0, *FORM.shape)
    assert "top-secret" not in repr(made)
    made.trial()
    assert len(made.digest) == 64


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "garbage"),
        (b'{"data": []}', "garbage"),
        (b'{"data": [{"b64_json": 7}]}', "garbage"),
        (b'{"data": [{"b64_json": "%%%"}]}', "garbage"),
        (answer(b"no picture"), "no picture"),
        (answer(b""), "no picture"),
        (answer(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "no picture"),
        (answer(encoded(np.zeros((4, 4, 3), np.uint8), "GIF")), "no picture"),
        (answer(encoded(np.zeros((4, 4, 3), np.uint8))[:-30]), "no picture"),
        (answer(encoded(np.zeros((2, 3000), np.uint8))), "too large"),
    ],
)
def test_a_bad_answer_is_dropped_and_the_request_repeated(server, content, reason):
    server.coming.append((200, {}, content))
    made = foundation(server)
    assert made.random("dog", 1, np.random.default_rng())[0] is not None
    assert made.dropped == {reason: 1}
    server.coming.extend([(200, {}, content)] * 2)
    with pytest.raises(ConfigurationError, match=f"no picture on trial: .*{reason}"):
        foundation(server).trial()


def test_pictures_of_other_sizes_and_kinds_get_the_form(server):
    for pixels, kind in ((np.full((60, 20), 90, np.uint8), "PNG"), (np.full((3, 3, 4), 90, np.uint8), "WEBP")):
        server.coming.append((200, {}, answer(encoded(pixels, kind))))
        made = foundation(server)
        found = made.pixels(made.random("dog", 1, np.random.default_rng()))
        assert found.shape == (1, *FORM.shape)
        assert np.abs(found.astype(int) - 90).max() <= 3


def test_a_small_answer_that_decodes_to_much_takes_no_memory():
    import tracemalloc

    bomb = _bomb(60_000)
    tracemalloc.start()
    try:
        with pytest.raises(UnusableAnswer):
            MadePicture.answered(bomb, FORM)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def _bomb(side):
    """The header of a PNG of many pixels."""
    import struct

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")


def test_a_journal_s_picture_cannot_unpack_to_more_than_the_form():
    import tracemalloc

    packed = zlib.compress(bytes(2**26))
    tracemalloc.start()
    try:
        assert MadePicture(packed).pixels(FORM).shape == FORM.shape
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("wrong", [SECRET[0], SECRET, SECRET.tobytes(), [SECRET[0]], PublicText("x")])
def test_a_private_picture_cannot_get_into_a_request(server, wrong):
    made = foundation(server)
    with pytest.raises(TypeError):
        made.variation([wrong], "cat", 0.5, np.random.default_rng())
    with pytest.raises(TypeError):
        made.to_json(wrong)
    if not isinstance(wrong, bytes):
        with pytest.raises(TypeError):
            MadePicture(wrong)
    assert not server.asked
    with pytest.raises(TypeError, match="public texts"):
        EndpointFoundation(Endpoint(server.url, "m"), Access(""), FORM, {"cat": "words"})


def test_requests_of_a_whole_evolution_hold_public_words_and_own_pictures_only(server, tmp_path):
    encoder, answered = AveragedPixels(3), set()
    real = server.answer

    def remembered(document, number):
        content = real(document, number)
        answered.add(json.loads(content)["data"][0]["b64_json"])
        return content

    server.answer = remembered
    made = foundation(server, at_once=4)
    guarantee = Guarantee(10.0, 1e-5, "user", "add-or-remove", 1)
    plan = planned(guarantee, list(WORDS), 40, made.digest, encoder.digest, rounds=Rounds(3, 1), population=3)
    voters = ImageVoters.of(SECRET, np.arange(40) % 2, np.arange(40), encoder)
    with EvolutionJournal.opened(tmp_path, "p" * 64, resuming=False) as journal:
        survivors = evolve(
            plan,
            lambda features, groups: noisy_votes(voters, features, groups, plan.sigma),
            made,
            encoder,
            journal,
        )
    assert draw(plan, survivors, "cat", 5, made, np.random.default_rng()).shape == (5, *FORM.shape)
    private = {SECRET[at].tobytes() for at in range(40)}
    own = {np.asarray(image.open(io.BytesIO(base64.b64decode(text)))).tobytes() for text in answered}
    sent = 0
    for _, _, document in server.asked:
        assert set(document) <= {"model", "prompt", "width", "height", "image", "strength"}
        assert document["prompt"] in ("a grey cat", "a brown dog")
        if "image" in document:
            pixels = np.asarray(image.open(io.BytesIO(base64.b64decode(document["image"])))).tobytes()
            sent += 1
            assert pixels in own
            assert pixels not in private
    assert sent > 10


def test_a_wrong_key_stops_everything_and_is_not_shown(server):
    server.coming.append((401, {}, b"top-secret"))
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1 answers with status 401") as refused:
        foundation(server, key="top-secret").random("cat", 2, np.random.default_rng())
    assert "top-secret" not in str(refused.value)
    assert foundations_endpoint.SETTING in str(refused.value)
