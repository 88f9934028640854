"""Clients and server of federated averaging: rounds of clipped updates, noised by an aggregator that is trusted.

What belongs here: participation and its limits on both sides, clipping, the noised sums, and what a restart continues.
What does not: the numbers and their cost (`averaging_plan`), what a client's training is (`averaged_arn`), and the
network. Algorithm 7 of Ponomareva et al. 2026, after McMahan et al. 2017 and Kairouz et al. 2021.

    server = AveragingServer(plan, weights, names, journal)
    while server.rounds_left:
        for asked in server.ask(available).values():          # by name
            server.take(client.answer(asked))                 # at each client; who fails is missing
        weights = server.close()

**Noise.** Round t gives R_t = (C S)_t + noise, drawn, added and rounded by `training.noise` as in DP-SGD, where its
exactness is argued. C S are sums of the last rounds' sums S, by the coefficients. The estimate of S is C^-1 R, computed
from R alone: that is S with correlated noise, as the literature has it, and post-processing. So the same noise is never
needed twice, and no seed is kept.

**A restart** continues from the state after the last closed round, which is kept before its model is shown: the sums
S of the last rounds, without noise, are in it, so it is as sensitive as updates. A round that was begun but not kept
may have been seen: the run cannot go on, and another one is paid anew (`kept_rounds`). Restored copies of old states
would draw a round's noise again and cannot be distinguished from others: keep none.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpsynth_platform.federation.averaging_plan import AveragingPlan
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ConfigurationError, MechanismFailed, ResumeRefused, RoundRefused
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.storage import HeldByAnother, held_file, write_durably
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.training.checkpoints import CheckpointPolicy, Checkpoints
from dpsynth_platform.training.interface import Journal, TrainingState
from dpsynth_platform.training.journal import StepJournal
from dpsynth_platform.training.noise import GaussianNoise
from dpsynth_platform.training.resuming import ResumableJournal
from dpsynth_platform.training.stream import WORD, SecureStream

Vector = npt.NDArray[np.float64]
LocalTraining = Callable[[Vector], Vector]
"""From a model's weights, (length,), to what they change by at a client: a function of its rows. Sensitive."""

# Covers the rounding of a norm: a clipped update is shorter than the clipping norm by so much, relatively.
ROUNDING = 2.0**-20


@dataclass(frozen=True)
class Asked:
    """What a client gets in a round: the plan's digest, the round from 1 and the weights, (length,)."""

    plan: str
    round: int
    weights: Vector


@dataclass(frozen=True)
class Update:
    """What a client sends in a round: its clipped vector, (length,). Sensitive."""

    plan: str
    round: int
    client: str
    vector: Vector


class Participations:
    """The rounds that a client was in by one plan: its own record, in a file or in memory.

    A round is in the file before anything is computed for it, whatever becomes of it.

    Args:
        path: of the file, which nothing may delete: without it, rounds count from none again. None: in memory, for
            simulations.
    """

    def __init__(self, plan: AveragingPlan, path: Path | None = None) -> None:
        self._plan, self._path = plan, path
        self._rounds: list[int] = []

    def enter(self, number: int) -> None:
        """Takes part in a round; 0 is the sum before the first one.

        Raises:
            RoundRefused: the plan does not allow that; or the file is of another plan, damaged or in use.
        """
        if self._path is None:
            self._add(number)
            return
        try:
            with held_file(self._path.with_suffix(".lock")):
                self._rounds = self._read(self._path)
                self._add(number)
                write_durably(self._path, json.dumps({"plan": self._plan.digest, "rounds": self._rounds}))
        except HeldByAnother:
            raise RoundRefused(f"{self._path}: another process takes part; accepted: one at a time") from None
        except OSError:
            raise RoundRefused(f"{self._path}: the round cannot be recorded; accepted: a place for files") from None

    def _read(self, path: Path) -> list[int]:
        if not path.exists():
            return []
        try:
            said = json.loads(path.read_bytes())
            plan, rounds = said["plan"], [int(number) for number in said["rounds"]]
        except (ValueError, KeyError, TypeError):
            raise RoundRefused(f"{path}: the record of rounds is damaged, so their number is unknown") from None
        if plan != self._plan.digest:
            raise RoundRefused(f"{path}: the record of rounds is of another plan; accepted: a file for each plan")
        return rounds

    def _add(self, number: int) -> None:
        plan, trained = self._plan, [each for each in self._rounds if each]
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= plan.rounds:
            raise RoundRefused(f"round {number!r}; accepted: 0 to {plan.rounds}")
        if number == 0:
            if plan.columns_noise is None or self._rounds:
                raise RoundRefused("round 0, the sum before all others; accepted: once, before any, if planned")
        elif len(trained) >= plan.participations:
            raise RoundRefused(f"round {number}: {len(trained)} before it; accepted: {plan.participations} in all")
        elif trained and number < trained[-1] + plan.separation:
            raise RoundRefused(
                f"round {number} after round {trained[-1]}; accepted: from round {trained[-1] + plan.separation}"
            )
        self._rounds.append(number)


