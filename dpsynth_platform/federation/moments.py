"""Federated moments of pictures: the sealed plan of `image_moments` over pictures of several participants.

What belongs here: which sum each round opens and at which cost, a participant's vector, and files of opened sums. What
does not: the queries, the estimates and the draws, which are the central method's (`synth.images.moments_queries`,
`moments_measuring`), and the other columns, which are counted first by a `MarginalsPlan` of their own.

**Rounds.** The central method asks for one noisy sum after the other, each by what the noisy ones before have shown.
Here each is a round. Its document has those results and all that followed from them (the basis, networks); a
participant runs the same estimation on them, up to the first sum that is missing, and so has the query.

**What a unit adds.** In each participant's rows, all records of a unit make one batch. The query's exact sum of that
batch is v, in clipping norms: a vector of each record has L2 norm 1 at most, so that v has b at most. Of matrices, v is
the upper triangle with entries off the diagonal times sqrt(2), whose norm is the matrix's. Class counts and
histograms are counts of records, as in the central method. `fixed_point` clips v to the L2 norm b and rounds it towards
zero, in units of 1/scale. That clips nothing where a query is honest.

**Sensitivity**, by unit. Let P be a participant, and v_P(u) what it adds for the unit u: a function of u's own records
there and of public numbers, whole, with |v_P(u)|_2 <= b scale, checked in whole numbers. P's vector is the sum over its
units, so that one unit's records move it by v_P(u). An entry clipped to the bound B moves no further. A unit in at most
k participants moves the sum of all by at most k b scale in L2, and by sqrt(length) k b scale in L1:

    add-or-remove, zero-out   |sum_P v_P(u)|_2            <= k b scale
    replace-one               |sum_P v_P(u) - v'_P(u)|_2  <= 2 k b scale    (vectors may point in opposite directions)

This is the sensitivity that the central event has for b k records (`moments_plan.event_of`). Under `fixed-graph` no
unit has records of its own, and it is refused (`SkellamSumsEvent`).

**Whatever the document says.** Nothing above uses what a query computes. The batch holds one unit alone, so that even
results that a dishonest server has made up (networks whose sums are not exact, a basis of huge numbers) give a function
of that unit. Where it fails on a unit, the unit adds zeros: a refusal would show that there is one. A query that fails
without records, is longer than the plan has it, or is not the round's, is refused before a record is read.

**Scale.** Rounding towards zero costs no sensitivity, but shortens: an entry by half a unit of fixed point for each
unit of privacy, on average. The scale is the least power of two at which all expected units together lose at most
`LOST` deviations of an entry's noise that way, and a vector of norm 1 with even entries at most `LOST_OF_NORM`: what is
lost of a matrix may be all in one direction, and many vectors are shorter than the clipping norm. The modulus is
`SumPlan.modulus_bits`, within 62 bits.

**Length of documents.** Each has all results before it, networks included. The plan knows the shape of each of them at
most (`most_arrays`), so that one that is too long for a message is refused before it costs (`check_lengths`), and a
participant decodes no larger array.

**Who sees the sums.** A round's document shows all earlier noisy sums to participants and to who carries messages. The
plan's noise is counted against them as against the coordinator; a participant knows its own share of it, so that a plan
with `colluders` 0 does not protect from one that is curious.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.federation.columns_first import ColumnsFirst, counted_first
from dpsynth_platform.federation.plans import Measuring, Round, Terms, least_noise, undeclared_pictures
from dpsynth_platform.federation.sums import SCALE, SumPlan, Whole, fixed_point
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import AccountingError, ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import PICTURES, write_durably
from dpsynth_platform.privacy.events import DpEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth import counted
from dpsynth_platform.synth.images import moments_plan as queries
from dpsynth_platform.synth.images.exact_sums import Batch
from dpsynth_platform.synth.images.generator import COLUMNS, PLAN, UNCOUNTED, columns_part
from dpsynth_platform.synth.images.image_moments import MomentsParameters
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.images.moments_fitting import BINS, Floats
from dpsynth_platform.synth.images.moments_measuring import first_unmeasured
from dpsynth_platform.synth.images.moments_model import write_arrays
from dpsynth_platform.synth.images.moments_plan import MomentsPlan
from dpsynth_platform.synth.images.noisy_results import DEVIATION, Known, Opened, Query, begin, complete, no_records
from dpsynth_platform.synth.images.picture_classifier import FEATURES, weight_shapes
from dpsynth_platform.synth.interface import PlanInputs, SealedPlan
from dpsynth_platform.synth.tabular.domain import Domain

LOST, LOST_OF_NORM = 1 / 8, 1 / 64
"""Deviations of the noise that rounding may take from an entry, and its part of the norm of a vector of norm 1."""
MOST_GRADIENTS = 1000
_MATRICES = (queries.SCATTER, queries.COVARIANCES, queries.WITHIN)
MostArrays = Mapping[str, Mapping[str, tuple[str, tuple[int, ...]]]]
Arrays = Mapping[str, Mapping[str, npt.NDArray[Any]]]


@dataclass(frozen=True)
class VectorTerms(Terms):
    """The parameters of sums of vectors. A cell's count is here an entry's sum over records of norm 1.

    Attributes:
        scales: units of a clipping norm, in each round.
    """

    scales: list[int]

    def vectors(self, index: int, length: int, adjacency: str) -> SumPlan:
        """The sum of a round."""
        return self._sum(index, length, adjacency, self.scales[index], norm=self.max_contributions)


@dataclass(frozen=True)
class VectorRound:
    """What is summed in one round. Public.

    Attributes:
        results: the noisy sums before, and what follows from them, in JSON form.
        query: that they ask for next.
        digest: of plan, index and results.
    """

    index: int
    results: Mapping[str, Any] = field(repr=False)
    sum: SumPlan
    digest: str
    query: Query = field(compare=False, repr=False)
    layout: ImageLayout = field(compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, "results": self.results}

    def units(self, bounded: Path | pa.Table) -> Whole:
        total = np.zeros(self.sum.length, dtype=np.int64)
        for batch in batches_by_unit(self.layout, bounded):
            total += self.of_unit(batch)
        return total

    def of_unit(self, batch: Batch) -> Whole:
        """What one unit adds, of whose records alone the batch is. Sensitive."""
        try:
            with np.errstate(all="ignore"):
                found = self.query.vector(batch)
        except Exception:  # of results that are made up; what fails here depends on the unit, and must not show
            found = np.zeros(0)
        if found.shape != (self.sum.length,):
            found = np.zeros(self.sum.length)
        return fixed_point(found, self.sum.max_contributions, self.sum.scale)


def batches_by_unit(layout: ImageLayout, bounded: Path | pa.Table) -> Iterator[Batch]:
    """All records of each unit that have a class; the whole table's pictures are in memory. Sensitive."""
    parts = list(layout.read(bounded, owners=True))
    places: dict[str, list[int]] = {}
    for place, owner in enumerate(owner for part in parts for owner in part.owners or ()):
        places.setdefault(owner, []).append(place)
    if places:
        pixels, classes = (np.concatenate(each) for each in zip(*((p.pixels, p.classes) for p in parts), strict=True))
        for mine in places.values():
            yield Batch(pixels[mine], classes[mine])


