"""Keys that an external program keeps.

What belongs here: calling the program. What does not: the clouds' managers, which have separate keepers. The command is
one line, quoted as for a shell, to which these words are added:

    read NAME    writes the key, 64 hexadecimal digits, on standard output; ends with status 3 if there is none
    keep NAME    reads the key from standard input and stores it; an existing key stays as it is
"""

from __future__ import annotations

import subprocess

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.secrets.keeper import key_of

COMMAND = "command"
"""The vault's file with the command."""
_SECONDS = 60.0
_NONE = 3


class ProgramKeeper:
    """See `keeper.Keeper`. No other output of the program is shown."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words

    def read(self, name: str) -> bytes | None:
        text = self._call("read", name)
        return None if text is None else key_of(name, text, f"the vault's {COMMAND}")

    def store(self, name: str, key: bytes) -> None:
        """Passes the key to the program, which must leave an existing key as it is."""
        self._call("keep", name, key.hex())

    def place_of(self, name: str) -> str:
        return f"the vault (its {COMMAND} ended with status {_NONE})"

    def _call(self, verb: str, name: str, content: str = "") -> str | None:
        try:
            done = subprocess.run(
                [*self._words, verb, name], input=content, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            problem = f"did not end within {_SECONDS:g} seconds"
        except (OSError, ValueError) as error:
            problem = f"cannot be started ({reason_of(error)})"
        else:
            if done.returncode == 0:
                return done.stdout
            if done.returncode == _NONE and verb == "read":
                return None
            problem = f"ended with status {done.returncode}"
        raise ConfigurationError(f"key {name!r}: the vault's {COMMAND} ({verb}) {problem}; try it by hand") from None