class Client:
    """A client: its rows behind a function, its record of rounds, and what it accepts.

    Args:
        name: by which the server knows it.
        train: its local training.
        accepted: the most that the plan may cost it.
        record: of its rounds; None: in memory, for simulations.

    Raises:
        AccountingError: the plan costs more than is accepted.
    """

    def __init__(
        self, name: str, plan: AveragingPlan, train: LocalTraining, accepted: Guarantee, record: Path | None
    ) -> None:
        plan.check(accepted)
        self.name, self._plan, self._train = name, plan, train
        self._digest, self._record = plan.digest, Participations(plan, record)

    def answer(self, asked: Asked) -> Update:
        """The client's update of a round.

        Raises:
            RoundRefused: the plan does not allow the round, or it is of another plan. Nothing was computed.
        """
        if asked.plan != self._digest or asked.round == 0:
            raise RoundRefused(f"client {visible(self.name)}: a round of another plan; accepted: of the plan it knows")
        if asked.weights.ndim != 1 or not np.isfinite(asked.weights).all():
            raise RoundRefused(f"client {visible(self.name)}: weights that are no vector of numbers")
        self._record.enter(asked.round)
        vector = np.asarray(self._train(asked.weights.copy()), dtype=np.float64)
        if vector.shape != asked.weights.shape:
            raise MechanismFailed(f"an update of shape {vector.shape}; accepted: as the weights {asked.weights.shape}")
        return Update(asked.plan, asked.round, self.name, clipped(vector, self._plan.clipping_norm))

    def describe(self, vector: Vector) -> Update:
        """The client's vector of the sum before the first round, clipped to norm 1. Raises as `answer`."""
        self._record.enter(0)
        return Update(self._digest, 0, self.name, clipped(vector, 1.0))


def clipped(vector: Vector, norm: float) -> Vector:
    """The vector scaled down to a norm of at most `norm`; zeros where it is not finite, as a refusal would show that.

    The largest entry is divided out first, so that no square overflows and no factor is rounded much.
    """
    largest = float(np.max(np.abs(vector), initial=0.0))
    if not math.isfinite(largest):
        return np.zeros_like(vector)
    if largest == 0:
        return vector
    direction = vector / largest
    length = float(np.linalg.norm(direction)) * (1 + ROUNDING)
    return vector if largest * length <= norm else direction * (norm / length)


