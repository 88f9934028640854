"""The common part of networks over a table's columns: counts of single columns, then training, then drawing.

What belongs here: the order of these parts, their records, and what an interrupted run may continue. What does not:
the plan (`network_plan`), training (`synth.network_training`), and the networks. A model directory is that of
independent columns (`tabular.marginals`), and holds in addition

    network/     the training, and then its weights (`network_training`)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import GrantRefused, MechanismFailed
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.events import DpEvent, Sampled
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.scrub.fingerprints import FINGERPRINT_DTYPE, OWNER_COLUMN, fingerprints_of
from dpsynth_platform.synth.interface import MechanismRun, SealedPlan
from dpsynth_platform.synth.neural.network_plan import NetworkParameters
from dpsynth_platform.synth.tabular import measurements
from dpsynth_platform.synth.tabular.column_states import Array, ColumnStates
from dpsynth_platform.synth.tabular.cost import TrainingWork
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Codes, Domain
from dpsynth_platform.synth.tabular.marginals import described_counts, prepared, score_sensitivity
from dpsynth_platform.synth.tabular.measurements import MeasurementLog, NoisyCounts, read_measurements
from dpsynth_platform.synth.tabular.paid import of_mechanism
from dpsynth_platform.synth.tabular.rounds import SelectionGenerator

if TYPE_CHECKING:
    from torch import Tensor

    from dpsynth_platform.synth.network_training import Prepared
    from dpsynth_platform.training.interface import Batch
    from dpsynth_platform.training.plan import TrainingPlan

NETWORK = "network"
"""Name within a model directory."""
FEDERATED = "federated"
"""The key of a federated plan's terms in its parameters; what trains there is `federation.gradients`."""


@dataclass(frozen=True)
class NetworkForm:
    """What a network's weights depend on, beside its columns; see `NetworkParameters`."""

    width: int
    evidence: Sequence[int] = ()


@dataclass(frozen=True)
class StateRecords:
    """The records of a training, `training.interface.Examples`. Sensitive, including their number.

    Attributes:
        states: of each column, shape (records, columns).
        owners: a number for each record's owner; None where they are not needed.
        max_length: rows that a record becomes.
    """

    states: Codes
    owners: npt.NDArray[np.int64] | None = None
    max_length: int = 1

    def __len__(self) -> int:
        return len(self.states)

    def batch(self, indices: Sequence[int]) -> Batch:
        """`states`, whole numbers [records, columns]."""
        import torch

        return {"states": torch.from_numpy(self.states[np.asarray(indices, dtype=np.int64)].astype(np.int64))}

    def units(self, sampled: Sampled) -> list[list[int]] | None:
        from dpsynth_platform.synth.network_training import units_by_owner

        return None if self.owners is None or sampled == "record" else units_by_owner(self.owners)


@dataclass(frozen=True)
class _Trained:
    """`network_training.TrainedNetwork`, with what the plan pays for beside."""

    generator: NetworkGenerator
    plan: SealedPlan
    parameters: NetworkParameters

    @property
    def training(self) -> TrainingPlan:
        return self.parameters.training

    def event_of(self, steps: int, guarantee: Guarantee) -> DpEvent:
        return self.generator.event_so_far(self.plan, self.parameters, steps, guarantee)


