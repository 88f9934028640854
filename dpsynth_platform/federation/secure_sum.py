"""The sum of vectors that no party sees, against participants and an aggregator that break the rules.

What belongs here: the protocol of Bonawitz et al. 2017 ("Practical Secure Aggregation for Privacy-Preserving Machine
Learning", CCS), figure 4 with its steps against active adversaries, as state machines. What does not: the transport
(`Link`), which authenticates the aggregator and encrypts; who is in the roster; and durable records of rounds.

Each participant adds to its vector and its share of noise a mask of its own and one for each pair (`masks`). It deals
shares of both secrets to all. Once all honest participants agree on who finished, they reveal shares of the own secrets
of those, whose pairs' masks cancel, and of the mask keys of the others, whose vectors stay under their own masks.

**One set is opened** (section 6.2). Let n be the participants, c those that an adversary controls besides the
aggregator, and t = `minimum`. The plan has 2t > n + c. So c < t, and the adversary's own shares restore nothing. And
any two sets of t - c of the n - c honest participants have one in common.

An honest participant signs one pair (U1, U2), those who shared and those whose vectors arrived, and reveals shares only
with t signatures of that pair. Let Q be the honest ones among these signers, at least t - c. No other pair has t
signatures, for its honest signers would have one in common with Q. So all honest participants reveal for this pair
alone, and of one participant never both secrets.

Lies about keys concern the adversary's participants alone, for an honest one signs its keys, once in a round. The
aggregator may name another U1 to each participant, so that masks do not cancel. But then nothing is opened: Q is in
U2 and has U2 in its U1, so that each of Q has an unknown mask in common with each honest member of U2. Such a member
added masks for t - c honest ones or more, so also for one of Q. So all honest vectors of U2 are linked by masks, and
only the sum of all of them is free of masks, if at all. It holds t - c honest shares of noise, `SumPlan.honest`.

**What is not seen.** A vector beyond the plan's bound, or one without noise, looks like any other: an adversary's
participant can make the sum worthless, and the plan does not count on its noise. It can also deal false shares, so that
the round fails, with its name. The sum's integrity is no claim of this module.

**State is in memory.** A participant that crashes has dropped out, and its secrets are gone. Python cannot overwrite
secrets: references to them are dropped as soon as they have served. Identity keys stay with the caller.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpsynth_platform.federation.masks import SECRET_BYTES, derive_key, own_mask, pair_mask
from dpsynth_platform.federation.noise import sample_skellam
from dpsynth_platform.federation.rounds import (
    ADVERTISE,
    AGGREGATOR,
    AGREE,
    ENDED,
    LABEL,
    MASK,
    SHARE,
    STEPS,
    UNMASK,
    Advertisement,
    Roster,
    Round,
)
from dpsynth_platform.federation.shamir import SHARE_BYTES, restore, split
from dpsynth_platform.federation.sums import Coded, SumPlan, Whole, add, decode, encode
from dpsynth_platform.foundation.errors import ConfigurationError, RoundRefused
from dpsynth_platform.foundation.signature import sign
from dpsynth_platform.training.stream import SecureStream

Steps = Generator[bytes, bytes, bytes]


@dataclass(frozen=True)
class Draws:
    """Where a member's secrets come from, and whether it adds noise: as all do who have rows.

    Attributes:
        stream: gives the secrets of a member whose share of noise counts as known, and which so adds none; None: they
            come from the operating system.
    """

    stream: SecureStream | None = field(default=None, repr=False)

    def fresh(self) -> bytes:
        """A new secret."""
        return (
            secrets.token_bytes(SECRET_BYTES) if self.stream is None else self.stream.words(SECRET_BYTES // 8).tobytes()
        )

    def below(self, limit: int) -> int:
        """A uniform number below a limit of 257 bits."""
        if self.stream is None:
            return secrets.randbelow(limit)
        return int.from_bytes(self.stream.words(6).tobytes(), "little") % limit  # 2^-127 from uniform

    def noise(self, variance: float, length: int) -> Whole:
        """Of a sum whose plan has none (`SumPlan`), and of a member that adds none: zeros."""
        if self.stream is not None or not variance:
            return np.zeros(length, dtype=np.int64)
        return sample_skellam(variance, length)


class Member:
    """One participant's side of one round: a reply to each step's request, once and in order.

    Whatever is refused ends the round for this participant: it has dropped out, and says no more. A transport that
    repeats requests keeps the replies by itself.

    Args:
        name: of this participant in the roster.
        identity: its long-term key.
        vector: gives its vector; called once, when enough participants have shared. From then on the round costs what
            the plan's event says, whatever becomes of it.
        claim: records durably that this participant takes part in the round of this name, and says whether it is the
            first time. Two runs of one round could be opened as two sets. It must be atomic.
        draws: of its secrets and noise.

    Raises:
        ConfigurationError: the plan and the roster do not fit, or the name and the key are not of the roster.
        RoundRefused: this participant has taken part in the round before.
    """

    def __init__(
        self,
        plan: SumPlan,
        roster: Roster,
        round_id: str,
        name: str,
        identity: Ed25519PrivateKey,
        vector: Callable[[], Whole],
        claim: Callable[[str], bool],
        draws: Draws = Draws(),
    ) -> None:
        this, place = Round(plan, roster, round_id), roster.places.get(name)
        public = identity.public_key().public_bytes_raw()
        if place is None or roster.keys[place].public_bytes_raw() != public:
            raise ConfigurationError(f"participant {name!r} or its key is not of the roster; accepted: a pair of it")
        if not claim(round_id):
            raise RoundRefused(f"round {round_id!r}: {name!r} has taken part before; accepted: a new round")
        self._ended = f"round {round_id!r} has ended for {name!r}; accepted: a new round"
        self._steps = _member(this, place, identity, vector, draws)
        next(self._steps)

    def answer(self, request: bytes) -> bytes:
        """The reply to the next step's request.

        Raises:
            RoundRefused: the request breaks the protocol, or the round has ended for this participant.
            AccountingError: the own vector is not of the plan.
        """
        try:
            return self._steps.send(request)
        except StopIteration as last:
            if last.value is None:
                raise RoundRefused(self._ended) from None
            reply: bytes = last.value
            return reply


def _member(this: Round, place: int, identity: Ed25519PrivateKey, vector: Callable[[], Whole], draws: Draws) -> Steps:
    """A participant's steps: each request goes in, each reply comes out. A generator runs once, and in one thread."""
    minimum = this.plan.minimum
    this.read(ADVERTISE, False, (yield b""), AGGREGATOR)
    for_masks, for_shares = (X25519PrivateKey.from_private_bytes(draws.fresh()) for _ in range(2))
    secret = draws.fresh()
    own = this.advertise(identity, for_masks, for_shares, secret)

    request = yield this.write(ADVERTISE, True, {place: own.to_bytes()})
    known = this.advertised(this.read(SHARE, False, request, AGGREGATOR))
    if known.get(place) != own:
        raise this.refusal(AGGREGATOR, "keys without those of this participant")
    _check_enough(this, known)
    dealt = [split(each, minimum, known, draws.below) for each in (for_masks.private_bytes_raw(), secret)]
    held = {place: dealt[0][place] + dealt[1][place]}
    sealed = {}
    for other in known.keys() - {place}:
        cipher = _cipher(this, for_shares, known, place, other, place)
        sealed[other] = cipher.encrypt(bytes(12), dealt[0][other] + dealt[1][other], None)
    del dealt

    request = yield this.write(SHARE, True, sealed)
    arrived = this.read(MASK, False, request, AGGREGATOR)
    if place in arrived or not arrived.keys() <= known.keys():
        raise this.refusal(AGGREGATOR, "shares of participants without keys")
    sharing = {other: known[other] for other in (*arrived, place)}
    _check_enough(this, sharing)
    for other, content in arrived.items():
        try:
            held[other] = _cipher(this, for_shares, known, other, place, place).decrypt(bytes(12), content, None)
        except InvalidTag:  # this dealer's fault: the others' shares may do for it
            continue
    others = [each for other, each in sharing.items() if other != place]
    masked = _masked(this, for_masks, secret, others, vector, draws)
    del for_masks, for_shares, secret, vector

    request = yield this.write(MASK, True, {place: masked})
    del masked
    finished = this.read(AGREE, False, request, AGGREGATOR).keys()
    if place not in finished or not finished <= sharing.keys():
        raise this.refusal(AGGREGATOR, "a set of finished participants without this one, or with others")
    _check_enough(this, finished)
    agreement = this.agreement(sharing, finished)

    request = yield this.write(AGREE, True, {place: sign(identity, agreement)})
    signatures = this.read(UNMASK, False, request, AGGREGATOR)
    if not signatures.keys() <= finished:
        raise this.refusal(AGGREGATOR, "signatures of participants that did not finish")
    _check_enough(this, signatures)
    for other, signature in signatures.items():
        this.check_agreed(other, agreement, signature)
    return this.write(
        UNMASK,
        True,
        {other: both[SHARE_BYTES:] if other in finished else both[:SHARE_BYTES] for other, both in held.items()},
    )


