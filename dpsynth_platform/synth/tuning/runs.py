"""Which settings run, and how often: drawn once, before any record is read, and never shown.

What belongs here: the number's exact distribution, and the files that keep what was drawn and what won. What does not:
the runs (`generator`). In a model's directory, as long as runs are made:

    tuning/runs.json      the setting of each run
    tuning/0, tuning/1    the runs
    tuning/best.json      the run that won, once all have their scores

Then only the best run's files are left, in the model's directory itself, and `tuned.json` says which setting that was.
All that `tuning` holds is restricted, even how much there is: given the number of runs, the guarantee would not hold.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Context, Decimal, localcontext
from pathlib import Path

from dpsynth_platform.foundation.errors import GrantRefused, MechanismFailed
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.storage import sync, write_durably

TUNING, RUNS, BEST, TUNED_FILE = "tuning", "runs.json", "best.json", "tuned.json"
RANDOM_BITS = 192
LEAST_CHANCE = Decimal(10) ** -70
_EXACT = Context(prec=80)


def chances(shape: float, gamma: float) -> Iterator[Decimal]:
    """P[K = 1], P[K = 2] and so on of the truncated negative binomial distribution, to 70 digits.

    P[K = k] is in proportion to (1 - gamma)^k Gamma(k + shape) / k! (Papernot & Steinke 2022, definition 1).
    """
    with localcontext(_EXACT):
        eta, stopping = Decimal(shape), Decimal(gamma)
        going = 1 - stopping
        chance = going / -stopping.ln() if eta == 0 else eta * going / (stopping**-eta - 1)
    number = 1
    while True:
        yield chance
        with localcontext(_EXACT):
            chance = chance * going * (number + eta) / (number + 1)
        number += 1


def drawn_number(shape: float, gamma: float) -> int:
    """K, by inversion of 192 random bits of the operating system: off by less than 1e-50 in total variation."""
    with localcontext(_EXACT):
        left = Decimal(secrets.randbits(RANDOM_BITS)) / 2**RANDOM_BITS
        for number, chance in enumerate(chances(shape, gamma), 1):
            past_the_mode = number * gamma > shape
            if left < chance or (past_the_mode and chance < LEAST_CHANCE):
                return number
            left -= chance
    raise AssertionError("chances do not end")


def rarely_above(shape: float, gamma: float, chance: float = 0.01) -> int:
    """The least number of runs that K exceeds with at most this chance. Public: it follows from the plan."""
    left = 1.0
    for number, part in enumerate(chances(shape, gamma), 1):
        left -= float(part)
        if left <= chance:
            return number
    raise AssertionError("chances do not end")


@dataclass(frozen=True)
class Runs:
    """What was drawn for one plan; restricted.

    Attributes:
        methods: of each setting.
        settings: of each run, the setting's number.
    """

    plan: str
    methods: tuple[str, ...]
    settings: tuple[int, ...]

    @classmethod
    def draw(cls, plan: str, methods: Sequence[str], number: tuple[float, float] | None) -> Runs:
        """New runs of these settings: each once, or as many as (shape, gamma) gives, each of a random one."""
        if number is None:
            return cls(plan, tuple(methods), tuple(range(len(methods))))
        settings = tuple(secrets.randbelow(len(methods)) for _ in range(drawn_number(*number)))
        return cls(plan, tuple(methods), settings)

    @classmethod
    def kept(cls, directory: Path) -> Runs | None:
        """What was drawn for a model's directory; None where nothing was."""
        try:
            document = json.loads((directory / TUNING / RUNS).read_text(encoding="utf-8"))
            return cls(document["plan"], tuple(document["methods"]), tuple(document["settings"]))
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError):
            raise MechanismFailed("the drawn runs are damaged; they are not drawn twice") from None

    @classmethod
    def of(cls, directory: Path, plan: str, methods: Sequence[str], number: tuple[float, float] | None) -> Runs:
        """What was drawn for a model's directory, or is drawn now; durable on return.

        Raises:
            GrantRefused: it was drawn for another plan.
        """
        found = cls.kept(directory)
        if found is None:
            found = cls.draw(plan, methods, number)
            private_directory(directory / TUNING)
            write_durably(directory / TUNING / RUNS, json.dumps(asdict(found)))
            sync(directory)
        if (found.plan, found.methods) != (plan, tuple(methods)):
            raise GrantRefused("the runs in the model's directory are of another plan")
        return found


def place(directory: Path, run: int) -> Path:
    """The directory of a run."""
    return directory / TUNING / str(run)


def best(scores: Sequence[int]) -> int:
    """The run with the highest score, and of equal ones the first: runs are alike, so that their order says nothing."""
    return max(range(len(scores)), key=scores.__getitem__)


def keep_best(directory: Path, run: int, setting: int, method: str) -> None:
    """Records durably which run is kept; from then on the records are not needed."""
    write_durably(directory / TUNING / BEST, json.dumps({"run": run, "kept": {"candidate": setting, "method": method}}))


def is_chosen(directory: Path) -> bool:
    """Whether it is recorded which run is kept."""
    return (directory / TUNED_FILE).is_file() or (directory / TUNING / BEST).is_file()


def finish(directory: Path) -> None:
    """Deletes all runs but the best one, whose files become those of the model's directory; may be repeated.

    Raises:
        MechanismFailed: no run was chosen.
    """
    tuning = directory / TUNING
    if not (directory / TUNED_FILE).is_file():
        try:
            chosen = json.loads((tuning / BEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise MechanismFailed(
                "the mechanism stopped before all of its runs had a score; what it cost stays spent, and a new attempt "
                "is a new spend"
            ) from None
        kept = place(directory, chosen["run"])
        for other in tuning.iterdir():
            if other.is_dir() and other != kept:
                shutil.rmtree(other)
        for part in sorted(kept.iterdir()):
            part.replace(directory / part.name)
        sync(directory)
        write_durably(directory / TUNED_FILE, json.dumps(chosen["kept"]))
    if tuning.exists():
        shutil.rmtree(tuning)
        sync(directory)


def kept_setting_in_words(directory: Path) -> dict[str, str]:
    """Which setting's model is in a directory, counted from 1 as in the plan's words; empty where none was chosen.

    It is a part of what the mechanism shows, and covered as its other results are.
    """
    if not (directory / TUNED_FILE).is_file():
        return {}
    setting, method = kept_setting(directory)
    return {"setting": f"{setting + 1} ({method})"}


def kept_setting(directory: Path) -> tuple[int, str]:
    """Number and method of the setting whose model is in a directory. Raises `MechanismFailed` if there is none."""
    try:
        document = json.loads((directory / TUNED_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MechanismFailed("the model directory holds no complete model; materialize the model again") from None
    return int(document["candidate"]), str(document["method"])
