"""What DP inference costs and buys, before any record is read: contexts, tokens and documents.

What belongs here: the mechanism's public parameters, its event, and how many tokens a guarantee has room for. What does
not: which owner is in which context (`inference_contexts`), what is clipped (`inference_choice`), running any of it.

**The mechanism** (Amin et al. 2024, "Private prediction for large-scale synthetic text generation"; the guide, section
5.3.1). Owners are divided into contexts. Of every context, one token after the other is drawn: the model reads each
record of the context, with the text as far as it is written, and says how likely it finds every next token; what it
says by the records of one owner is averaged, and clipped as one to [-c, c]; the owners' vectors are added up and
divided by s; and the token is drawn from the softmax of that, divided by the temperature. With `difference` (Vinod,
Pillutla & Thakurta 2025, "InvisibleInk"), what is clipped is by how much the owner's records change what the model
finds likely without any, which is public and is added again afterwards.

**The claim.** For datasets that differ by one owner's records (`add-or-remove`, `zero-out`), all that is drawn costs at
most what T choices cost, each in the light of those before and of a range of r = 2 c / (s temperature), where T is the
most tokens that are drawn of one context.

**Proof.** s, T and the number of contexts are public; which label a context has follows from noisy counts, which are
paid for by themselves. Which context an owner is in follows from this owner's records, from the labels and from a fresh
key alone (`inference_contexts`): all other owners are where they are without this one. Their vectors, too, are the same
after the same tokens: each follows from the owner's own records (`inference_model`). So contexts that the owner is not
in draw from the very same distributions. In the owner's own, the sum has one vector more or less, which is in [-c, c]
at every token: the logarithm of the ratio of any two tokens' chances moves by at most 2 c / (s temperature), which is
one choice of that range (`events.BoundedRangeSelectionEvent`). When a document ends, and when a context stops, follows
from the tokens that were drawn, and there are at most T. An owner is in one context at most, so contexts compose in
parallel, and all of them cost the same: it does not matter that labels, and so the owner's context, hang on what the
counts have shown. Under `replace-one` an owner could change contexts, and under `fixed-graph` be in several: both are
refused (`events.ParallelDpEvent`).

b, the most records of one owner, is no part of r, since their average is clipped: adding up b vectors, each clipped by
itself, would take b times the range for the same s. How many owners a context really has is never used: with fewer than
s, what is drawn is nearer to what the model writes by itself (`difference`) or to chance (`logits`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpsynth_platform.contracts.text_generation import Inference
from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.calibration import steps_for
from dpsynth_platform.privacy.events import (
    MAX_LEAVES,
    BoundedRangeSelectionEvent,
    DpEvent,
    ParallelDpEvent,
    leaves,
    token_selection_event,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.text.resampling import Resampling


@dataclass(frozen=True)
class InferencePlan:
    """All that decides what is drawn of the contexts. Public.

    Attributes:
        contexts: how many there are.
        batch_size: s, by which sums over a context are divided; about as many owners are in each.
        tokens: T, the most that are drawn of one context.
        records_per_owner: the most records of one owner that are read.
        document_tokens: the most of one document, with the token that ends it.
        clip: of what is clipped, the `difference` from what the model finds likely without records, or the `logits`.
        clipping_norm: c.
        temperature: what scores are divided by.
        top_k: the next token is one of so many that are likeliest without records, or near them; None: any.
        adjacency: which datasets are neighbours.
        max_contributions: b, the most records of one owner.
    """

    contexts: int
    batch_size: int
    tokens: int
    records_per_owner: int
    document_tokens: int
    clip: str
    clipping_norm: float
    temperature: float
    top_k: int | None
    adjacency: str
    max_contributions: int

    @classmethod
    def calibrated(
        cls,
        guarantee: Guarantee,
        declared: Inference,
        *,
        units: int,
        rows: int | None,
        chosen: Resampling | None = None,
        beside: Callable[[DpEvent], DpEvent],
    ) -> InferencePlan:
        """As many tokens as the rows may need or, where as many rows are asked for as can be had, as the budget buys.

        Args:
            guarantee: what everything together may cost.
            declared: the mechanism's parameters.
            units: the public, expected number of owners.
            rows: how many are asked for; None: all that can be had.
            chosen: how rows are chosen among more documents, if they are.
            beside: composes the mechanism's event with that of what else is paid for.

        Raises:
            ContractError: the guarantee has room for fewer documents than are asked for, or for none.
            AccountingError: an adjacency under which contexts do not compose in parallel.
        """
        one = cls(
            contexts=max(1, units // declared.batch_size),
            tokens=1,
            adjacency=guarantee.adjacency,
            max_contributions=guarantee.max_contributions,
            **declared.model_dump(exclude={"about"}),
        )

        def event_of(tokens: int) -> DpEvent:
            return beside(replace(one, tokens=tokens).event)

        def fits(tokens: int) -> bool:
            return epsilon(event_of(tokens), guarantee.delta).epsilon <= guarantee.epsilon

        documents = rows or 1 if chosen is None else chosen.texts_for(rows or 1)
        asked = math.ceil(documents / one.contexts) * one.document_tokens
        if asked > MAX_LEAVES or not fits(asked):
            most = steps_for(event_of, guarantee.epsilon, guarantee.delta).value if fits(1) else 0
            raise ContractError(_too_few(replace(one, tokens=most), guarantee, rows, documents, chosen))
        if rows is not None:
            return replace(one, tokens=asked)
        return replace(one, tokens=steps_for(event_of, guarantee.epsilon, guarantee.delta).value)

    @property
    def event(self) -> DpEvent:
        """What all contexts cost one owner: all are alike, so one stands for each."""
        return ParallelDpEvent(
            [
                token_selection_event(
                    tokens=self.tokens,
                    clipping_norm=self.clipping_norm,
                    temperature=self.temperature,
                    batch_size=self.batch_size,
                    adjacency=self.adjacency,
                    max_contributions=self.max_contributions,
                    clipped="user",
                )
            ]
        )

    @property
    def epsilon_of_choice(self) -> float:
        """The range of one choice, as it stands in the event: what is drawn with, and what is accounted for."""
        ((leaf, _),) = leaves(self.event)
        assert isinstance(leaf, BoundedRangeSelectionEvent)  # noqa: S101  (`token_selection_event` makes nothing else)
        return float(leaf.epsilon)

    @property
    def documents(self) -> int:
        """How many documents are written at least, each as long as may be; shorter ones leave tokens for more."""
        return self.contexts * (self.tokens // self.document_tokens)

    @property
    def records_kept(self) -> int:
        """Records of a context whose keys and values are kept: those that are expected, and as many more as come by
        chance (four deviations), or as a context may be larger where their number is rounded down (a quarter)."""
        owners = math.ceil(1.25 * self.batch_size + 4 * math.sqrt(self.batch_size))
        return owners * min(self.records_per_owner, self.max_contributions)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> InferencePlan:
        """Reads `to_json` back. Raises `GrantRefused`."""
        try:
            return cls(**document)
        except TypeError:
            raise GrantRefused("the sealed plan is of no DP inference; materialize the line from raw again") from None


def _too_few(
    bought: InferencePlan, guarantee: Guarantee, rows: int | None, documents: int, chosen: Resampling | None
) -> str:
    """What the budget buys, and what would buy more."""
    asked = "not one document fits" if rows is None and documents == 1 else f"{documents} documents are asked for"
    most = bought.documents if chosen is None else chosen.taken_of(bought.documents)
    votes = "" if chosen is None else ", a smaller text.resample.pool or more text.resample.noise"
    fewer = "" if not most or rows is None else f"rows up to {most}, "
    return (
        f"generate.text.inference: epsilon {guarantee.epsilon:g} buys {bought.tokens} tokens from each of "
        f"{bought.contexts} contexts, {bought.documents} documents of up to {bought.document_tokens} tokens, and "
        f"{asked}; accepted: {fewer}shorter documents "
        f"(document_tokens), a larger batch_size, a smaller clipping_norm, a higher temperature{votes}, or a larger "
        "epsilon"
    )
