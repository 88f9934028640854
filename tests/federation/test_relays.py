"""The local sockets at both ends of a relay."""

import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from relay_cases import framed, said, wait_for

from dpsynth_platform.federation.relays import RelayLink, listening, serve
from dpsynth_platform.foundation.errors import ConfigurationError, RoundRefused


@pytest.fixture
def place():
    """A short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="rl-") as made:
        yield Path(made) / "node.sock"


def answer(message):
    if message == b"no":
        raise RoundRefused("a message of another kind; accepted: those of the protocol")
    return message[::-1]


@pytest.fixture
def reports(place):
    """A node that listens, and what it reports."""
    lines, stop = [], threading.Event()
    thread = threading.Thread(
        target=serve, args=(place, "north", answer, 1_000, lambda: not stop.is_set(), lines.append)
    )
    thread.start()
    wait_for(place, thread)
    yield lines
    stop.set()
    thread.join(20)
    assert not thread.is_alive() and not place.exists()


def test_a_node_answers_one_message_after_the_other(place, reports):
    assert said(place, framed(b"")) == b"north"
    assert said(place, framed(b"abc")) == b"cba"
    assert said(place, framed(b"x" * 1_000)) == b"x" * 1_000
    assert reports == []


def test_a_look_whether_a_process_listens_leaves_no_line(place, reports):
    """As health checks do, and a second process that would listen there."""
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(place))
    assert said(place, framed(b"abc")) == b"cba"
    assert reports == []


@pytest.mark.parametrize(
    ("message", "report"),
    [
        (framed(b"no"), "refused: a message of another kind; accepted: those of the protocol"),
        (framed(b"x" * 1_001), "a message was cut off, or is longer than 1000 bytes; nothing was done for it"),
        ((2**63).to_bytes(8, "big"), "a message was cut off, or is longer than 1000 bytes; nothing was done for it"),
        (framed(b"abc")[:-1], "a message was cut off, or is longer than 1000 bytes; nothing was done for it"),
        (b"\0", "a message was cut off, or is longer than 1000 bytes; nothing was done for it"),
    ],
)
def test_a_refused_or_broken_message_gets_no_reply_and_the_node_goes_on(place, reports, message, report):
    assert said(place, message) is None
    assert said(place, framed(b"abc")) == b"cba"
    assert reports == [report]


def test_a_socket_is_for_one_process_and_for_no_others_than_owner_and_group(place):
    with listening(place):
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        with pytest.raises(ConfigurationError, match=r"listens at .* already"), listening(place):
            pass
        assert place.exists()
    assert not place.exists()


def test_files_that_other_threads_make_meanwhile_keep_their_mode(place, monkeypatch):
    """All threads share one umask: two that open sockets at once could leave each other's."""

    def changed(_):
        pytest.fail("the umask was changed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "umask", changed)
        with listening(place):
            pass


def test_a_socket_of_a_killed_process_is_replaced_and_a_file_is_not(place):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(place))
    with listening(place):
        assert place.exists()
    place.write_text("mine")
    with pytest.raises(ConfigurationError, match="no socket"), listening(place):
        pass
    assert place.read_text() == "mine"


@pytest.mark.parametrize("wrong", ["none/node.sock", "x" * 200])
def test_a_path_where_no_socket_can_be(place, wrong):
    with pytest.raises(ConfigurationError, match="accepted: a short path"), listening(place.parent / wrong):
        pass


def linked(replies, length=1):
    """A link whose relay reads so many bytes, and then says this."""
    ours, theirs = socket.socketpair()
    got = []

    def relay():
        with theirs, theirs.makefile("rb") as stream:
            got.append(stream.read(length))
            theirs.sendall(replies)

    thread = threading.Thread(target=relay)
    thread.start()
    return RelayLink(ours, 5, 100), got, thread


def number(value):
    return framed(value.to_bytes(8, "big"))


def test_a_coordinator_s_requests_and_replies_are_frames():
    asked = number(2) + framed(b"north") + framed(b"ask") + framed(b"west") + framed(b"")
    link, got, thread = linked(number(1) + framed(b"north") + framed(b"yes"), len(asked))
    assert link.ask({"north": b"ask", "west": b""}) == {"north": b"yes"}
    thread.join()
    assert got == [asked]


@pytest.mark.parametrize(
    "replies",
    [
        b"",
        number(2) + framed(b"north") + framed(b"yes"),
        number(1) + framed(b"\xff") + framed(b"yes"),
        number(1) + framed(b"north") + framed(b"x" * 101),
        number(1) + framed(b"n" * 257) + framed(b"yes"),
        framed(b"too long a number"),
    ],
)
def test_a_relay_that_goes_or_breaks_the_format_is_an_error(replies):
    link, _, thread = linked(replies)
    with pytest.raises(ConfigurationError, match="the relay has gone, is silent or sends no frames"):
        link.ask({"north": b"ask"})
    thread.join()