class NetworkGenerator(SelectionGenerator[NetworkParameters]):
    """A generator whose rows come from a network over the states of a table's columns."""

    counts_pairs = False
    parameters_type = NetworkParameters
    pace: ClassVar[tuple[float, float]]
    """Of training (`cost.TrainingWork`)."""

    @abstractmethod
    def weights(self, parameters: NetworkParameters, sizes: Sequence[int]) -> int:
        """Number of trained weights, about."""

    def work(self, parameters: NetworkParameters, sizes: Sequence[int]) -> TrainingWork:
        """The work of all steps, with columns of so many states."""
        training = parameters.training
        each = training.max_contributions if training.sampled == "user" else 1
        rows = training.steps * training.batch_size * each
        return TrainingWork(rows, len(sizes), self.weights(parameters, sizes), self.pace)

    @abstractmethod
    def ready(
        self, parameters: NetworkParameters, learned: LearnedColumns, device: str, progress: Progress = silent
    ) -> Prepared:
        """The network, tried on random rows before any record is read for training.

        Raises:
            TrainingRefused: training it would not be differentially private.
        """

    @abstractmethod
    def unlinked(self, parameters: NetworkParameters, learned: LearnedColumns) -> Mapping[str, Tensor]:
        """Weights of a network that knows nothing but the noisy counts."""

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        """Calibrates counts and training together, and tries a network of the largest size on random rows."""
        found = NetworkParameters.calibrated(contract, domain, guarantee)
        self.ready(found, LearnedColumns.planned(domain), "cpu")
        return found.to_json()

    def given(self, plan: SealedPlan, evidence: Collection[str]) -> SealedPlan:
        """See `Generator.given`: the network predicts the other columns alone, in the order in which they are drawn.

        Its cost is that of the plan. Raises as `ready`.
        """
        domain, known = Domain.from_json(plan.columns), sorted(set(evidence))
        indices = [index for index, column in enumerate(domain) if set(column.reads) <= set(known)]
        sealed = replace(self.sealed(plan.parameters), evidence=indices, fixed_order=1.0)
        self.ready(sealed, LearnedColumns.planned(domain), "cpu")
        return replace(plan, parameters=plan.parameters | sealed.to_json())

    def sealed(self, plan_parameters: Mapping[str, Any]) -> NetworkParameters:
        if FEDERATED in plan_parameters:
            raise GrantRefused("the plan of a federated run; accepted: its participants, each with its own ledger")
        return NetworkParameters.of(of_mechanism(plan_parameters))

    def form(self, plan: SealedPlan) -> NetworkForm:
        """The width of a plan's network, and which columns it does not predict."""
        if FEDERATED in plan.parameters:
            return NetworkForm(width=plan.parameters["training"]["width"])
        sealed = self.sealed(plan.parameters)
        return NetworkForm(sealed.width, sealed.evidence)

    def event(self, plan_parameters: dict[str, Any], columns: int, guarantee: Guarantee) -> DpEvent:
        return self.sealed(plan_parameters).event(guarantee)

    def event_so_far(
        self, plan: SealedPlan, parameters: NetworkParameters, steps: int, guarantee: Guarantee
    ) -> DpEvent:
        """The cost of the plan with so many executed steps."""
        return self._whole(
            Domain.from_json(plan.columns), plan.parameters, parameters.event(guarantee, steps), guarantee
        )

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        domain, sealed = Domain.from_json(plan.columns), self.sealed(plan.parameters)
        training, one = sealed.training, sealed.noise(1 / len(domain))
        what = "owners" if training.sampled == "user" else "records"
        weights = self.weights(sealed, domain.most_states)
        event = (
            f"{len(domain)} one-way marginals with rounded Gaussian noise, then DP-SGD of a network with about "
            f"{weights:,} weights: {training.paid_steps} paid steps, each with a Poisson sample of about "
            f"{training.batch_size:,} of {training.units:,} expected {what}, gradients clipped to "
            f"{training.clipping_norm:g}, and Gaussian noise of {training.noise_multiplier:.4g} times that"
        )
        counted = described_counts(domain, sigma_one=one, memory=0)
        records = training.units * (training.max_contributions if training.sampled == "user" else 1)
        memory = 4 * records * len(domain) + 16 * 8 * weights + 3 * 2**27  # measured: up to 380 MB (`tbart`, adult)
        return {
            "event": event,
            "sigma_one": one,
            "noise_multiplier": training.noise_multiplier,
            "steps": training.steps,
            **(counted | {"predicted_memory_bytes": memory}),
            "predicted_training_seconds": self.work(sealed, domain.most_states).seconds,
        }

    def mechanism(self, plan: SealedPlan, records: Records, log: MeasurementLog, progress: Progress) -> None:
        """The counts of single columns; training follows in `measure` or `run`."""
        sealed = self.sealed(plan.parameters)
        draws = sealed.draws(log, score_sensitivity(plan), records.parts)
        draws.columns(records, sealed.noise(1 / len(records.domain)), progress)

    def measure(
        self,
        plan: SealedPlan,
        bounded: Path | pa.Table,
        directory: Path,
        progress: Progress = silent,
        engine: Engine | None = None,
    ) -> None:
        """Everything that reads the data, without checkpoints: an interrupted training is lost, and stays spent."""
        super().measure(plan, bounded, directory, progress, engine)
        self._train_at_once(plan, bounded, directory, progress)

    def run(self, run: MechanismRun) -> None:
        """Counts the columns, trains the network, fits the counts, and measures quality.

        Without a key for checkpoints, an interrupted training is lost.
        """
        self.check(run.plan)
        before = self.is_complete(run.directory)
        if not before:
            self._train(run)
        self.estimate(run.plan, run.directory, device=run.device, progress=run.progress)
        if not before:
            self.measure_quality(run)

    def _train(self, run: MechanismRun) -> None:
        if run.checkpoints is None:
            super().measure(run.plan, run.read, run.directory, run.progress, run.engine)
            self._train_at_once(run.plan, run.read, run.directory, run.progress, run.device)
        else:
            self._train_resumably(run)

    def _train_at_once(
        self, plan: SealedPlan, bounded: Path | pa.Table, directory: Path, progress: Progress, device: str = "cpu"
    ) -> None:
        from dpsynth_platform.synth import network_training
        from dpsynth_platform.training.trial import NoJournal
        from dpsynth_platform.training.weights import save_weights

        sealed, learned = self.sealed(plan.parameters), self.learned(plan, directory)
        if self._left_untrained(sealed, learned, private_directory(directory / NETWORK)):
            return
        ready = self.ready(sealed, learned, device, progress)
        ready.warm_up()
        records = learned.records(sealed, bounded)
        weights = network_training.train_once(
            ready, sealed.training, records, NoJournal(), progress=progress, device=device
        )
        save_weights(weights, directory / NETWORK, sealed.training.steps)

    def _left_untrained(self, sealed: NetworkParameters, learned: LearnedColumns, place: Path) -> bool:
        """Whether noise leaves fewer than two columns with more than one state, or none of them to be predicted.

        Then there is nothing to learn. What training would have cost stays spent. It follows from the noisy counts
        alone.
        """
        from dpsynth_platform.training.weights import is_trained, save_weights

        several = {index for index, share in enumerate(learned.shares) if len(share) > 1}
        if len(several) > 1 and several - set(sealed.evidence):
            return False
        if not is_trained(place):
            save_weights(self.unlinked(sealed, learned), place, 0)
        return True

    def _train_resumably(self, run: MechanismRun) -> None:
        from dpsynth_platform.synth.network_training import train_network
        from dpsynth_platform.synth.text.unread import declare_unread

        place = private_directory(run.directory / NETWORK)
        if not measurements.is_complete(run.directory):
            declare_unread(place)
            super().measure(run.plan, run.read, run.directory, run.progress, run.engine)
        sealed, learned = self.sealed(run.plan.parameters), self.learned(run.plan, run.directory)
        if self._left_untrained(sealed, learned, place):
            return
        train_network(
            run,
            _Trained(self, run.plan, sealed),
            place,
            lambda: self.ready(sealed, learned, run.device, run.progress),
            lambda _: learned.records(sealed, run.read),
        )

    def is_complete(self, directory: Path) -> bool:
        from dpsynth_platform.training.weights import is_trained

        return measurements.is_complete(directory) and is_trained(directory / NETWORK)

    def can_resume(self, directory: Path) -> bool:
        """Whether all counts are complete, the network is not, and enough steps of the training are paid for.

        A complete network is only fitted again: what `quality.paid` draws after it is drawn once.
        """
        from dpsynth_platform.synth.network_training import can_continue

        counted = measurements.is_complete(directory) and not self.is_complete(directory)
        return counted and can_continue(directory / NETWORK)

    def estimate(self, plan: SealedPlan, directory: Path, *, device: str = "cpu", progress: Progress = silent) -> None:
        self.check_trained(directory)
        super().estimate(plan, directory, device=device, progress=progress)

    def check_trained(self, directory: Path) -> None:
        """Raises `MechanismFailed` if counts or training are incomplete."""
        if not self.is_complete(directory):
            raise MechanismFailed(
                "the mechanism stopped before its network was trained; what it cost stays spent, and a new attempt is "
                "a new spend"
            )

    def learned(self, plan: SealedPlan, directory: Path) -> LearnedColumns:
        """By the complete counts in a model directory."""
        stored = read_measurements(directory, plan.digest)
        return LearnedColumns.counted(Domain.from_json(plan.columns).with_values(stored.learned), stored.one_way)


