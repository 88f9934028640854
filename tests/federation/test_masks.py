"""Masks: they cancel in the sum, and no pad serves twice."""

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpsynth_platform.federation.masks import own_mask, pair_mask
from dpsynth_platform.federation.sums import add, decode, encode
from dpsynth_platform.foundation.errors import AccountingError

KEYS = [X25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, 6)]
SECRETS = [bytes([number]) * 32 for number in range(101, 106)]
CONTEXT = b"plan and round 1"


@pytest.mark.parametrize("bits", [8, 33, 62])
def test_masks_cancel_in_the_sum_alone(bits):
    vectors = np.random.default_rng(1).integers(-12, 12, (5, 40))
    masked = []
    for number, private in enumerate(KEYS):
        vector = add(encode(vectors[number], bits), own_mask(SECRETS[number], CONTEXT, 40, bits), bits)
        for other in KEYS[:number] + KEYS[number + 1 :]:
            vector = add(vector, pair_mask(private, other.public_key(), CONTEXT, 40, bits), bits)
        assert vector.max() < 2**bits
        masked.append(vector)
    total = np.zeros(40, dtype=np.uint64)
    for vector in masked:
        total = add(total, vector, bits)
    assert not np.array_equal(decode(total, bits), vectors.sum(axis=0))
    for secret in SECRETS:
        total = add(total, encode(-own_mask(secret, CONTEXT, 40, bits).astype(np.int64), bits), bits)
    assert np.array_equal(decode(total, bits), vectors.sum(axis=0))


def test_every_pair_context_and_secret_has_a_pad_of_its_own():
    pads = [own_mask(secret, context, 8, 62) for secret in SECRETS for context in (b"", b"1", b"2")]
    for one, other in itertools.combinations(KEYS, 2):
        pads += [pair_mask(one, other.public_key(), context, 8, 62) for context in (b"", b"1", b"2")]
    assert len({pad.tobytes() for pad in pads}) == len(pads)


def test_pads_are_aes_of_a_key_by_hkdf():
    info = bytes.fromhex("0000000e") + b"dpsynth-mask-1" + bytes.fromhex("00000003") + b"own"
    info += len(CONTEXT).to_bytes(4, "big") + CONTEXT + bytes(4)
    key = HKDF(SHA256(), 32, salt=None, info=info).derive(SECRETS[0])
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 5))
    expected = np.frombuffer(stream, dtype="<u8") & np.uint64(2**40 - 1)
    assert np.array_equal(own_mask(SECRETS[0], CONTEXT, 5, 40), expected)


def test_keys_that_protect_nothing_are_refused():
    with pytest.raises(AccountingError, match="key"):
        pair_mask(KEYS[0], KEYS[0].public_key(), CONTEXT, 1, 8)
    with pytest.raises(ValueError):
        pair_mask(KEYS[0], X25519PublicKey.from_public_bytes(bytes(32)), CONTEXT, 1, 8)
    with pytest.raises(AccountingError, match="31 bytes"):
        own_mask(bytes(31), CONTEXT, 1, 8)