def _check_enough(this: Round, places: Collection[int]) -> None:
    if len(places) < this.plan.minimum:
        raise this.refusal(AGGREGATOR, f"{len(places)} participants, where the plan has {this.plan.minimum} or more")


def _cipher(
    this: Round, private: X25519PrivateKey, known: Mapping[int, Advertisement], sender: int, receiver: int, own: int
) -> ChaCha20Poly1305:
    """For the one message from sender to receiver: the key is of that direction, pair of keys and round, and no other.

    So all zeros serve as nonce, and nothing remains to authenticate beside the message.
    """
    other = known[receiver if own == sender else sender]
    agreed = private.exchange(X25519PublicKey.from_public_bytes(other.share_key))
    return ChaCha20Poly1305(
        derive_key(agreed, LABEL, b"shares", this.context, known[sender].to_bytes(), known[receiver].to_bytes())
    )


def _masked(
    this: Round,
    private: X25519PrivateKey,
    secret: bytes,
    others: list[Advertisement],
    vector: Callable[[], Whole],
    draws: Draws,
) -> bytes:
    """The own vector with its share of noise, under all masks. Masks come first: what fails asks for no vector."""
    plan, bits = this.plan, this.bits
    total = own_mask(secret, this.context, plan.length, bits)
    for other in others:
        key = X25519PublicKey.from_public_bytes(other.mask_key)
        total = add(total, pair_mask(private, key, this.context, plan.length, bits), bits)
    units = vector()
    plan.check_vector(units)
    noisy = units + draws.noise(plan.share_variance, plan.length)
    return this.pack(add(total, encode(noisy, bits), bits))


