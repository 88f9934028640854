"""An OpenAI-compatible endpoint that answers well, badly or not at all."""

import gzip
import json
import logging
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from endpoint_cases import completion, serving

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth import endpoint_calls as endpoints
from dpsynth_platform.synth.endpoint_access import Access, Endpoint, Transport, read_key
from dpsynth_platform.synth.endpoint_calls import MOST_FAILED
from dpsynth_platform.synth.text.endpoints import CHARACTERS_PER_TOKEN, EndpointWriter
from dpsynth_platform.synth.text.public_text import Prompt, PublicText
from dpsynth_platform.synth.text.sampling import Sampling

PROMPT = Prompt(PublicText("Write."), PublicText("a text about parcels"))


@pytest.fixture
def server():
    with serving() as found:
        yield found


@pytest.fixture
def waits(monkeypatch):
    """Seconds that were waited for, without waiting; by this module alone: others' threads sleep as they should."""
    found = []
    monkeypatch.setattr(endpoints, "time", SimpleNamespace(**vars(time) | {"sleep": found.append}))
    return found


def writer(server, key="", **changes):
    transport = Transport(**({"seconds": 120.0, "at_once": 1} | changes))
    endpoint = Endpoint(server.url, "some-model")
    return EndpointWriter(endpoint, Access(key, transport), Sampling(temperature=0.7, top_p=0.9), 40)


def test_what_is_asked_and_answered(server):
    made = writer(server, key="top-secret", at_once=4)
    answers = made.write([PROMPT] * 5)
    assert all(answer.words.startswith("the parcel") or "report" in answer.words for answer in answers)
    path, authorization, document = server.asked[0]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer top-secret")
    assert document == {
        "model": "some-model",
        "messages": [
            {"role": "system", "content": "Write."},
            {"role": "user", "content": "a text about parcels"},
        ],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 40,
    }
    assert not made.dropped
    assert "top-secret" not in repr(made)
    assert writer(server).write([]) == []


@pytest.mark.parametrize(
    ("coming", "reason"),
    [
        ((500, {}, b"oops"), "server error"),
        ((503, {"Retry-After": "3"}, b""), "server error"),
        ((429, {"Retry-After": "7"}, b"{}"), "rate limit"),
        ((200, {}, b"<html>"), "garbage"),
        ((200, {}, b'{"choices": []}'), "garbage"),
        ((200, {}, b'{"choices": [{"message": {"content": null}}]}'), "garbage"),
        ((200, {}, b'{"choices": [{"message": {"content": "\\ud800"}}]}'), "garbage"),
        ((200, {}, completion("  \n ")), "garbage"),
        ((200, {}, b"[" * 100_000), "garbage"),
        ((200, {}, completion("long" * 2**20)), "garbage"),
        ((200, {}, completion("x" * (CHARACTERS_PER_TOKEN * 40 + 1))), "too long"),
        ((200, {"Content-Encoding": "gzip"}, gzip.compress(completion("a text"))), "garbage"),
    ],
)
def test_a_request_that_fails_is_repeated(server, waits, coming, reason):
    server.coming.append(coming)
    made = writer(server)
    (answer,) = made.write([PROMPT])
    assert answer is not None
    assert made.dropped == {reason: 1}
    assert len(server.asked) == 2
    asked = float(coming[1].get("Retry-After", 0))
    assert waits == [max(asked, endpoints.FIRST_WAIT)]


def test_an_endpoint_that_says_nothing_is_waited_for_no_longer_than_that(server, monkeypatch):
    server.coming.append(600.0)
    made = writer(server, seconds=0.5)

    def answer_now(_):
        """The second request has time, so that its answer comes however slow the machine is."""
        server.coming.clear()
        object.__setattr__(made, "access", Access("", Transport(seconds=120.0)))

    monkeypatch.setattr(endpoints, "time", SimpleNamespace(**vars(time) | {"sleep": answer_now}))
    assert made.write([PROMPT])[0] is not None
    assert made.dropped == {"timeout": 1}


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_an_answer_that_trickles_ends_with_its_time(waits, begin):
    """A byte now and then, of headers or of content, resets no clock."""
    listener = socket.create_server(("127.0.0.1", 0))

    def trickle():
        connection, _ = listener.accept()
        with connection:
            for part in (begin, *[b"a"] * 6000):  # for five minutes
                try:
                    connection.sendall(part)
                except OSError:
                    return
                stopped.wait(0.05)

    stopped = threading.Event()
    thread = threading.Thread(target=trickle)
    thread.start()
    began = time.monotonic()
    access = Access("", Transport(seconds=0.5, attempts=1))
    port = listener.getsockname()[1]
    made = EndpointWriter(Endpoint(f"http://127.0.0.1:{port}/v1", "some-model"), access, Sampling(), 40)
    try:
        assert made.write([PROMPT]) == [None]
        assert time.monotonic() - began < 120
    finally:
        stopped.set()
        thread.join()
        listener.close()
    assert made.dropped["given up"] == 1


