"""The tiers of guarantees by their epsilon (Ponomareva et al. 2026, section 7.1)."""

STRONG_EPSILON = 1.0
"""Up to here a guarantee is strong."""
WEAK_EPSILON = 10.0
"""Above it is weak."""