@dataclass(frozen=True)
class LearnedColumns:
    """The states that a network learns, and their shares by the noisy counts."""

    domain: Domain
    states: tuple[ColumnStates, ...]
    shares: list[Array]

    @classmethod
    def planned(cls, domain: Domain) -> LearnedColumns:
        """As many states as columns may have, equally often, before anything is counted."""
        states = []
        for column in domain:
            most, cells = column.most_states, column.size
            state_of = np.arange(cells)
            if most < cells:  # fine cells, which are put together by their counts
                state_of = np.append(np.arange(cells - 1) * (most - 1) // (cells - 1), most - 1)
            states.append(ColumnStates(state_of.astype(np.int32), 1 / np.bincount(state_of)[state_of]))
        return cls(domain, tuple(states), [np.full(item.size, 1 / item.size) for item in states])

    @classmethod
    def counted(cls, domain: Domain, one_way: Sequence[NoisyCounts]) -> LearnedColumns:
        """By the noisy counts of all columns."""
        states, _, measured = prepared(domain, one_way)
        counts = [item.counts.clip(min=1.0) for item in measured]
        return cls(domain, states, [count / count.sum() for count in counts])

    def states_of(self, codes: Codes) -> Codes:
        """Of cell codes, shape (rows, columns)."""
        return np.stack([item.state_of[codes[:, at]] for at, item in enumerate(self.states)], axis=1)

    def records(self, sealed: NetworkParameters, bounded: Path | pa.Table) -> StateRecords:
        """The records of the bounded table."""
        by_owner = sealed.training.sampled == "user"
        names = [*self.domain.reads, *([OWNER_COLUMN] if by_owner else [])]
        found, owners = [np.empty((0, len(self.domain)), dtype=np.int32)], [np.empty(0, dtype=FINGERPRINT_DTYPE)]
        for batch, _ in Records(bounded, self.domain).rows(names):
            found.append(self.states_of(self.domain.encode(batch)))
            if by_owner:
                owners.append(fingerprints_of(batch.column(OWNER_COLUMN)))
        numbers = np.unique(np.concatenate(owners), return_inverse=True)[1].astype(np.int64) if by_owner else None
        return StateRecords(np.concatenate(found), numbers)
