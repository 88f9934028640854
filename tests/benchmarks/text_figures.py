"""What the texts of `bench_text_utility.py` are worth and what they give away, and the tables of it.

What belongs here: a membership attack on a cell's real texts, tables and plots of results. What does not: figures of
utility (`dpsynth_platform.quality`), attacks and their measures (`dpsynth_platform.audit`), writing texts
(`text_methods`).

The attack is the log ratio of two n-gram models (Meeus et al. 2025), of the drawn texts and of other real ones, asked
about the most unusual texts (TF-IDF) among members and others together, one of each unit. SynBench's is another
(`audit.texts.synbench`). Members are units that were read, others are of the units held out, and the
other texts are of further ones. All of them are public here; of a table of real people such figures would be
restricted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from text_cells import LABELS, NO_NOISE, PLAIN, UNCHOSEN, UNTRAINED, VOTES, Cell, of_owners

from dpsynth_platform.audit.adhoc.tables import MEMBERS, OTHERS, REFERENCE, SYNTHETIC
from dpsynth_platform.audit.adhoc.texts import text_evidence
from dpsynth_platform.audit.risk import measure_risk
from dpsynth_platform.audit.texts import TEXT_ONLY_ATTACKS
from dpsynth_platform.foundation.svg import Line as Chart
from dpsynth_platform.foundation.svg import line_chart

UNUSUAL = 0.1
"""Share of the texts that are unusual by each of two measures, and asked about."""
ASKED_AT = 0.1
"""False alarms of the table: of a hundred held-out texts, 1% would be one."""
ATTACK_HEADINGS = ("asked about, in / out", "AUC", f"found at {ASKED_AT:.0%} false alarms", "allowed")
TOLD = ("f1_words", "f1_features", "mauve", "next_token", "lengths", "entities")
"""Figures that methods are compared by."""
ASKED = ("texts_read", "next_tokens")
"""What a language model was asked (`text_methods.Spent`)."""
VOTED = ("mauve", "f1_features")
"""Figures that votes are judged by."""
WAYS = {
    VOTES: {"by votes": VOTES, "at random": VOTES + UNCHOSEN, "no votes": ""},
    LABELS: {"by sums": LABELS, "at random": LABELS + UNCHOSEN, "no sums": ""},
}
"""How texts came to be among a method's, and how that ends its name."""
REAL = "real texts"
SHOWN = {
    "f1_words": "F1, words",
    "f1_features": "F1, features",
    "mauve": "MAUVE",
    "next_token": "next token",
    "lengths": "lengths",
    "entities": "entities",
    "runs_1": "1-grams",
    "runs_2": "2-grams",
    "self_bleu": "self-BLEU",
    "distinct_2": "distinct-2",
}
"""Figures of the table: their keys in a report, and their headings."""
ORDER = {name: place for place, name in enumerate((REAL, NO_NOISE, "8", "4", "1", "0.5", UNTRAINED))}

Line = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """What one row of a table is about; rows are in the order of these.

    Attributes:
        compared: about how many texts of a draw were measured: figures of far fewer are others.
    """

    source: str
    compared: int
    epsilon: str
    method: str
    sampled: str

    def __lt__(self, other: Key) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[Any, ...]:
        return self.source, -self.compared, ORDER[self.epsilon], self.method, self.sampled


def attacked(read: pa.Table, held_out: pa.Table, drawn: pa.Table, *, epsilon: float | None, delta: float) -> Line:
    """What the attack finds of a cell's units, beside what the claim allows.

    Args:
        read: records of the units that were read.
        held_out: records of others, of which half is for the attacker to compare with.
        drawn: synthetic rows.
        epsilon: of the claim; None: there is none.
        delta: of the claim.
    """
    half = len(pc.unique(held_out["owner"])) // 2
    others = one_each(of_owners(held_out, 0, half))
    tables = {
        MEMBERS: one_each(of_owners(read, 0, 2 * half)),
        OTHERS: others,
        REFERENCE: of_owners(held_out, half),
        SYNTHETIC: drawn,
    }
    evidence, included = text_evidence(tables, "text", canaries=False, share=UNUSUAL)
    scores = TEXT_ONLY_ATTACKS["n-gram model"].run(evidence).scores
    asked = {"included": int(included.sum()), "held_out": int((~included).sum())}
    return asked | asdict(measure_risk(scores, included, epsilon=epsilon, delta=delta))


