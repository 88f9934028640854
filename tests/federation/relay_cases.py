"""What a relay says to a local socket, waiting until it answers, and a relay to a coordinator."""

import socket
import threading
import time
from contextlib import contextmanager, suppress


def framed(body):
    return len(body).to_bytes(8, "big") + body


def said(place, message):
    """What a relay gets back; None: nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(20)
        end.connect(str(place))
        end.sendall(message)
        end.shutdown(socket.SHUT_WR)
        got = end.makefile("rb").read()
    return got[8:] if got else None


def answers(place):
    """Whether a participant answers at the path, which is there a moment earlier."""
    try:
        return bool(said(place, framed(b"")))  # its name
    except (FileNotFoundError, ConnectionRefusedError):
        return False


def wait_for(place, thread):
    """Until a participant answers at the path. Its thread must live."""
    end = time.monotonic() + 120
    while not answers(place):
        assert time.monotonic() < end and thread.is_alive()
        time.sleep(0.01)


@contextmanager
def carried(path, wires):
    """What the Flower app does, in a thread, as often as a coordinator listens at the path."""
    over = threading.Event()
    carrying = threading.Thread(target=_carry, args=(path, wires, over), daemon=True)
    carrying.start()
    try:
        yield
    finally:
        over.set()
        carrying.join(60)


def _carry(path, wires, over):
    while not over.wait(0.05):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            if not end.connect_ex(str(path)):
                with suppress(OSError):  # of a coordinator that was killed
                    _until_closed(end, wires)


def _until_closed(end, wires):
    """Messages go to nodes in this process, and the replies back."""
    with end.makefile("rb") as stream:

        def receive():
            head = stream.read(8)
            return stream.read(int.from_bytes(head, "big")) if len(head) == 8 else None

        while (count := receive()) is not None:
            requests = {receive().decode(): receive() for _ in range(int.from_bytes(count, "big"))}
            replies = wires.ask(requests)
            end.sendall(framed(len(replies).to_bytes(8, "big")))
            for name, body in replies.items():
                end.sendall(framed(name.encode()) + framed(body))
