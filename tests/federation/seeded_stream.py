"""Words that are the same each time, for tests of draws."""

import numpy as np


class Counted:
    """A stream of words by a seeded generator, in place of a cryptographic one."""

    def __init__(self, seed=7):
        self.rng = np.random.default_rng(seed)

    def words(self, number):
        return self.rng.integers(0, 2**64, number, dtype=np.uint64)