class AveragingServer:
    """The aggregator, which is trusted: it sees all updates, and adds the noise.

    What brings updates here has to know whose they are, and must not show which were refused: with `poisson` that
    shows who was asked.

    Args:
        weights: of the first model, (length,). Public, or differentially private.
        names: of all clients there are. With `poisson` the coin's probability is by the planned number, not this one.
        journal: counts rounds, and keeps states, which are sensitive (`kept_rounds`).

    Raises:
        ConfigurationError: names that are there twice, or weights that are no vector of numbers.
        MechanismFailed: the journal's state is of another model.
    """

    def __init__(self, plan: AveragingPlan, weights: Vector, names: Collection[str], journal: Journal) -> None:
        if len(set(names)) != len(names) or weights.ndim != 1 or not np.isfinite(weights).all():
            raise ConfigurationError("averaging: names that are there twice, or weights that are no vector of numbers")
        self.plan, self._digest, self._journal = plan, plan.digest, journal
        self._names = sorted(names)
        self._places = {name: place for place, name in enumerate(self._names)}
        # What is kept: the model and its speed, S and the estimates of S of the last rounds (the last one first), and
        # when and how often each client was asked.
        history = (len(plan.coefficients) - 1, len(weights))
        self._kept: dict[str, Vector] = {
            "parameter.weights": weights.astype(np.float64),
            "speed": np.zeros(len(weights)),
            "sums": np.zeros(history),
            "estimates": np.zeros(history),
        }
        self._named = np.frombuffer(bytes.fromhex(canonical_digest(self._names)), dtype=np.uint8)
        self._last = np.zeros(len(names), dtype=np.int64)
        self._times = np.zeros(len(names), dtype=np.int64)
        self._noise, self._coins = GaussianNoise(), SecureStream()
        self._round = 0
        self._waiting: set[str] = set()
        self._total: Vector | None = None
        if (state := journal.latest()) is not None:
            self._load(state)

    @property
    def weights(self) -> Vector:
        """The model after the last closed round: differentially private."""
        return self._kept["parameter.weights"].copy()

    @property
    def rounds_left(self) -> int:
        return self.plan.rounds - self._round

    def available(self, present: Collection[str]) -> list[str]:
        """Those of the present clients that the limits allow in the next round, in the order of their names.

        Raises `ConfigurationError` for an unknown name.
        """
        if unknown := set(present) - self._places.keys():
            raise ConfigurationError(f"averaging: {len(unknown)} unknown clients; accepted: those of the server")
        number, plan = self._round + 1, self.plan
        return [
            name
            for name in sorted(set(present))
            if self._times[place := self._places[name]] < plan.participations
            and (not self._last[place] or number >= self._last[place] + plan.separation)
        ]

    def ask(self, present: Collection[str]) -> Mapping[str, Asked]:
        """Begins a round: what each client of its cohort gets, by name.

        With `poisson`, names are sensitive, and so are their number and all that follows from it, such as the time that
        a round takes.

        Args:
            present: who could take part now. That must not depend on what clients' rows say.

        Raises:
            MechanismFailed: no round is left, or one is open.
            ConfigurationError: an unknown name.
        """
        if self._total is not None or not self.rounds_left:
            raise MechanismFailed("averaging: a round is open, or none is left; accepted: one after the other")
        chosen = self._chosen(self.available(present))
        self._total, self._waiting = np.zeros(len(self.weights)), set(chosen)
        for name in chosen:
            place = self._places[name]
            self._last[place], self._times[place] = self._round + 1, self._times[place] + 1
        weights = self.weights
        return {name: Asked(self._digest, self._round + 1, weights) for name in chosen}

    def _chosen(self, allowed: list[str]) -> list[str]:
        if self.plan.asking == "separated":
            return secrets.SystemRandom().sample(allowed, min(self.plan.cohort, len(allowed)))
        # A coin for each, also for those that are not present.
        words = self._coins.words(len(self._names))
        threshold = (self.plan.cohort << (8 * WORD)) // self.plan.clients
        return [name for name in allowed if int(words[self._places[name]]) < threshold]

    def take(self, update: Update) -> None:
        """Adds a client's update to the open round.

        Raises:
            RoundRefused: it is of another plan or round, the client was not asked or has answered, or its vector has
                another length, is not finite, or is longer than the clipping norm. The client counts as missing.
        """
        who = f"client {visible(update.client)}"
        if self._total is None or update.plan != self._digest or update.round != self._round + 1:
            raise RoundRefused(f"{who}: an update of another plan or round; accepted: of round {self._round + 1}, once")
        if update.client not in self._waiting:
            raise RoundRefused(f"{who}: was not asked, or has answered; accepted: one update of each that was asked")
        self._waiting.discard(update.client)
        check_vector(update, len(self._total), self.plan.clipping_norm)
        self._total += update.vector

    def close(self) -> Vector:
        """Ends the open round, by whatever has arrived; returns the new model's weights, (length,).

        Raises:
            MechanismFailed: no round is open, or the journal does not count it.
        """
        if self._total is None:
            raise MechanismFailed("averaging: no round is open; accepted: ask first")
        plan, kept, total = self.plan, self._kept, self._total
        if self._journal.begin_step() != self._round + 1:
            raise MechanismFailed("averaging: a round would be drawn again; accepted: a new run, which is paid anew")
        self._total = None
        first, *rest = plan.coefficients
        noised = torch.from_numpy(first * total + np.tensordot(rest, kept["sums"], 1))
        self._noise.add_(noised, plan.noise_deviation)
        # From here on, all but the history of sums follows from what is noised.
        estimate = (noised.numpy() - np.tensordot(rest, kept["estimates"], 1)) / first
        speed = plan.momentum * kept["speed"] + estimate / plan.cohort
        found = {
            "parameter.weights": kept["parameter.weights"] + plan.server_rate * speed,
            "speed": speed,
            "sums": np.concatenate([total[None], kept["sums"]])[: len(rest)],
            "estimates": np.concatenate([estimate[None], kept["estimates"]])[: len(rest)],
        }
        self._journal.save(self._state(found, self._round + 1), now=True)  # before anybody sees the model
        self._kept, self._round = found, self._round + 1
        return self.weights

    def _state(self, kept: Mapping[str, Vector], number: int) -> TrainingState:
        arrays: dict[str, npt.NDArray[Any]] = {
            **kept,
            "names": self._named,
            "clients.last": self._last,
            "clients.times": self._times,
        }
        return TrainingState(number, {name: torch.from_numpy(value.copy()) for name, value in arrays.items()})

    def _load(self, state: TrainingState) -> None:
        wanted = self._state(self._kept, self._round).tensors
        shapes, found = (
            {name: (value.shape, value.dtype) for name, value in tensors.items()} for tensors in (wanted, state.tensors)
        )
        if found != shapes or not torch.equal(wanted["names"], state.tensors["names"]):
            raise MechanismFailed("the kept state is of another model or other clients; accepted: one of this run")
        self._kept = {name: state.tensors[name].numpy().copy() for name in self._kept}
        self._last, self._times = (state.tensors[f"clients.{name}"].numpy().copy() for name in ("last", "times"))
        self._round = state.step


