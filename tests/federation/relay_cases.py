"""What a relay says to a local socket, and waiting until it answers."""

import socket
import time


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


def wait_for(place, thread):
    """Until a participant answers at the path; it is there a moment earlier. Its thread must live."""
    end = time.monotonic() + 120
    while True:
        try:
            return said(place, framed(b""))  # its name
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < end and thread.is_alive()
            time.sleep(0.01)