@dataclass(frozen=True)
class PictureMomentsPlan(ColumnsFirst):
    """A sealed plan whose parameters are `MomentsParameters`, with `VectorTerms` as `federated`."""

    METHODS = ("image_moments",)

    @classmethod
    def of(
        cls,
        contract: DataContract,
        schema: pa.Schema,
        *,
        participants: Sequence[str],
        minimum: int,
        colluders: int,
        most_records: int,
        silos: int = 1,
    ) -> PictureMomentsPlan:
        """Calibrates and seals a plan for the contract's pictures, columns and guarantee, from public inputs.

        Args:
            schema: of the participants' tables.
            most_records: bounds each participant's sums, as the largest number of records; see `Terms`.

        Raises:
            ContractError: no pictures, columns whose values are to be learned, or weighted rows.
            AccountingError: a value is impossible, no noise meets the guarantee, its units are so many that rounding
                would need a finer scale than noise can be drawn in, or messages would be too long.
        """
        target, layout = Guarantee.target(contract), ImageLayout.of(contract)
        b = contract.privacy.max_contributions
        inputs = PlanInputs(contract, schema, replace(target, max_contributions=b * silos))
        bare = VectorTerms(sorted(participants), minimum, colluders, most_records, b, silos, [], [])
        part = columns_part(inputs)
        columns = None if part is None else counted_first(contract, schema, part, bare)
        expected = contract.privacy.expected_units
        central = queries.planned(layout.form, layout.number, expected, inputs.guarantee, counted.event_of(columns))
        names, adjacency = names_of(central), inputs.guarantee.adjacency
        scales = [_scale(expected * silos, central.noise[name], most) for name, most in lengths(central).items()]

        def terms_with(factor: float) -> tuple[VectorTerms, DpEvent]:
            deviations = [factor * central.noise[name] * scale for name, scale in zip(names, scales, strict=True)]
            shares = [bare.share_of(deviation**2) for deviation in deviations]
            terms = replace(bare, share_variances=shares, scales=scales)
            return terms, counted.together(columns, *(each.event for each in _sums(terms, central, adjacency)))

        terms, event = least_noise(terms_with, 1.0, inputs.guarantee)
        noise = {
            name: _deviation(share, scale, len(participants))
            for name, share, scale in zip(names, terms.share_variances, scales, strict=True)
        }
        parameters = MomentsParameters(
            columns=columns,
            layout=layout,
            memory_bytes=int(queries.describe(central)["predicted_memory_bytes"]),
            moments=replace(central, noise=noise),
            federated=asdict(terms),
        )
        made = cls(SealedPlan.of(cls.METHODS[0], inputs, parameters.parts(inputs, event)))
        made.check_lengths()
        return made

    @cached_property
    def parameters(self) -> MomentsParameters:
        try:
            return MomentsParameters.of(self.sealed)
        except (GrantRefused, ContractError):
            raise ValueError("no parameters of federated moments") from None

    @property
    def moments(self) -> MomentsPlan:
        return self.parameters.moments

    @cached_property
    def terms(self) -> VectorTerms:
        return VectorTerms(**(self.parameters.federated or {}))

    @property
    def counted(self) -> counted.Columns:
        return self.parameters.columns

    @property
    def pictures(self) -> ImageLayout:
        return self.parameters.layout

    @property
    def own_reads(self) -> Sequence[str]:
        return [self.pictures.column, *(condition.column for condition in self.pictures.conditions)]

    @property
    def own_rounds(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, 1) for name in names_of(self.moments))

    @cached_property
    def own_sums(self) -> tuple[SumPlan, ...]:
        return _sums(self.terms, self.moments, self.guarantee.adjacency)

    @property
    def own_document_bytes(self) -> int:
        empty = {
            name: {part: {"type": type_, "shape": shape, "data": ""} for part, (type_, shape) in parts.items()}
            for name, parts in most_arrays(self.moments).items()
        }
        data = sum(
            4 * math.ceil(np.dtype(type_).itemsize * math.prod(shape) / 3)
            for parts in most_arrays(self.moments).values()
            for type_, shape in parts.values()
        )
        return len(json.dumps({"index": len(self.rounds), "results": empty})) + data

    def _fits(self) -> bool:
        moments = self.moments
        sizes = (moments.classes, moments.components, moments.clusters, *moments.shape)
        return (
            all(isinstance(name, str) for name in self.reads)
            and all(type(size) is int and size >= 1 for size in sizes)
            and all(type(size) is int and size >= 0 for size in (moments.frequencies, moments.networks, moments.rounds))
            and moments.shape == self.pictures.form.shape
            and moments.classes == self.pictures.number
            and set(moments.noise) == set(names_of(moments))
            and all(isinstance(noise, float) and 0 < noise < math.inf for noise in moments.noise.values())
            and super()._fits()
        )

    def undeclared(self, domain: Domain, pictures: ImageLayout | None) -> Iterator[str]:
        yield from super().undeclared(domain, pictures)
        yield from undeclared_pictures(self.pictures, pictures)

    def own_round(self, document: Mapping[str, Any]) -> VectorRound:
        if not isinstance(document, dict) or document.keys() != {"index", "results"}:
            raise AccountingError("a round that is no object of index and results")
        return self.round(**document)

    def round(self, index: int, results: Mapping[str, Any]) -> VectorRound:
        """The round after these results, from any sender.

        Args:
            results: in JSON form (`to_json`).

        Raises:
            AccountingError: they are no results, they ask for nothing or for another sum, or a longer one.
        """
        most = dict(enumerate(lengths(self.moments).items(), start=self.before))
        try:
            name, longest = most[index]
            with np.errstate(all="ignore"):
                query = first_unmeasured(Known.of(self.moments, _from_json(results, most_arrays(self.moments))))
                length = 0 if query is None else query.vector(no_records(self.moments)).size
            valid = type(index) is int and query is not None and query.name == name and 1 <= length <= longest
        except Exception:  # whatever results that are made up do to an estimate: no record is read yet
            valid = False
        if not valid or query is None:
            raise AccountingError("a round has results that the plan does not allow")
        plan = self.terms.vectors(index - self.before, length, self.guarantee.adjacency)
        digest = canonical_digest({"plan": self.digest, "index": index, "results": results})
        return VectorRound(index, results, plan, digest, query, self.pictures)

    @contextmanager
    def measuring(self, directory: Path, progress: Progress = silent) -> Iterator[MeasuringVectors]:
        with ExitStack() as stack:
            if self.columns is None:
                write_durably(directory / UNCOUNTED, "")
            columns = stack.enter_context(self.measuring_columns(directory / COLUMNS, progress))
            pictures = private_directory(directory / PICTURES)
            begin(self.moments, pictures)
            yield MeasuringVectors(self, directory, columns, Opened(self.moments, pictures, None, progress))


