"""Captions that an endpoint draws well, badly or not at all, block by block; and what is kept of it."""

import base64
import io
import json

import numpy as np
import pyarrow as pa
import pytest
from endpoint_cases import serving

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.sources.pictures import decoded
from dpsynth_platform.synth import endpoint_calls
from dpsynth_platform.synth.endpoint_access import Access, Endpoint, Transport
from dpsynth_platform.synth.images.captions import BLOCK, CaptionPainter, DrawnCaptions

image = pytest.importorskip("PIL.Image")

FORM = ImageForm(6, 8, 3)
SCHEMA = pa.schema([("kind", pa.string()), ("photo", pa.binary()), ("caption", pa.string())])


def answer(content):
    return json.dumps({"data": [{"b64_json": base64.b64encode(content).decode()}]}).encode()


def painting(value, size=(8, 6)):
    written = io.BytesIO()
    image.new("RGB", size, (value, value, value)).save(written, "PNG")
    return written.getvalue()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(endpoint_calls, "FIRST_WAIT", 0.001)
    with serving() as found:
        found.answer = lambda document, number: answer(painting(int(document["prompt"].split()[-1])))
        yield found


def painter(server, **changes):
    access = Access("top-secret", Transport(**({"seconds": 60.0, "at_once": 1, "attempts": 1} | changes)))
    return CaptionPainter(Endpoint(server.url, "painter"), access, FORM, "photographs 7", "A photograph:")


def captions_in(directory, captions):
    found = DrawnCaptions(directory, "caption")
    rows = pa.table([["k"] * len(captions), pa.nulls(len(captions), pa.binary()), captions], schema=SCHEMA)
    assert found.write_rows(SCHEMA, iter(rows.to_batches(max_chunksize=50))) == len(captions)
    return found


def values(found):
    table = pa.Table.from_batches(found.pictured(SCHEMA, "photo"), SCHEMA)
    means = [int(decoded(file, FORM, "refuse").mean()) for file in table["photo"].to_pylist()]
    return list(zip(table["caption"].to_pylist(), means, strict=True))


def draw(found, painter, rows, most_missing=0.0):
    return found.draw(painter, rows, most_missing, lambda done, total: None)


def test_a_request_holds_a_caption_public_words_and_a_size(server):
    made = painter(server)
    (file,) = made.draw(["number 90"])
    assert server.asked == [
        (
            "/v1/images/random",
            "Bearer top-secret",
            {"model": "painter", "prompt": "A photograph: number 90", "width": 8, "height": 6},
        )
    ]
    assert decoded(file, FORM, "refuse").shape == FORM.shape
    made.trial()
    assert server.asked[-1][2]["prompt"] == "A photograph: photographs 7"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "garbage"),
        (answer(b"no picture"), "format-not-accepted"),
        (answer(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "format-not-accepted"),
        (answer(painting(9)[:-30]), "truncated"),
        (answer(painting(9) + b"PK\x03\x04 more"), "trailing-bytes"),
    ],
)
def test_a_bad_answer_is_no_picture(server, content, reason):
    server.coming.append((200, {}, content))
    made = painter(server)
    assert made.draw(["number 9"]) == [None]
    assert reason in made.calls.failures
    server.coming.append((200, {}, content))
    with pytest.raises(ConfigurationError, match="drew no picture on trial"):
        made.trial()


def test_pictures_of_another_size_get_the_form(server):
    server.coming.append((200, {}, answer(painting(90, (64, 64)))))
    (file,) = painter(server).draw(["number 90"])
    assert (decoded(file, FORM, "refuse") == 90).all()


def test_drawing_resumes_where_it_stopped(server, tmp_path):
    captions = [f"number {number % 250}" for number in range(2 * BLOCK + 22)]
    found = captions_in(tmp_path, captions)
    server.breaks = lambda document: len(server.asked) > BLOCK + 10
    with pytest.raises(ConfigurationError, match=f"no picture of {BLOCK - 10} among the first {2 * BLOCK} of"):
        draw(found, painter(server), len(captions))
    server.breaks = lambda document: False
    server.asked.clear()
    assert draw(DrawnCaptions(tmp_path, "caption"), painter(server), len(captions)) == 0
    asked = [document["prompt"].removeprefix("A photograph: ") for *_, document in server.asked]
    assert asked == captions[BLOCK + 10 :]
    server.asked.clear()
    assert draw(found, painter(server), len(captions)) == 0 and not server.asked
    assert values(found) == [(caption, int(caption.split()[-1])) for caption in captions]


def test_a_few_captions_without_a_picture_leave_their_rows_out(server, tmp_path):
    captions = [*(f"number {number}" for number in range(40)), "  ", None, "number 77"]
    found = captions_in(tmp_path, captions)
    server.breaks = lambda document: document["prompt"].endswith(" 20")
    with pytest.raises(ConfigurationError, match=r"no picture of 3 among .*; accepted: at most 0\.05 of all"):
        draw(found, painter(server), len(captions), 0.05)
    server.asked.clear()
    assert draw(found, painter(server), len(captions), 0.1) == 3
    assert len(server.asked) == 1, "a blank caption is never sent"
    assert [value for _, value in values(found)] == [*(number for number in range(40) if number != 20), 77]


def test_an_endpoint_that_draws_nothing_is_not_asked_for_ever(server, tmp_path):
    captions = [f"number {number}" for number in range(100)] * 5
    found = captions_in(tmp_path, captions)
    server.breaks = lambda document: True
    with pytest.raises(ConfigurationError, match=f"no picture of {BLOCK} among the first {BLOCK} of 500"):
        draw(found, painter(server), len(captions), 0.9)
    assert len(server.asked) == endpoint_calls.MOST_FAILED


def test_a_wrong_key_stops_and_is_not_shown(server, tmp_path):
    found = captions_in(tmp_path, ["number 1"])
    server.coming.append((401, {}, b"top-secret"))
    with pytest.raises(
        ConfigurationError, match=r"generate\.text\.pictures\.endpoint: 127\.0\.0\.1 .* status 401"
    ) as no:
        draw(found, painter(server), 1)
    assert "top-secret" not in str(no.value) and "number" not in str(no.value)
    assert "top-secret" not in repr(painter(server))


def test_no_message_or_log_holds_a_caption(server, tmp_path, caplog):
    caplog.set_level(0)
    found = captions_in(tmp_path, [f"zanzibar {number}" for number in range(3)])
    server.breaks = lambda document: True
    with pytest.raises(ConfigurationError) as failed:
        draw(found, painter(server), 3)
    assert "zanzibar" not in str(failed.value) + caplog.text
    assert np.all([request["prompt"].startswith("A photograph: zanzibar") for *_, request in server.asked])
