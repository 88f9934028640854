"""Keys in a program's care: whatever a deployment has that keeps secrets, the environment among it.

What belongs here: calling the program. What does not: the clouds' managers, which have keepers of their own. The
program's words come from one line, quoted as for a shell, to which these are added:

    read NAME    writes the key, 64 hexadecimal digits, on standard output; ends with status 3 if there is none
    keep NAME    reads the key from standard input and keeps it; one that is there already stays as it is
"""

from __future__ import annotations

import subprocess

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.secrets.keeper import key_of

COMMAND = "command"
"""The vault's file that says which program it is."""
_SECONDS = 60.0
_NONE = 3


class ProgramKeeper:
    """See `keeper.Keeper`. What the program says besides the key is not shown."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words

    def found(self, name: str) -> bytes | None:
        """What the program wrote, as a key."""
        text = self._asked("read", name)
        return None if text is None else key_of(name, text, f"the vault's {COMMAND}")

    def keep(self, name: str, key: bytes) -> None:
        """Hands the key to the program, whose promise it is that one that is there stays."""
        self._asked("keep", name, key.hex())

    def lacks(self, name: str) -> str:
        return f"the vault (its {COMMAND} ended with status {_NONE})"

    def _asked(self, verb: str, name: str, given: str = "") -> str | None:
        try:
            done = subprocess.run(
                [*self._words, verb, name], input=given, capture_output=True, text=True, timeout=_SECONDS, check=False
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