@dataclass
class MeasuringVectors:
    """A run's opened sums in a model directory as the central method leaves it, complete after the last round."""

    plan: PictureMomentsPlan
    directory: Path
    columns: Measuring | None
    opened: Opened[MomentsPlan]
    _asked: VectorRound | None = None

    def next_round(self) -> Round | None:
        if self.columns is not None:
            if (asked := self.columns.next_round()) is not None:
                return asked
            self.columns = None
        if (query := first_unmeasured(self.opened)) is None:
            complete(self.plan.moments, self.opened.directory)
            write_durably(self.directory / PLAN, self.plan.to_json())
            return None
        index = self.plan.before + names_of(self.plan.moments).index(query.name)
        self._asked = self.plan.round(index, _to_json(self.opened.read))
        return self._asked

    def add(self, opened: Whole, finished: int) -> None:
        if self.columns is not None:
            self.columns.add(opened, finished)
            return
        asked, self._asked = self._asked, None
        if asked is None:
            raise MechanismFailed("an opened sum of no round; accepted: after next_round")
        shape = asked.query.sums(no_records(self.plan.moments)).shape
        kept = asked.query.of_vector(opened / asked.sum.scale, shape)
        deviation = _deviation(asked.sum.share_variance, asked.sum.scale, finished)
        write_arrays(self.opened.directory / f"{asked.query.name}.npz", {"sums": kept, DEVIATION: np.array(deviation)})


