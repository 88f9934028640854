"""One round of a secure sum as all parties know it: its participants, its name, its messages, what is signed in it.

What belongs here: checks that participants and aggregator make alike. What does not: their steps (`secure_sum`).

**Messages** have one binary form: a header of 54 bytes (format, step, direction, the round's context, number of
entries), and for each entry the place of a participant in the roster (4 bytes) and a content, whose length the step and
the plan fix. Places ascend. So a message has one form alone, its length is known before anything is read from it, and
one of another round, roster or plan is refused.

Steps (Bonawitz et al. 2017, figure 4), with the content of a request's and of a reply's entries:

    0 ADVERTISE  -                                        the sender's keys and commitment
    1 SHARE      each one's keys and commitment           for each other one: encrypted shares
    2 MASK       from each other one: encrypted shares    the sender's masked vector
    3 AGREE      each one whose vector arrived            the sender's signature of the agreed sets
    4 UNMASK     signatures                               of each one: a share of one of its two secrets
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from dpsynth_platform.federation.masks import framed
from dpsynth_platform.federation.shamir import SHARE_BYTES
from dpsynth_platform.federation.sums import Coded, SumPlan
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ConfigurationError, RoundRefused
from dpsynth_platform.foundation.signature import is_valid, sign

ADVERTISE, SHARE, MASK, AGREE, UNMASK, ENDED = range(6)
STEPS = ("advertising keys", "sharing keys", "sending masked vectors", "agreeing on the finished", "unmasking")
LABEL = b"dpsynth-sum-1"
AGGREGATOR = "the aggregator"
MOST_TEXT = 200
_HEADER = struct.Struct(">16sBB32sI")
_PLACE = struct.Struct(">I")
_KEY, _SIGNATURE, _TAG = 32, 64, 16


def is_name(text: object) -> bool:
    """Whether this can name a participant or a round: 1 to 200 printable characters."""
    return isinstance(text, str) and 0 < len(text) <= MOST_TEXT and text.isprintable()


def public_key(text: object, what: str) -> Ed25519PublicKey:
    """The public key of 64 hexadecimal digits. Raises `ConfigurationError` for other texts."""
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text if isinstance(text, str) else ""))
    except ValueError:
        raise ConfigurationError(f"{what} is not a public key; accepted: 64 hexadecimal digits") from None


class Roster:
    """Who may take part, and the long-term key by which each one signs.

    The anchor of trust: each participant has it from its own configuration, and never from the aggregator. A party
    with a participant's private key counts as that participant.

    Args:
        keys: by name.

    Raises:
        ConfigurationError: an impossible name, or two participants with one key.
    """

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        for name in keys:
            if not is_name(name):
                raise ConfigurationError(f"a participant's name {name!r}; accepted: 1 to {MOST_TEXT} printable letters")
        self.names = tuple(sorted(keys))
        self.places = {name: place for place, name in enumerate(self.names)}
        self.keys = tuple(keys[name] for name in self.names)
        raw = [key.public_bytes_raw() for key in self.keys]
        if len(set(raw)) < len(raw):
            raise ConfigurationError("two participants of a roster have one key; accepted: a key of its own for each")
        self.digest = canonical_digest([[name, key.hex()] for name, key in zip(self.names, raw, strict=True)])

    @classmethod
    def from_texts(cls, keys: Mapping[str, str]) -> Roster:
        """The roster of public keys as hexadecimal digits, 64 of each. Raises `ConfigurationError`."""
        return cls({name: public_key(text, f"the key of {name!r}") for name, text in keys.items()})

    def of(self, names: Collection[str]) -> Roster:
        """The roster of some participants. Raises `ConfigurationError` for a name without a key."""
        if unknown := sorted(set(names) - set(self.names)):
            raise ConfigurationError(f"no key of {', '.join(map(repr, unknown))}; accepted: {', '.join(self.names)}")
        return Roster({name: self.keys[self.places[name]] for name in names})


def longest_messages(plan: SumPlan) -> tuple[int, int]:
    """Bytes of the longest request and of the longest reply of a round, of all participants."""
    layouts = _layouts(plan, plan.participants)
    request, reply = (
        max(_HEADER.size + most * (_PLACE.size + size) for size, most in each) for each in zip(*layouts, strict=True)
    )
    return request, reply


def _layouts(plan: SumPlan, each: int) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
    """Of a step's request, then of its reply: the length of an entry, and the most entries, of so many participants."""
    advertised, shares = 3 * _KEY + _SIGNATURE, 2 * SHARE_BYTES + _TAG
    return (
        ((0, 0), (advertised, 1)),
        ((advertised, each), (shares, each)),
        ((shares, each), (plan.length * -(-plan.modulus_bits // 8), 1)),
        ((0, each), (_SIGNATURE, 1)),
        ((_SIGNATURE, each), (SHARE_BYTES, each)),
    )


@dataclass(frozen=True)
class Advertisement:
    """A participant's fresh public keys, its commitment to the secret of its own mask, and its signature of them."""

    mask_key: bytes
    share_key: bytes
    commitment: bytes
    signature: bytes = b""

    @property
    def keys(self) -> set[bytes]:
        return {self.mask_key, self.share_key}

    def to_bytes(self) -> bytes:
        return b"".join(astuple(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> Advertisement:
        """Takes 160 bytes."""
        return cls(content[:_KEY], content[_KEY : 2 * _KEY], content[2 * _KEY : 3 * _KEY], content[3 * _KEY :])


class Round:
    """A plan, a roster and a round's name: their digest, `context`, goes into every message, key and signature.

    Raises:
        ConfigurationError: a roster with too few or too many participants for the plan, or an impossible name.
    """

    def __init__(self, plan: SumPlan, roster: Roster, round_id: str) -> None:
        if not plan.minimum <= len(roster.names) <= plan.participants:
            raise ConfigurationError(
                f"a roster of {len(roster.names)} participants; accepted by the plan: {plan.minimum} to "
                f"{plan.participants}"
            )
        if not is_name(round_id):
            raise ConfigurationError(f"a round's name {round_id!r}; accepted: 1 to {MOST_TEXT} printable letters")
        self.plan, self.roster, self.round_id = plan, roster, round_id
        self.bits = plan.modulus_bits
        self.context = bytes.fromhex(canonical_digest([plan.digest, roster.digest, round_id]))
        self._width = -(-self.bits // 8)
        self._layouts = _layouts(plan, len(roster.names))

    def write(self, step: int, is_reply: bool, entries: Mapping[int, bytes]) -> bytes:
        """The message with these contents by place."""
        header = _HEADER.pack(LABEL, step, is_reply, self.context, len(entries))
        return b"".join([header, *(_PLACE.pack(place) + entries[place] for place in sorted(entries))])

    def read(self, step: int, is_reply: bool, message: bytes, sender: str) -> dict[int, bytes]:
        """The contents by place.

        Raises:
            RoundRefused: it is not a message of this step and round, with the sender's name.
        """
        size, most = self._layouts[step][is_reply]
        expected = _HEADER.pack(LABEL, step, is_reply, self.context, 0)[: -_PLACE.size]
        if not isinstance(message, bytes) or message[: len(expected)] != expected or len(message) < _HEADER.size:
            raise self.refusal(sender, "a message of another format, step, round, roster or plan")
        (count,) = _PLACE.unpack_from(message, len(expected))
        entry = _PLACE.size + size
        if count > most or len(message) != _HEADER.size + count * entry:
            raise self.refusal(sender, "a message of another length")
        entries, last = {}, -1
        for start in range(_HEADER.size, len(message), entry):
            (place,) = _PLACE.unpack_from(message, start)
            if not last < place < len(self.roster.names):
                raise self.refusal(sender, "a message with participants that are unknown or out of order")
            entries[place], last = message[start + _PLACE.size : start + entry], place
        return entries

    def pack(self, vector: Coded) -> bytes:
        """A coded vector in the fewest whole bytes an entry."""
        return vector.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : self._width].tobytes()

    def unpack(self, content: bytes, sender: str) -> Coded:
        """The coded vector; shape (length,). Raises `RoundRefused` for an entry beyond the modulus."""
        padded = np.zeros((self.plan.length, 8), dtype=np.uint8)
        padded[:, : self._width] = np.frombuffer(content, dtype=np.uint8).reshape(-1, self._width)
        vector = padded.view("<u8").ravel().astype(np.uint64)
        if vector.max() >> np.uint64(self.bits):
            raise self.refusal(sender, "a vector with an entry beyond the modulus")
        return vector

    def commitment(self, secret: bytes) -> bytes:
        """Shows nothing of 32 random bytes, and fits no others."""
        return hashlib.sha256(framed(LABEL, b"commitment", self.context, secret)).digest()

    def advertise(
        self, identity: Ed25519PrivateKey, for_masks: X25519PrivateKey, for_shares: X25519PrivateKey, secret: bytes
    ) -> Advertisement:
        """What a participant with these fresh keys and this secret of its own mask makes public."""
        masks, shares = (key.public_key().public_bytes_raw() for key in (for_masks, for_shares))
        bare = Advertisement(masks, shares, self.commitment(secret))
        return replace(bare, signature=sign(identity, framed(LABEL, b"advertise", self.context, bare.to_bytes())))

    def advertised(self, entries: Mapping[int, bytes]) -> dict[int, Advertisement]:
        """What participants advertised, checked.

        Raises:
            RoundRefused: a signature is not by the roster's key, a key is there twice, or it is of small order, so that
                all know what is agreed with it (RFC 7748, section 6.1).
        """
        found: dict[int, Advertisement] = {}
        seen: set[bytes] = set()
        probe = X25519PrivateKey.generate()
        for place, content in entries.items():
            name, found[place] = self.roster.names[place], Advertisement.from_bytes(content)
            unsigned, signature = content[:-_SIGNATURE], content[-_SIGNATURE:]
            if not is_valid(self.roster.keys[place], framed(LABEL, b"advertise", self.context, unsigned), signature):
                raise self.refusal(name, "keys that are not signed by the key of the roster")
            for key in (found[place].mask_key, found[place].share_key):
                try:
                    probe.exchange(X25519PublicKey.from_public_bytes(key))
                except ValueError:
                    raise self.refusal(name, "a key of small order") from None
                if key in seen:
                    raise self.refusal(name, "a key that is there twice")
                seen.add(key)
        return found

    def agreement(self, sharing: Mapping[int, Advertisement], finished: Collection[int]) -> bytes:
        """What is signed of the two sets: those who shared, with their keys, and those whose vectors arrived."""
        first = b"".join(_PLACE.pack(place) + sharing[place].to_bytes() for place in sorted(sharing))
        second = b"".join(_PLACE.pack(place) for place in sorted(finished))
        return framed(LABEL, b"agree", self.context, hashlib.sha256(framed(first, second)).digest())

    def check_agreed(self, place: int, agreement: bytes, signature: bytes) -> None:
        """Raises `RoundRefused` if this is not the participant's signature of these sets."""
        if not is_valid(self.roster.keys[place], agreement, signature):
            raise self.refusal(self.roster.names[place], "a signature that is not of the agreed sets")

    def refusal(self, sender: str, what: str) -> RoundRefused:
        """The error for what a sender did."""
        return RoundRefused(f"round {self.round_id!r}: {what}, from {sender!r}; accepted: messages by the protocol")