def copies_table(source: str, read: pa.Table, held_out: pa.Table, texts: int) -> str:
    """What the attack finds where texts are given away as they are: as many as a method draws, and all.

    Args:
        source: of the texts.
        read: records of the units that a method would read.
        held_out: see `attacked`.
        texts: how many a method draws.
    """
    some = np.sort(np.random.default_rng(0).choice(read.num_rows, texts, replace=False))
    rows = [["texts", "given away", *ATTACK_HEADINGS[:-1]]]
    for drawn in (read.take(pa.array(some)), read):
        risk = attacked(read, held_out, drawn, epsilon=None, delta=0.0)
        rows.append([source, f"{drawn.num_rows:,} of {read.num_rows:,}", *of_attack(risk)[:-1]])
    return written(rows)


def one_each(table: pa.Table) -> pa.Table:
    """The first record of each owner."""
    rows: dict[str, int] = {}
    for row, owner in enumerate(table["owner"].to_pylist()):
        rows.setdefault(owner, row)
    return table.take(pa.array(list(rows.values())))


def learned_table(lines: Sequence[Line]) -> str:
    """All figures of fine-tuning without more: means over runs with their standard error.

    Of a single run, the error is that of the draws of texts in its report.
    """
    own = [line for line in lines if Cell(**line["cell"]).method == PLAIN]
    rows = [["texts", "sampled", "epsilon", "runs", "nats a token", *SHOWN.values()]]
    for key, found in with_real(own):
        learned = [line["nats_a_token"] for line in found if line["nats_a_token"] and key.epsilon != REAL]
        gains = [{"mean": told["after"] - told["before"]} for told in learned]
        runs = "" if key.epsilon == REAL else str(len(found))
        rows.append(
            [key.source, key.sampled, key.epsilon, runs, shown(gains) if gains else "", *figures(key, found, SHOWN)]
        )
    return written(rows)


def methods_table(lines: Sequence[Line]) -> str:
    """All methods: figures as in `learned_table`, and what was computed, in the mean over runs; seconds of each run."""
    work = ["texts read", "next tokens", "processor seconds"]
    rows = [["texts", "method", "sampled", "epsilon", "runs", "compared", *(SHOWN[key] for key in TOLD), *work]]
    for key, found in with_real(lines):
        if key.epsilon == REAL:
            rows.append([key.source, REAL, "", "", "", str(key.compared), *figures(key, found, TOLD), "", "", ""])
            continue
        of = [key.source, words_of(key.method), key.sampled, key.epsilon, str(len(found)), str(key.compared)]
        computed = ["", "", ""] if key.method.endswith(UNCHOSEN) else computed_by(found)
        rows.append([*of, *figures(key, found, TOLD), *computed])
    return written(rows)


def attack_table(lines: Sequence[Line]) -> str:
    """What the attack found, of several runs in each."""
    rows = [["texts", "method", "sampled", "epsilon", *ATTACK_HEADINGS]]
    own = [line for line in lines if "attack" in line and not line["cell"].get("method", PLAIN).endswith(UNCHOSEN)]
    for key, found in sorted(by_cell(own).items()):
        told = ("; ".join(parts) for parts in zip(*(of_attack(line["attack"]) for line in found), strict=True))
        rows.append([key.source, words_of(key.method), key.sampled, key.epsilon, *told])
    return written(rows)


def votes_table(lines: Sequence[Line], chosen: str = VOTES) -> str:
    """What votes, or sums by label, did: figures of texts by them, at random among the same model's, and without."""
    columns = [(way, ending, name) for name in VOTED for way, ending in WAYS[chosen].items()]
    rows = [["texts", "method", "epsilon", *(f"{SHOWN[name]}, {way}" for way, _, name in columns)]]
    grouped = {(key.source, key.sampled, key.method, key.epsilon): (key, one) for key, one in by_cell(lines).items()}
    voted = [key for key, _ in grouped.values() if key.method.endswith(chosen)]
    for key in sorted(voted, key=lambda key: (key.source, key.method, ORDER[key.epsilon])):
        method = key.method.removesuffix(chosen)
        told = []
        for _, ending, name in columns:
            group = grouped.get((key.source, key.sampled, method + ending, key.epsilon))
            told += figures(*group, [name]) if group else [""]
        rows.append([key.source, method, key.epsilon, *told])
    return written(rows)


def labels_table(lines: Sequence[Line]) -> str:
    """The same of sums by label."""
    return votes_table(lines, LABELS)


def computed_by(lines: Sequence[Line]) -> list[str]:
    """Texts and next tokens that the model was asked, in the mean, and seconds of each run."""
    counted = [line["work"].values() for line in lines if "work" in line]
    means = [np.mean([sum(part.get(key, 0) for part in parts) for parts in counted]) for key in ASKED if counted]
    seconds = (f"{sum(line['processor_seconds'].values()):,.0f}" for line in lines)
    return [*([f"{mean:,.0f}" for mean in means] or ["", ""]), "; ".join(seconds)]