def names_of(moments: MomentsPlan) -> list[str]:
    """The queries in their order, which JSON does not keep. Raises `ValueError` for more than any plan has."""
    if moments.networks * moments.rounds > MOST_GRADIENTS:
        raise ValueError(f"{moments.networks} networks of {moments.rounds} rounds")
    return list(queries.shares_of(moments.clusters, moments.networks, moments.rounds))


def sum_shapes(moments: MomentsPlan) -> dict[str, tuple[int, ...]]:
    """The largest shape of each query's sums, in order. Noisy sums decide on fewer components."""
    classes, values, basis, clusters = moments.classes, moments.form.values, moments.basis, moments.clusters
    size, names = min(moments.components, basis), names_of(moments)
    found: dict[str, tuple[int, ...]] = {
        queries.COUNTS: (classes,),
        queries.BRIGHTNESS: (BINS,),
        queries.MEANS: (classes, values),
        queries.SPREAD: (BINS,),
        queries.SCATTER: (basis, basis),
        queries.CENTRES: (classes, size),
        queries.COVARIANCES: (classes, size, size),
        queries.WITHIN: (classes, size, size),
    }
    for round_ in range(queries.CLUSTER_ROUNDS):
        of_counts, of_sums = queries.cluster_names(round_)
        found |= {of_counts: (classes * clusters,), of_sums: (classes * clusters, size)}
    found |= dict.fromkeys(map(queries.style_name, queries.STYLES), (1,))
    found |= dict.fromkeys(_gradients(moments), (FEATURES + 1, classes))
    return {name: found[name] for name in names}


