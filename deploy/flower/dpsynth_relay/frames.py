"""Frames on a local socket: 8 bytes of length, most significant first, then so many bytes."""

from __future__ import annotations

import socket
from typing import BinaryIO

MOST_BYTES = 2**32


def connect(place: str) -> tuple[socket.socket, BinaryIO]:
    """The socket at a path, and its stream for reading."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.connect(place)
    return end, end.makefile("rb")


def send(end: socket.socket, body: bytes) -> None:
    """Sends one frame."""
    end.sendall(len(body).to_bytes(8, "big") + body)


def receive(stream: BinaryIO) -> bytes:
    """The next frame. Raises `EOFError` where the other side has closed, or announces too many bytes."""
    head = stream.read(8)
    size = int.from_bytes(head, "big")
    body = stream.read(size) if len(head) == 8 and size <= MOST_BYTES else b""
    if len(head) < 8 or len(body) < size:
        raise EOFError
    return body
