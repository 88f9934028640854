"""Local sockets by which a relay carries messages: the participant's end, and the coordinator's.

What belongs here: bytes to and from a local socket. What does not: what they mean, and the network. A relay is another
process, of another user where possible, without access to rows and keys (`deploy/flower`, an app of Flower). All that
it can do is to lose, delay and repeat messages: they are signed both ways, and encrypted where the aggregator must not
read.

A frame is 8 bytes of length, most significant first, and so many bytes. To a participant goes one frame, and one comes
back; an empty one asks for its name. To the coordinator's relay go the number of requests, and the name and the body of
each; back come the replies alike.
"""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dpsynth_platform.foundation.errors import ConfigurationError, DpsynthError

PATIENCE_SECONDS = 60.0
"""How long a connected relay may be silent within a frame, and twice that for the whole of one."""
CONNECTING_SECONDS = 600.0
"""In which a relay has to connect, which a person may have to start."""
MOST_NAME_BYTES = 256
_LENGTH = 8


@contextmanager
def listening(place: Path) -> Iterator[socket.socket]:
    """A socket at a path that the owner and the group of the directory can use; it goes when this ends.

    Raises:
        ConfigurationError: there is something else than a socket, a process listens there, or the path is too long.
    """
    if place.exists() and not stat.S_ISSOCK(place.lstat().st_mode):
        raise ConfigurationError(f"{place} is no socket; accepted: a path where nothing is")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        try:
            if place.exists():
                if _answers(place):
                    raise ConfigurationError(f"a process listens at {place} already; accepted: one for each path")
                place.unlink()  # of a process that was killed
            end.bind(str(place))
            place.chmod(0o660)  # nobody can connect before `listen`; the umask is of all threads, so not changed here
        except OSError as error:
            raise ConfigurationError(
                f"no socket can be made at {place}: {error.strerror or error}; accepted: a short path in a directory "
                "that exists"
            ) from None
        try:
            end.listen()
            yield end
        finally:
            place.unlink(missing_ok=True)


def serve(
    place: Path,
    name: str,
    answer: Callable[[bytes], bytes],
    most_bytes: int,
    goes_on: Callable[[], bool],
    report: Callable[[str], None],
    up: Callable[[], None] = lambda: None,
) -> None:
    """Answers a participant's relay, one message after the other, as long as `goes_on()`, which is asked each second.

    Nothing goes back for a message that `answer` refuses (`DpsynthError`): the participant decides whom it tells why. A
    connection that ends without a byte is a look whether a process listens, and leaves no line.

    Args:
        name: of the participant.
        answer: gives the reply to a message.
        most_bytes: the longest message.
        report: called with a line on each refusal.
        up: called once the socket is there.

    Raises:
        ConfigurationError: no socket can be made at the path.
    """
    with listening(place) as end:
        up()
        end.settimeout(1.0)
        while goes_on():
            try:
                relay, _ = end.accept()
            except TimeoutError:
                continue
            with relay, relay.makefile("rb") as stream:
                relay.settimeout(PATIENCE_SECONDS)
                late = threading.Timer(2 * PATIENCE_SECONDS, _shut, [relay])  # of one that sends byte after byte
                late.start()
                try:
                    if not stream.peek(1):  # somebody looked whether a process listens, and said nothing
                        late.cancel()
                        continue
                    request = _receive(stream, most_bytes)
                    late.cancel()
                    _send(relay, answer(request) if request else name.encode())
                except DpsynthError as error:
                    report(f"refused: {error}")
                except (EOFError, OSError):
                    late.cancel()
                    report(f"a message was cut off, or is longer than {most_bytes} bytes; nothing was done for it")


@contextmanager
def relayed(place: Path, seconds: float, most_bytes: int, ready: Callable[[], None]) -> Iterator[RelayLink]:
    """The link over a relay that connects to a socket at `place`.

    Args:
        seconds: in which a participant has to reply, as the relay is configured.
        most_bytes: the longest reply.
        ready: called when the relay can be started.

    Raises:
        ConfigurationError: no socket can be made, or no relay has connected in time; or as `ready`.
    """
    with listening(place) as end:
        ready()
        end.settimeout(CONNECTING_SECONDS)
        try:
            relay, _ = end.accept()
        except TimeoutError:
            raise ConfigurationError(
                f"{place}: no relay has connected in {CONNECTING_SECONDS:g} seconds; accepted: the Flower app, started "
                f"meanwhile: {start_of_flower(place, seconds)}"
            ) from None
        # It asks new nodes for their names first, and each of both may take the whole time.
        with relay, closing(RelayLink(relay, 2 * seconds + 30, most_bytes)) as link:
            yield link


def start_of_flower(place: Path, seconds: float) -> str:
    """How a person starts the relay, as a command."""
    return f"flwr run deploy/flower local --run-config '{run_config(place, seconds)}'"


def run_config(place: Path, seconds: float) -> str:
    """What the Flower app of a run has to know."""
    return f'socket="{place.resolve()}" timeout={seconds:g}'


class RelayLink:
    """The coordinator's end (`secure_sum.Link`).

    Args:
        relay: a connection that a relay has made to a socket of this process.
        seconds: within which the relay has to give all replies to one set of requests.
        most_bytes: the longest reply.
    """

    def __init__(self, relay: socket.socket, seconds: float, most_bytes: int) -> None:
        relay.settimeout(seconds)
        self._relay, self._stream, self._most_bytes = relay, relay.makefile("rb"), most_bytes

    def close(self) -> None:
        """Tells the relay that the run is over: a socket is open as long as its stream is."""
        self._stream.close()

    def ask(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Replies by name, as the relay tells them.

        Raises:
            ConfigurationError: the relay has gone, is silent, or does not keep to the format.
        """
        replies: dict[str, bytes] = {}
        try:
            _send(self._relay, len(requests).to_bytes(_LENGTH, "big"))
            for name, body in requests.items():
                _send(self._relay, name.encode())
                _send(self._relay, body)
            for _ in range(int.from_bytes(_receive(self._stream, _LENGTH), "big")):
                name = _receive(self._stream, MOST_NAME_BYTES).decode()
                replies[name] = _receive(self._stream, self._most_bytes)
        except (EOFError, OSError, UnicodeDecodeError):
            raise ConfigurationError(
                "the relay has gone, is silent or sends no frames; accepted: one that is there until the run ends"
            ) from None
        return replies


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _answers(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(place)) == 0


def _send(end: socket.socket, body: bytes) -> None:
    end.sendall(len(body).to_bytes(_LENGTH, "big") + body)  # at once: the other side may close after its last byte


def _receive(stream: BinaryIO, most_bytes: int) -> bytes:
    head = stream.read(_LENGTH)
    size = int.from_bytes(head, "big")
    if len(head) < _LENGTH or size > most_bytes:
        raise EOFError
    body = stream.read(size)
    if len(body) < size:
        raise EOFError
    return body
