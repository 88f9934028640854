"""Files that people leave where contracts and families are, one of each kind that cannot be read.

What belongs here: making them. What does not: assertions.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{number}: &a{number} [{','.join([f'*a{number - 1}'] * 10)}]\n" for number in range(1, 30)
)
LONG = "/" + "/".join(["a" * 200] * 30)


def _named(sound: str, name: str) -> str:
    return re.sub("^(dataset|family): .*", rf"\1: {name}", sound, count=1, flags=re.MULTILINE)


def add_bad_files(directory: Path, sound: str) -> int:
    """Puts bad files beside sound ones; returns how many.

    Args:
        sound: the content of a file that is sound.
    """
    key = "uri" if "uri: " in sound else "namespace"
    before = len(list(directory.glob("*.yaml")))
    texts = {
        "date": "columns: {x: {type: date, min: 2026-01-01, max: 2026-02-30}}\n",
        "digits": f"expected_units: {'9' * 10_000}\n",
        "recursive": "a: &a [*a]\n",
        "bomb": BOMB,
        "deep": "[" * 100_000,
        "tag": "!!python/object/apply:os.system ['true']\n",
        "twice": sound + sound,
        "other": sound,
        "nul": re.sub(f"{key}: .*", rf'{key}: "\\0"', _named(sound, "nul")),
        "overlong": re.sub(f"{key}: .*", f"{key}: {LONG}", _named(sound, "overlong")),
        "looped": re.sub(f"{key}: .*", f"{key}: {directory}/loop.yaml/x", _named(sound, "looped")),
        "empty": "",
        "scalar": "a text",
    }
    for name, text in texts.items():
        (directory / f"{name}.yaml").write_text(text, encoding="utf-8")
    (directory / "latin.yaml").write_bytes("description: é".encode("latin-1"))
    (directory / "bytes.yaml").write_bytes(bytes(range(256)))
    (directory / "directory.yaml").mkdir()
    (directory / "dangling.yaml").symlink_to(directory / "nowhere")
    (directory / "loop.yaml").symlink_to(directory / "loop.yaml")
    (directory / "device.yaml").symlink_to("/dev/zero")
    os.mkfifo(directory / "pipe.yaml")
    with (directory / "huge.yaml").open("wb") as file:
        file.truncate(2**40)
    Path(os.fsdecode(os.fsencode(directory) + b"/name\xff.yaml")).write_text(sound, encoding="utf-8")
    return len(list(directory.glob("*.yaml"))) - before