def test_of_a_packed_answer_nothing_is_unpacked(server, waits):
    import tracemalloc

    bomb = gzip.compress(bytes(2**26))
    server.coming.append((200, {"Content-Encoding": "gzip"}, bomb))
    made = writer(server, attempts=1)
    tracemalloc.start()
    try:
        assert made.write([PROMPT]) == [None]
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_an_endpoint_that_never_answers_is_not_asked_for_ever(server, waits):
    server.breaks = lambda document: True
    made = writer(server, attempts=2)
    assert made.write([PROMPT] * 100) == [None] * 100
    assert len(server.asked) == 2 * MOST_FAILED
    assert made.dropped == {"server error": 2 * MOST_FAILED, "given up": MOST_FAILED, "not asked": 100 - MOST_FAILED}
    server.breaks = lambda document: False
    assert made.write([PROMPT])[0] is not None


def test_an_endpoint_that_always_fails_is_given_up(server, waits):
    server.coming.extend([(500, {}, b"")] * 3)
    made = writer(server, attempts=3)
    found = made.write([PROMPT, PROMPT])
    assert found[0] is None
    assert found[1] is not None
    assert made.dropped == {"server error": 3, "given up": 1}
    assert waits == [0.5, 1.0]


@pytest.mark.parametrize("asked", ["Mon, 01 Jan 2035 00:00:00 GMT", "inf", "nan", "-5", "1e9"])
def test_no_endpoint_decides_how_long_a_run_waits(server, waits, asked):
    server.coming.append((429, {"Retry-After": asked}, b""))
    assert writer(server).write([PROMPT])[0] is not None
    assert waits[0] in (endpoints.FIRST_WAIT, endpoints.LONGEST_WAIT)


def test_a_request_that_is_rejected_is_not_repeated(server, waits):
    server.coming.append((400, {}, b'{"error": "content filter"}'))
    made = writer(server)
    assert made.write([PROMPT]) == [None]
    assert made.dropped == {"rejected": 1}
    assert waits == []


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_address_stops_everything_and_says_so(server, status):
    server.coming.append((status, {}, b"prompt: a text about parcels, key: top-secret"))
    with pytest.raises(ConfigurationError, match=f"127.0.0.1 answers with status {status}") as refused:
        writer(server, key="top-secret").write([PROMPT])
    assert "top-secret" not in str(refused.value)
    assert "parcels" not in str(refused.value)


def test_nobody_there(server, waits):
    access = Access("", Transport(attempts=2))
    made = EndpointWriter(Endpoint("http://127.0.0.1:9/v1", "some-model"), access, Sampling(), 40)
    assert made.write([PROMPT]) == [None]
    assert made.dropped == {"unreachable": 2, "given up": 1}


def test_another_host_is_not_gone_to(server):
    with serving() as other:
        server.coming.append((302, {"Location": f"{other.url}/chat/completions"}, b""))
        assert writer(server, key="top-secret").write([PROMPT]) == [None]
        assert not other.asked


def test_neither_prompts_nor_keys_are_logged(server, waits, caplog):
    server.coming.extend([(500, {}, b"no"), (200, {}, b"garbage")])
    with caplog.at_level(logging.INFO):
        writer(server, key="top-secret").write([PROMPT])
    assert "parcels" not in caplog.text
    assert "top-secret" not in caplog.text


def test_the_key_s_file(tmp_path):
    assert read_key(None) == ""
    file = tmp_path / "key"
    with pytest.raises(ConfigurationError, match="DPSYNTH_TEXT_KEY"):
        read_key(file)
    file.write_text("sk-1234\n")
    file.chmod(0o600)
    assert read_key(file) == "sk-1234"
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="mode 0600"):
        read_key(file)
    file.chmod(0o600)
    for content in ("", "two words", "sk-\x00"):
        file.write_text(content)
        with pytest.raises(ConfigurationError) as refused:
            read_key(file)
        assert "words" not in str(refused.value)


def test_a_prompt_is_what_the_request_holds_and_nothing_else(server):
    writer(server).write([PROMPT])
    said = json.dumps(server.asked[0][2])
    assert said.count("parcels") == 1
