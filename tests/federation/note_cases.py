"""Small made-up texts of several people, of two kinds and several subjects, and the policies of those who hold them."""

import random

import pyarrow as pa
from federated_cases import NAMES

WORDS = {
    "mail": ["parcel box late open", "team report monday send", "invoice paid bank sum", "flight gate delay seat"],
    "note": ["milk bread home buy", "fever cough nurse rest", "keys door lock spare", "rain coat wet walk"],
}
COLUMNS = {"kind": {"type": "categorical", "values": list(WORDS)}, "body": {"type": "text", "pii": "replace"}}
NOTED = {"dataset": "notes", "methods": ["aug_pe"], "columns": ["kind", "body"], "max_contributions": 1}
EVOLVED = {"population": 8, "variations": 1, "rounds": 2, "ways": ["retrieve"]}


def notes(people, seed, mark=""):
    """A text of each person, which ends with the mark."""
    draws, rows = random.Random(seed), []
    for person in range(people):
        kind = draws.choice(list(WORDS))
        words = draws.choices(draws.choice(WORDS[kind]).split(), k=6)
        rows.append({"person": f"{person:05d}", "kind": kind, "body": " ".join([*words, mark]).strip()})
    return pa.Table.from_pylist(rows)


def by_all(**changes):
    return dict.fromkeys(NAMES, NOTED | changes)