@dataclass(frozen=True)
class OpenedSum:
    """What a round opened.

    Attributes:
        total: of the finished participants' vectors and noise, in units; shape (length,).
        finished: whose vectors are in it.
        dropped: why others, and some of these afterwards, said no more.
    """

    total: Whole = field(repr=False)  # exact, where who opens it adds the noise
    finished: tuple[str, ...]
    dropped: Mapping[str, str]


class Aggregator:
    """The aggregator's side of one round: `requests`, `take` each reply, `close_step`; five times, then `result`.

    It survives participants - minimum dropouts, at any steps. A participant with an invalid reply has dropped out. Not
    for several threads at a time.

    Raises:
        ConfigurationError: the plan and the roster do not fit.
    """

    def __init__(self, plan: SumPlan, roster: Roster, round_id: str) -> None:
        self._round = Round(plan, roster, round_id)
        self.step = ADVERTISE
        self.dropped: dict[str, str] = {}
        self._faults: dict[str, str] = {}  # of this step's invalid replies
        self.result: OpenedSum | None = None
        self._asked: frozenset[int] = frozenset(roster.places.values())
        # Valid replies by step and place. Of vectors, the sum alone is kept.
        self._taken: list[dict[int, dict[int, bytes]]] = [{} for _ in STEPS]
        self._known: dict[int, Advertisement] = {}
        self._total: Coded = np.zeros(plan.length, dtype=np.uint64)
        self._agreement = b""

    def requests(self) -> dict[str, bytes]:
        """This step's request to each participant that is still there; none once the round has ended."""
        if self.step == ENDED:
            return {}
        names = {place: self._round.roster.names[place] for place in sorted(self._asked)}
        before = self._taken[self.step - 1] if self.step > ADVERTISE else {}
        if self.step == MASK:
            each = {to: {other: sealed[to] for other, sealed in before.items() if other != to} for to in names}
            return {name: self._round.write(MASK, False, each[to]) for to, name in names.items()}
        # To all, what each one sent of itself in the step before. Of vectors that is its place alone.
        entries = {other: sent.get(other, b"") for other, sent in before.items()}
        return dict.fromkeys(names.values(), self._round.write(self.step, False, entries))

    def take(self, name: str, reply: bytes) -> None:
        """A participant's reply to this step: its first valid one, as transports may repeat those of earlier steps.

        What is late, or of an unknown sender, changes nothing.
        """
        place = self._round.roster.places.get(name)
        if self.step == ENDED or place not in self._asked or place in self._taken[self.step]:
            return
        try:
            entries = self._round.read(self.step, True, reply, name)
            self._check(name, place, entries)
        except RoundRefused as error:
            self._faults[name] = str(error)
        else:
            self._taken[self.step][place] = entries

    def _check(self, name: str, place: int, entries: dict[int, bytes]) -> None:
        this = self._round
        if self.step == SHARE:
            fits = entries.keys() == self._known.keys() - {place}
        elif self.step == UNMASK:
            fits = entries.keys() <= self._taken[SHARE].keys()
        else:
            fits = entries.keys() == {place}
        if not fits:
            raise this.refusal(name, "a reply about other participants than asked for")
        if self.step == ADVERTISE:
            new = this.advertised(entries)[place]
            if any(new.keys & one.keys for one in self._known.values()):
                raise this.refusal(name, "a key that another participant has")
            self._known[place] = new
        elif self.step == MASK:
            self._total = add(self._total, this.unpack(entries.pop(place), name), this.bits)
        elif self.step == AGREE:
            this.check_agreed(place, self._agreement, entries[place])

    def close_step(self) -> None:
        """Ends the step: participants without a valid reply have dropped out.

        Raises:
            RoundRefused: too few remain, or a secret cannot be restored; the round has ended, and nothing is opened.
        """
        this, step = self._round, self.step
        if step == ENDED:
            raise RoundRefused(f"round {this.round_id!r} has ended; accepted: a new round")
        remaining = frozenset(self._taken[step])
        for name in (this.roster.names[place] for place in sorted(self._asked - remaining)):
            self.dropped[name] = self._faults.get(name, f"no reply: {STEPS[step]}")
        self._asked, self._faults, self.step = remaining, {}, ENDED
        if len(remaining) < this.plan.minimum:
            reasons = "; ".join(f"{name!r}: {reason}" for name, reason in sorted(self.dropped.items()))
            raise RoundRefused(
                f"round {this.round_id!r}: {len(remaining)} participants remain ({STEPS[step]}); accepted: "
                f"{this.plan.minimum} or more. {reasons}"
            )
        if step == MASK:
            sharing = {place: self._known[place] for place in self._taken[SHARE]}
            self._agreement = this.agreement(sharing, self._taken[MASK])
        if step == UNMASK:
            self.result = self._open()
        else:
            self.step = step + 1

    def _open(self) -> OpenedSum:
        this, length, bits = self._round, self._round.plan.length, self._round.bits
        finished = self._taken[MASK].keys()
        total, holders = self._total, sorted(self._taken[UNMASK])
        for place in sorted(self._taken[SHARE]):
            secret = self._restored(place, place in finished, holders)
            if place in finished:
                total = (total - own_mask(secret, this.context, length, bits)) & np.uint64(2**bits - 1)
                continue
            private = X25519PrivateKey.from_private_bytes(secret)
            for other in finished:  # the dropped one's side of the pair takes off the other's
                key = X25519PublicKey.from_public_bytes(self._known[other].mask_key)
                total = add(total, pair_mask(private, key, this.context, length, bits), bits)
        names = tuple(this.roster.names[place] for place in sorted(finished))
        return OpenedSum(decode(total, bits), names, dict(self.dropped))

    def _restored(self, dealer: int, is_finished: bool, holders: list[int]) -> bytes:
        """A dealer's secret from the first holders' shares. Where these are false, the first holder becomes the last.

        So one holder with false shares, or several in a row, do no harm where enough others reply.
        """
        this, known, taken = self._round, self._known[dealer], self._taken[UNMASK]
        for _ in taken:
            shares = [(holder, taken[holder][dealer]) for holder in holders if dealer in taken[holder]]
            if len(shares) < this.plan.minimum:
                break
            secret = restore(dict(shares[: this.plan.minimum]))
            if secret is not None and (
                this.commitment(secret) == known.commitment
                if is_finished
                else X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() == known.mask_key
            ):
                return secret
            holders.append(holders.pop(0))
        raise RoundRefused(
            f"round {this.round_id!r}: a secret of {this.roster.names[dealer]!r} cannot be restored: it dealt false "
            "shares, or their holders sent others; accepted: shares of it"
        )


class Link(Protocol):
    """A transport to all participants."""

    def ask(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Sends each participant its request, and gives the replies by name that came in time."""


def run_sum(plan: SumPlan, roster: Roster, round_id: str, link: Link) -> OpenedSum:
    """Drives one round as its aggregator.

    Raises:
        ConfigurationError: the plan and the roster do not fit.
        RoundRefused: too few participants remain, or a secret cannot be restored.
    """
    aggregator = Aggregator(plan, roster, round_id)
    while aggregator.result is None:
        for name, reply in link.ask(aggregator.requests()).items():
            aggregator.take(name, reply)
        aggregator.close_step()
    return aggregator.result