def lengths(moments: MomentsPlan) -> dict[str, int]:
    """The most entries of each query's vector, in order: of matrices, those of the upper triangle."""
    return {
        name: math.prod(shape[:-2]) * math.comb(shape[-1] + 1, 2) if name in _MATRICES else math.prod(shape)
        for name, shape in sum_shapes(moments).items()
    }


def _gradients(moments: MomentsPlan) -> list[str]:
    pairs = itertools.product(range(moments.networks), range(moments.rounds))
    return [queries.gradient_name(network, round_) for network, round_ in pairs]


def most_arrays(moments: MomentsPlan) -> MostArrays:
    """Type and largest shape of each array in a round's results, by result and part."""
    classes, clusters = moments.classes, moments.clusters
    size = min(moments.components, moments.basis)
    sums = {name: {"sums": ("<i8", shape), DEVIATION: ("<f8", ())} for name, shape in sum_shapes(moments).items()}
    found: dict[str, Mapping[str, tuple[str, tuple[int, ...]]]] = {
        **sums,
        "basis": {"basis": ("<f8", (moments.basis, size))},
    }
    if clusters > 1:
        found["clusters-of-draws"] = {"centres": ("<f8", (classes, clusters, size))}
    if moments.networks:
        head = {"head": ("<f8", (FEATURES + 1, classes))}
        weights = {part: ("<f4", shape) for part, shape in weight_shapes(moments.form).items()}
        styles = [*queries.STYLES, *(f"relabelled-{network}" for network in range(1, moments.networks))]
        labels = {"labels": ("<f8", (classes, classes))}
        found |= dict.fromkeys((f"network-{style}" for style in styles), weights | head)
        found |= dict.fromkeys((f"after-{name}" for name in _gradients(moments)), head)
        found |= dict.fromkeys((f"labels-{network}" for network in range(moments.networks)), labels)
    return found


def _sums(terms: VectorTerms, moments: MomentsPlan, adjacency: str) -> tuple[SumPlan, ...]:
    found = lengths(moments).values()
    if not len(terms.share_variances) == len(terms.scales) == len(found):
        raise ValueError("shares of noise or scales of another number of rounds")
    return tuple(terms.vectors(index, most, adjacency) for index, most in enumerate(found))


def _scale(units: int, noise: float, length: int) -> int:
    """Units of a clipping norm, a power of two; see the module.

    Args:
        units: of privacy, over all participants.
        noise: its deviation, in clipping norms.
        length: the most entries of a vector.
    """
    least = max(1.0, units / 2 / (LOST * noise), math.sqrt(length) / 2 / LOST_OF_NORM)
    return max(SCALE, 1 << math.ceil(math.log2(least)))


def _deviation(share_variance: float, scale: int, finished: int) -> float:
    """Of the noise of so many participants, in records."""
    return math.sqrt(finished * share_variance) / scale


def _to_json(arrays: Arrays) -> dict[str, Any]:
    """Arrays by name, exactly; as `_from_json` reads them."""
    return {
        name: {part: _coded(np.asarray(array)) for part, array in sorted(parts.items())}
        for name, parts in sorted(arrays.items())
    }


def _coded(array: npt.NDArray[Any]) -> dict[str, Any]:
    held = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
    return {"type": held.dtype.str, "shape": list(held.shape), "data": base64.b64encode(held.tobytes()).decode("ascii")}


def _from_json(document: Mapping[str, Any], most: MostArrays) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """The arrays of a document.

    Raises `ValueError` and others for what is no such document, has an array that is not among these, is of another
    type or larger, or has a number that is not finite.
    """
    return {
        name: {part: _decoded(each, *most[name][part]) for part, each in parts.items()}
        for name, parts in document.items()
    }


def _decoded(document: Mapping[str, Any], type_: str, most: tuple[int, ...]) -> Floats:
    shape = document["shape"]
    if document["type"] != type_ or not all(0 <= size <= limit for size, limit in zip(shape, most, strict=True)):
        raise ValueError("an array of another type, or a larger one")
    found = np.frombuffer(base64.b64decode(document["data"], validate=True), dtype=document["type"])
    if not np.isfinite(found).all():
        raise ValueError("a number that is not finite")
    return found.reshape(shape).copy()
