"""The tokens of a table of two columns, for tests of language models that write rows."""

from functools import cache

from text_cases import tiny_tokenizer

from dpsynth_platform.synth.neural.row_tokens import RowTokens

NAMES, WORDS = ["size", "a, b"], [["1", "17", "170", "other"], ["yes", "yes no", "no"]]


@cache
def tokens(order=(0, 1)):
    return RowTokens.of(tiny_tokenizer(), NAMES, WORDS, order)
