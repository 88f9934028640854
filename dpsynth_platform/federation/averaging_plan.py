"""The sealed numbers of federated averaging with a trusted aggregator: who is asked, what is clipped, which noise.

What belongs here: `AveragingPlan`, its event, its calibration and what it promises whom. What does not: clients and the
server (`averaging`), and what a model's local training is (`averaged_arn`). It is no `plans.FederatedPlan`: those are
of sums that no one opens without noise, and here the aggregator adds it.

Two ways to ask clients (Ponomareva et al. 2026, section 6 and algorithm 7):

- `separated` (DP-FTRL): any that are available, each in a limited number of rounds, a minimum separation apart. Noise
  is correlated over rounds. The guarantee needs no chance of who is asked.
- `poisson` (DP-FedAvg; McMahan et al. 2018): each by a coin of its own in each round, which only the aggregator
  knows. Noise is independent. Clients that are not there when their coin asks them only lose influence.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from dp_accounting import dp_event

from dpsynth_platform.federation.trust import Protection, protections
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.calibration import NOISE_RANGE, noise_for
from dpsynth_platform.privacy.events import DpEvent, MatrixGaussianEvent, dp_sgd_event
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.matrix_noise import optimized_coefficients, prefix_sums

Asking = Literal["separated", "poisson"]
ADJACENCY = "zero-out"
LARGEST = 1e6


@dataclass(frozen=True)
class AveragingPlan:
    """All numbers that decide how clients' rows are used, fixed before any is read. All are public.

    In each round clients train from the model's weights on their own rows, and send what the weights changed by,
    clipped to `clipping_norm`. The sum of a round is divided by `cohort`, however many came: a missing client is zeros.

    Attributes:
        clients: the public, expected number of clients; with `poisson`, the coin's probability is cohort / clients.
        cohort: how many are asked in a round, at most (`separated`) or in expectation (`poisson`).
        noise_multiplier: the deviation of the noise before C^-1 over the clipping norm.
        max_contributions: b, the most rows of a client.
        asking: how clients are asked.
        participations: the most rounds that a client is in; with `poisson`, all of them.
        separation: from one of a client's rounds to its next one, at least.
        coefficients: of C, from its diagonal down (`privacy.matrix_noise`); with `poisson`, 1 alone.
        columns_noise: of one sum of vectors of norm 1 before the first round, one of each client, over that norm; None:
            there is none.
        server_rate: by which the mean update, with `momentum`, is added to the weights.
        local_rate: of each of the `local_steps` at a client.

    Raises:
        AccountingError: a value is impossible; the message names the field, the value and the accepted ones.
    """

    clients: int
    rounds: int
    cohort: int
    noise_multiplier: float
    max_contributions: int
    clipping_norm: float = 1.0
    asking: Asking = "separated"
    participations: int = 1
    separation: int = 1
    coefficients: tuple[float, ...] = (1.0,)
    columns_noise: float | None = None
    server_rate: float = 1.0
    momentum: float = 0.0
    local_rate: float = 0.1
    local_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "cohort", "local_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _impossible(name, value, "a whole number from 1")
        for name in ("clipping_norm", "server_rate", "local_rate"):
            if not _is_number(value := getattr(self, name)) or not 0 < value <= LARGEST:
                raise _impossible(name, value, f"a number above 0, at most {LARGEST:g}")
        if self.clipping_norm < 1 / LARGEST:  # whose squares could vanish
            raise _impossible("clipping_norm", self.clipping_norm, f"a number from {1 / LARGEST:g}")
        if not isinstance(self.coefficients, tuple):  # which cannot be changed later
            raise _impossible("coefficients", self.coefficients, "a tuple of numbers")
        if not _is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise _impossible("momentum", self.momentum, "a number from 0 to below 1")
        if self.cohort > self.clients:
            raise _impossible("cohort", self.cohort, f"at most all {self.clients} clients")
        if self.asking not in get_args(Asking):
            raise _impossible("asking", self.asking, ", ".join(get_args(Asking)))
        if self.asking == "poisson" and (self.participations, self.separation, self.coefficients) != (
            self.rounds,
            1,
            (1.0,),
        ):
            raise AccountingError(
                "averaging plan: clients that are asked by coins may be in any round, and their noise is independent; "
                f"accepted: participations {self.rounds}, separation 1, coefficients 1"
            )
        _ = self.event  # checks the rest

    @cached_property
    def event(self) -> DpEvent:
        """The cost of the whole run for one client, whatever comes of it."""
        parts: list[DpEvent] = []
        if self.columns_noise is not None:
            parts.append(_columns_event(self.columns_noise, self.max_contributions))
        parts.append(self._training)
        return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)

    @property
    def _training(self) -> DpEvent:
        if self.asking == "poisson":
            return dp_sgd_event(
                records=self.clients,
                batch_size=self.cohort,
                noise_multiplier=self.noise_multiplier,
                steps=self.rounds,
                adjacency=ADJACENCY,
                max_contributions=self.max_contributions,
                sampled="user",
            )
        return MatrixGaussianEvent(
            noise_multiplier=self.noise_multiplier,
            coefficients=self.coefficients,
            rounds=self.rounds,
            participations=self.participations,
            separation=self.separation,
            adjacency=ADJACENCY,
            max_contributions=self.max_contributions,
        )

    @property
    def noise_deviation(self) -> float:
        """Deviation of the noise on each coordinate of C times the sums."""
        return self.noise_multiplier * self.clipping_norm

    @classmethod
    def calibrated(
        cls, guarantee: Guarantee, *, bands: int | None = None, columns_share: float = 0.0, **parameters: Any
    ) -> AveragingPlan:
        """The plan with the least noise multiplier that meets a guarantee for a client, and with other `parameters`.

        Args:
            bands: of C, whose coefficients are optimized for the sums with momentum; None: as many as the separation.
            columns_share: of the squared ratio of sensitivity and noise, for the sum before the first round.

        Raises:
            AccountingError: a field is impossible or unknown, the guarantee is of another adjacency or unit, or no
                noise meets it.
        """
        check_unit(guarantee)
        accepted = {each.name for each in fields(cls)} - {
            "noise_multiplier",
            "coefficients",
            "columns_noise",
            "max_contributions",
        }
        if unknown := parameters.keys() - accepted:
            raise AccountingError(
                f"averaging plan: {', '.join(sorted(unknown))}; accepted: {', '.join(sorted(accepted))}"
            )
        if not 0 <= columns_share < 1:
            raise AccountingError(f"averaging plan: columns_share {columns_share!r}; accepted: from 0 to below 1")
        b, target = guarantee.max_contributions, (guarantee.epsilon, guarantee.delta)
        columns_noise = None
        if columns_share:
            alone = noise_for(lambda noise: _columns_event(noise, b), *target).value
            columns_noise = alone / math.sqrt(columns_share)
        # Impossible numbers are refused before any strategy is optimized for them.
        plan = cls(
            noise_multiplier=NOISE_RANGE[1],
            max_contributions=b,
            columns_noise=columns_noise,
            **_with_limits(parameters),
        )
        if plan.asking == "separated":
            number = min(plan.separation, plan.rounds) if bands is None else bands
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= plan.separation:
                raise _impossible("bands", number, f"a whole number from 1 to the separation, {plan.separation}")
            found = optimized_coefficients(min(number, plan.rounds), prefix_sums(plan.rounds, plan.momentum))
            plan = replace(plan, coefficients=found)
        noise = noise_for(lambda value: replace(plan, noise_multiplier=value).event, *target).value
        return replace(plan, noise_multiplier=noise)

    def check(self, guarantee: Guarantee) -> None:
        """Computes the event's cost anew, as a client does before its first round.

        Raises:
            AccountingError: the plan costs more than the guarantee, or is of another unit, adjacency or b.
        """
        check_unit(guarantee)
        if self.max_contributions != guarantee.max_contributions:
            raise AccountingError(
                f"averaging plan: at most {self.max_contributions} rows of a client; accepted: the guarantee's "
                f"{guarantee.max_contributions}"
            )
        spent = epsilon(self.event, guarantee.delta).epsilon
        if spent > guarantee.epsilon:
            raise AccountingError(
                f"averaging plan: it costs epsilon {spent:g} at delta {guarantee.delta:g}; accepted: at most "
                f"{guarantee.epsilon:g}"
            )

    def protections(self, delta: float) -> tuple[Protection, ...]:
        """Against whom a client has the guarantee: not against the aggregator."""
        return protections("central", self.event, delta)

    def in_words(self, delta: float) -> tuple[str, ...]:
        """What the guarantee is, and what it is not, in sentences."""
        _, others, recipient = self.protections(delta)
        if others.epsilon is None or recipient.epsilon is None:  # not of a trusted aggregator
            raise AccountingError("averaging plan: no guarantee against recipients; accepted: trust central")
        rows = number_of(self.max_contributions, "row")
        limits = (
            f"Each client is in at most {number_of(self.participations, 'round')} of {self.rounds}, and a round of it "
            f"is at least {self.separation} after its last one: its own record refuses others, and so does the "
            "aggregator's."
            if self.asking == "separated"
            else f"In each of {self.rounds} rounds each client is asked by a coin of its own of probability "
            f"{self.cohort / self.clients:.3g}. The guarantee rests on it that only the aggregator, beside the "
            "client itself, learns whether a client was asked, in which rounds, and how many were: not by names, "
            "numbers, errors or times. A client cannot check that."
        )
        same = (
            "the same clients take part in the same rounds, and one of them adds zeros. So it is hidden what a "
            "client's rows say, but not who takes part, when, and how many there are."
            if self.asking == "separated"
            else "the same clients are there, and one of them adds zeros in the rounds in which it is asked. So it is "
            "hidden what a client's rows say, but not who is there."
        )
        return (
            f"One client is protected: all of its rows together, at most {rows}. Neighbours (zero-out): {same}",
            f"Against recipients of the model and of what is made of it, and against other clients, who see the model "
            f"of every round: ({upper_bound(recipient.epsilon)}, {upper_bound(delta)})-differential privacy, by the "
            "noise of the aggregator.",
            "Against the aggregator there is no guarantee: it is trusted. It sees the update of each client, keeps the "
            "sums of the last rounds without noise, and has to add the noise.",
            limits,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the plan in canonical JSON: what clients' records and checkpoints are of."""
        return canonical_digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as `from_json` reads them."""
        return asdict(self) | {"coefficients": list(self.coefficients)}

    @classmethod
    def from_json(cls, document: Any) -> AveragingPlan:
        """Raises `AccountingError` where a key is missing or unknown, or a value impossible."""
        names = {each.name for each in fields(cls)}
        if not isinstance(document, dict) or document.keys() != names:
            raise AccountingError(f"an averaging plan's document has the keys {', '.join(sorted(names))}, all of them")
        coefficients = document["coefficients"]
        if not isinstance(coefficients, list):
            raise _impossible("coefficients", coefficients, "a list of numbers")
        return cls(**(document | {"coefficients": tuple(coefficients)}))


def _columns_event(noise: float, max_contributions: int) -> MatrixGaussianEvent:
    """Of one sum of vectors of norm 1, one of each client: a single round."""
    return MatrixGaussianEvent(noise, (1.0,), 1, 1, 1, ADJACENCY, max_contributions)


def check_unit(guarantee: Guarantee) -> None:
    """Raises `AccountingError` unless a guarantee can be one of a client."""
    if guarantee.adjacency != ADJACENCY or guarantee.unit == "example" or guarantee.weighting != "rows":
        raise AccountingError(
            f"averaging over clients with {guarantee}; accepted: unit user or group, which a client is, adjacency "
            f"{ADJACENCY} and weighting rows"
        )


def _with_limits(parameters: dict[str, Any]) -> dict[str, Any]:
    """With `poisson`, a client may be in any round."""
    if parameters.get("asking") == "poisson" and "rounds" in parameters:
        return {"participations": parameters["rounds"]} | parameters
    return parameters


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _impossible(name: str, value: Any, accepted: str) -> AccountingError:
    return AccountingError(f"averaging plan: {name} {value!r:.200}; accepted: {accepted}")
