"""The empirical audit: canaries, attacks on model and data, lower bounds on epsilon, the verdict."""
