"""The cost of DP inference and what it buys, before any record is read: contexts, tokens and documents.

What belongs here: the mechanism's public parameters, its event, and how many tokens a guarantee has room for. What does
not: the owners of a context (`inference_contexts`), what is clipped (`inference_choice`), running any of it.

**The mechanism** (Amin et al. 2024, "Private prediction for large-scale synthetic text generation"; the guide, section
5.3.1). Owners are divided into contexts. From every context, tokens are drawn one after the other. The model reads each
record of the context with the text so far, and predicts every next token. The predictions for the records of one owner
are averaged, and the mean is clipped as one to [-c, c]. With `in_series` these records are in one prompt, one after the
other (the guide recommends at least two), so that there is one prediction of an owner. The owners' vectors are added up
and divided by s, and the token is drawn from the softmax of that, divided by the temperature. With `difference` (Vinod,
Pillutla & Thakurta 2025, "InvisibleInk"), the clipped vector is the change that the owner's records cause to the
prediction without records, which is public and is added again afterwards.

**The claim.** For datasets that differ by one owner's records (`add-or-remove`, `zero-out`), all draws cost at most
the adaptive composition of T choices of range r = 2 c / (s temperature), where T is the most tokens of one context.

**Proof.** s, T and the number of contexts are public; a context's label follows from noisy counts, which are paid for
separately. An owner's context follows from this owner's records, from the labels and from a fresh key only
(`inference_contexts`): all other owners have the same contexts without this one. Their vectors, too, are the same after
the same tokens: each follows from the owner's own records (`inference_model`). So the contexts without the owner draw
from the same distributions. In the owner's own context, the sum has one vector more or less, which is in [-c, c] at
every token: the log-ratio of any two tokens' probabilities moves by at most 2 c / (s temperature), which is one choice
of that range (`events.BoundedRangeSelectionEvent`). The end of a document and of a context follow from the tokens that
were drawn, and there are at most T. An owner is in at most one context, so contexts compose in parallel, at equal cost:
it does not matter that labels, and so the owner's context, depend on the noisy counts. Under `replace-one` an owner
could change contexts, and under `fixed-graph` be in several: both are refused (`events.ParallelDpEvent`).

**A prompt never has records of several owners.** One owner more would not add a vector to the sum, but replace the
vector of the prompt: from v to v', both in [-c, c]. The difference is in [-2c, 2c], so that a choice has the range
4 c / (s temperature), which costs four times as much (rho is r^2 / 8). A prompt that counts only with exactly k owners
would add or remove its vector as a whole, but neighbours must agree on all other prompts: owners go to prompts by
independent hashes, and with n owners and n / m prompts about n exp(-m) m^(k-1) / k! prompts are full; with k = 2 and
the best m, 1, these are 0.18 n instead of n. Pairing the others again, or by order, changes several prompts for one
owner.

b, the most records of one owner, is no part of r, since their average is clipped: adding up b vectors, each clipped
separately, would take b times the range for the same s. The actual number of owners in a context is never used: with
fewer than s, draws are nearer to the model's own text (`difference`) or to uniform noise (`logits`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpsynth_platform.contracts.text_generation import Inference
from dpsynth_platform.foundation.errors import ContractError
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
from dpsynth_platform.synth.text.resampling import Choice


@dataclass(frozen=True)
class InferencePlan:
    """Everything that decides the draws from the contexts. Public.

    Attributes:
        batch_size: s, which divides sums over a context; about the number of owners in each.
        tokens: T, the most that are drawn from one context.
        records_per_owner: the most records of one owner that are read.
        document_tokens: the most of one document, including its end token.
        clip: what is clipped: the `difference` from the prediction without records, or the `logits`.
        clipping_norm: c.
        temperature: divides scores.
        top_k: next tokens are the k likeliest without records, and tokens near them; None: all.
        max_contributions: b, the most records of one owner.
        in_series: whether an owner's records are in one prompt, one after the other.
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
    in_series: bool = False

    @classmethod
    def calibrated(
        cls,
        guarantee: Guarantee,
        declared: Inference,
        *,
        units: int,
        rows: int | None,
        chosen: Choice | None = None,
        beside: Callable[[DpEvent], DpEvent],
    ) -> InferencePlan:
        """The plan with as many tokens as the rows may need, or as the budget buys.

        Args:
            units: the public, expected number of owners.
            rows: how many are requested; None: as many as possible.
            chosen: how rows are chosen among more documents, if they are.
            beside: composes the mechanism's event with those of the other mechanisms.

        Raises:
            ContractError: the guarantee has room for fewer documents than requested, or for none.
            AccountingError: under this adjacency contexts do not compose in parallel.
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
        tokens = math.ceil(documents / one.contexts) * one.document_tokens
        if tokens > MAX_LEAVES or not fits(tokens):
            most = steps_for(event_of, guarantee.epsilon, guarantee.delta).value if fits(1) else 0
            raise ContractError(_too_few(replace(one, tokens=most), guarantee, rows, documents, chosen))
        if rows is None:
            tokens = steps_for(event_of, guarantee.epsilon, guarantee.delta).value
        return replace(one, tokens=tokens)

    @property
    def event(self) -> DpEvent:
        """The cost of all contexts for one owner; all have the same cost, so that one represents each."""
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
        """The range of one choice in the event: the draw uses the accounted value."""
        ((leaf, _),) = leaves(self.event)
        assert isinstance(leaf, BoundedRangeSelectionEvent)  # noqa: S101  (`token_selection_event` makes no other leaf)
        return float(leaf.epsilon)

    @property
    def documents(self) -> int:
        """The least number of documents, if each is as long as allowed; shorter ones leave tokens for more."""
        return self.contexts * (self.tokens // self.document_tokens)

    @property
    def prompts_kept(self) -> int:
        """Prompts of a context whose keys and values are kept: the expected ones and a margin.

        The margin is a random excess of four deviations, and a quarter because the number of contexts is rounded down.
        """
        owners = math.ceil(1.25 * self.batch_size + 4 * math.sqrt(self.batch_size))
        return owners * self.prompts_per_owner

    @property
    def prompts_per_owner(self) -> int:
        """The most prompts of one owner."""
        return 1 if self.in_series else min(self.records_per_owner, self.max_contributions)


def records_in_prompt(declared: Inference | InferencePlan, max_contributions: int) -> int:
    """The most records of one prompt; all are of one owner."""
    return min(declared.records_per_owner, max_contributions) if declared.in_series else 1


def _too_few(
    bought: InferencePlan, guarantee: Guarantee, rows: int | None, documents: int, chosen: Choice | None
) -> str:
    """What the budget buys, and what would buy more."""
    request = "not one document fits" if rows is None and documents == 1 else f"{documents} documents are requested"
    most = bought.documents if chosen is None else chosen.taken_of(bought.documents)
    votes = "" if chosen is None else ", a smaller text.resample.pool or more text.resample.noise"
    fewer = "" if not most or rows is None else f"rows up to {most}, "
    return (
        f"generate.text.inference: epsilon {guarantee.epsilon:g} buys {bought.tokens} tokens from each of "
        f"{bought.contexts} contexts, {bought.documents} documents of up to {bought.document_tokens} tokens, and "
        f"{request}; accepted: {fewer}shorter documents "
        f"(document_tokens), a larger batch_size, a smaller clipping_norm, a higher temperature{votes}, or a larger "
        "epsilon"
    )