def check_vector(update: Update, length: int, norm: float) -> None:
    """Raises `RoundRefused`, with the client's name, unless a vector has this length, and at most this norm."""
    vector, who = update.vector, f"client {visible(update.client)}"
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float64 or vector.shape != (length,):
        raise RoundRefused(f"{who}: an update of another shape; accepted: {length} numbers")
    with np.errstate(all="ignore"):
        longer = not float(np.linalg.norm(vector / norm)) <= 1  # also of what is not finite
    if longer:
        raise RoundRefused(f"{who}: an update that is not finite, or longer than {norm:g}; accepted: clipped ones")


def noisy_sum(plan: AveragingPlan, updates: Collection[Update], length: int, kept: Path | None) -> Vector:
    """The sum before the first round, with the plan's noise: differentially private, (length,). Drawn once.

    Args:
        kept: file of the sum, which is written before it is shown, and is what later calls give; None: in memory, for
            simulations.

    Raises:
        RoundRefused: an update is of another plan or round, there twice, or as `AveragingServer.take`.
        MechanismFailed: the plan has no such sum, or the file is of another plan.
    """
    if plan.columns_noise is None:
        raise MechanismFailed("averaging: the plan has no sum before the first round")
    if kept is not None and kept.exists():
        said = json.loads(kept.read_bytes())
        if said["plan"] != plan.digest or len(said["sum"]) != length:
            raise MechanismFailed(f"{kept} has the sum of another plan; accepted: a file for each run")
        return np.array(said["sum"], dtype=np.float64)
    total, seen = np.zeros(length), set[str]()
    for update in updates:
        if update.plan != plan.digest or update.round != 0 or update.client in seen:
            raise RoundRefused(f"client {visible(update.client)}: an update of another plan or round, or a second one")
        seen.add(update.client)
        check_vector(update, length, 1.0)
        total += update.vector
    noised = torch.from_numpy(total)
    GaussianNoise().add_(noised, plan.columns_noise)
    found: Vector = noised.numpy()
    if kept is not None:
        write_durably(kept, json.dumps({"plan": plan.digest, "sum": found.tolist()}))
    return found


@contextmanager
def kept_rounds(
    directory: Path, key: bytes, plan: AveragingPlan, *, entry_id: str, resuming: bool = False
) -> Iterator[Journal]:
    """A journal that keeps the state after each round, encrypted, and no run that could draw noise again.

    Args:
        directory: of this run alone. Restricted.
        key: 32 secret bytes.
        entry_id: of the ledger's entry that paid for the run.
        resuming: rounds may have been closed before.

    Raises:
        ResumeRefused: a round was begun and its state is not there; the journal or the state is missing, damaged, of
            another plan or entry, or in use.
    """
    with ExitStack() as stack:
        steps = stack.enter_context(StepJournal(directory, plan.rounds, 0, resuming=resuming))
        states = Checkpoints(directory / "states", key, plan_digest=plan.digest, entry_id=entry_id)
        journal = ResumableJournal(steps, states, CheckpointPolicy(every=1), _refuse)
        journal.latest()
        if steps.replayed:
            raise ResumeRefused(
                f"{directory}: {steps.executed} rounds were begun, and the state after the last one is not there. Its "
                "noise cannot be drawn again; what the run cost stays spent, and a new one is a new spend"
            )
        yield journal


def _refuse(problem: str) -> None:
    raise MechanismFailed(f"averaging: a round's state could not be kept, so its model is not shown: {problem}")