def words_of(method: str) -> str:
    """A method in a table."""
    if method.endswith(UNCHOSEN):
        return f"*{method.split('+')[0]}, at random*"
    return method.replace("+", ", ")


def figures(key: Key, lines: Sequence[Line], keys: Iterable[str]) -> list[str]:
    """Some figures of a group's texts, or of the real ones beside them."""
    side = "real" if key.epsilon == REAL else "synthetic"
    return [shown([line["figures"][name][side] for line in lines]) for name in keys]


def with_real(lines: Sequence[Line]) -> list[tuple[Key, list[Line]]]:
    """The groups of `by_cell` in the order of tables, with the real texts of each source and number compared."""
    grouped = by_cell(lines)
    for line in lines:
        of_real = grouped.setdefault(Key(line["cell"]["source"], about(line["drawn"]), REAL, "", ""), [])
        if line["cell"]["seed"] not in {other["cell"]["seed"] for other in of_real}:  # which share their real texts
            of_real.append(line)
    return sorted(grouped.items())


def utility_plot(lines: Sequence[Line], source: str) -> str:
    """MAUVE by epsilon, a line for each method and sampling, as SVG; dashed where epsilon does not matter.

    Chosen texts and their controls are in the tables alone: more lines than colours cannot be read.
    """
    own = [line for line in lines if line["cell"]["source"] == source and "+" not in line["cell"].get("method", "")]
    # MAUVE of fewer texts is another figure.
    own = [line for line in own if line["drawn"] == max(other["drawn"] for other in own)]
    everywhere, dash = (0.0, 8.0), 0.2
    drawn = [Chart(REAL, everywhere, [mean_of(own, "real")] * 2, dashed=True)]
    curves: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for key, found in by_cell(own).items():
        mean, name = mean_of(found, "synthetic"), f"{words_of(key.method).strip('*')}, {key.sampled}s drawn"
        if key.epsilon in (NO_NOISE, UNTRAINED):
            name = "untrained" if key.epsilon == UNTRAINED else f"{name}, no noise"
            drawn.append(Chart(name, everywhere, [mean] * 2, dashed=True))
        else:
            curves[name].append((float(key.epsilon), mean))
    for name, points in sorted(curves.items()):
        if len(points) == 1:
            points = [(points[0][0] + by, points[0][1]) for by in (-dash, 0.0)]
        drawn.append(Chart(name, *zip(*sorted(points), strict=True)))
    return line_chart(
        drawn,
        title=f"How near synthetic texts are to real ones: {source}",
        description="MAUVE by epsilon after little training. Dashed lines do not depend on epsilon.",
        x_label="epsilon",
        y_label="MAUVE (1: alike)",
    )


def mean_of(lines: Sequence[Line], side: str) -> float:
    """The mean MAUVE of some lines."""
    return float(np.mean([line["figures"]["mauve"][side]["mean"] for line in lines]))


def of_attack(risk: Line) -> tuple[str, str, str, str]:
    """Who was asked about, area under the curve and rate of the found with their intervals, and what is allowed."""
    (rate,) = (rate for rate in risk["rates"] if rate["false_positive_rate"] == ASKED_AT)
    measured = (risk["area_under_curve"], rate["found"])
    intervals = [f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for one in measured]
    allowed = "" if rate["allowed"] is None else f"{rate['allowed']:.2f}"
    return f"{risk['included']} / {risk['held_out']}", *intervals, allowed


def by_cell(lines: Sequence[Line]) -> dict[Key, list[Line]]:
    """Lines that differ by their seed alone."""
    grouped: defaultdict[Key, list[Line]] = defaultdict(list)
    for line in lines:
        cell = Cell(**line["cell"])
        grouped[Key(cell.source, about(line["drawn"]), cell.epsilon, cell.method, cell.sampled)].append(line)
    return dict(grouped)


def about(drawn: int) -> int:
    """A number of texts to the nearest ten."""
    return round(drawn, -1)


def shown(estimates: Sequence[dict[str, float | None]]) -> str:
    """The mean of a report's estimates and its standard error; where there is one, its own."""
    means = [estimate["mean"] for estimate in estimates if estimate["mean"] is not None]
    if not means:
        return "-"
    error = estimates[0].get("standard_error")
    if len(means) > 1:
        error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
    return f"{np.mean(means):.2f}" + ("" if error is None else f" ± {error:.2f}")


def written(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row are its headings."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))
