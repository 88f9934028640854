"""How well and how fast scrubbing finds, beside plain Presidio, and what it leaves. Not a test: it prints tables.

    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_scrub.py                  # all tables; some minutes
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_scrub.py --quality        # one of them
    DPSYNTH_BENCH_DATA=... python tests/benchmarks/bench_scrub.py --residue --every 20

What belongs here: the same texts through `ParallelDetector` and through Presidio's `AnalyzerEngine` with its defaults
and the same language model, in one run; what patterns find in scrubbed texts; memory over growing tables. What does
not: asserting; the tests in `tests/scrub` hold what must hold.

Quality is measured on templates whose texts nobody read while rules were written: those whose number hashes to 1 modulo
4 (`held_out`). Their totals were looked at several times, so they are not wholly unseen. The others were read and used.
All texts of one template are on one side.

Results: docs/explanation/measurements/scrubbing.md. On two shared cores, 4.6 times as many newsgroup posts a second as
plain Presidio, and 4.5 times as many short texts; the residue of both corpora, read in full, was nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scrub"))

from residue import residues

from dpsynth_platform.cli.scrub import cells
from dpsynth_platform.scrub import parallel
from dpsynth_platform.scrub.detection import Document, text_detector
from dpsynth_platform.scrub.evaluation import CLASSES, Evaluation, GoldText, evaluate, read_gold
from dpsynth_platform.scrub.findings import Finding
from dpsynth_platform.scrub.names import MODEL
from dpsynth_platform.scrub.parallel import ParallelDetector
from dpsynth_platform.scrub.replacement import Replacer, substituted

Found = list[list[Finding]]
GOLD = "pii_presidio/generated_large.parquet"
CORPORA = {"newsgroups20": "newsgroups20/newsgroups20.parquet", "enron": "enron_categories/enron_categories.parquet"}
CHUNK = 256


def held_out(template: int) -> bool:
    """Whether a template is kept for measuring."""
    return hashlib.sha256(f"template {template}".encode()).digest()[0] % 4 == 1


def plain_presidio() -> Any:
    """Presidio with its defaults and the same language model."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    models = {"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": MODEL}]}
    return AnalyzerEngine(nlp_engine=NlpEngineProvider(nlp_configuration=models).create_engine())


def by_presidio(engine: Any, texts: Sequence[str]) -> Found:
    """A plain loop, as Presidio's own examples have it."""
    return [
        [Finding(item.start, item.end, item.entity_type) for item in engine.analyze(text, language="en")]
        for text in texts
    ]


def by_us(detector: ParallelDetector, texts: Sequence[str]) -> Found:
    """The product's way, from the first text to the last."""
    chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    stream = detector.each(chunks, lambda chunk: [Document(text) for text in chunk])
    return [findings for _, found in stream for findings in found]


def quality(data: Path) -> None:
    """Precision, recall and F2 by type on held-out templates, and every class of misses."""
    gold = read_gold(data / GOLD)
    templates = pq.read_table(data / GOLD, columns=["template_id"]).column(0).to_pylist()
    kept = [item for item, template in zip(gold, templates, strict=True) if held_out(template)]
    seen = [item for item, template in zip(gold, templates, strict=True) if not held_out(template)]
    engine = plain_presidio()
    print(f"types that are compared as another: {', '.join(f'{a} as {b}' for a, b in CLASSES.items())}")
    for words, part in (("held-out", kept), ("read while writing rules", seen)):
        texts = [item.text for item in part]
        numbers = {template for template in templates if held_out(template) == (part is kept)}
        print(f"\n## {len(texts)} texts of {len(numbers)} templates, {words}")
        ours = evaluate(part, text_detector().find([Document(text) for text in texts]))
        theirs = evaluate(part, by_presidio(engine, texts))
        for rule in ("exact", "overlapping"):
            compare(rule, ours, theirs)
        if part is kept:
            misses(part, ours, theirs)


def compare(rule: str, ours: Evaluation, theirs: Evaluation) -> None:
    """Both detectors side by side under one rule of matching."""
    head = f"{'gold':>5} {'found':>6} {'P':>6} {'R':>6} {'F1':>6} {'F2':>6}"
    print(f"\n{rule + ' spans':<20} ours: {head}   Presidio: {head}")
    for name in ["all", *sorted(ours.exact.keys() | theirs.exact.keys())]:
        row = []
        for report in (ours, theirs):
            score = report.total(rule) if name == "all" else getattr(report, rule)[name]
            row.append("{:>5} {:>6} {:>6} {:>6} {:>6} {:>6}".format(*cells(score)))
        print(f"{name:<20}       {row[0]}             {row[1]}")


def misses(part: Sequence[GoldText], ours: Evaluation, theirs: Evaluation) -> None:
    """What is left, by the gold set's own types, and what is taken for something else."""
    spans = Counter(span.entity for item in part for span in item.spans)
    print(
        f"\n{'gold type':<20} {'spans':>6}   {'ours: removed':>14} {'left whole':>11}   "
        f"{'Presidio: removed':>18} {'left whole':>11}"
    )
    for name, share in ours.covered.items():
        print(
            f"{name:<20} {spans[name]:>6}   {share:>14.3f} {ours.missed.get(name, 0):>11}   "
            f"{theirs.covered[name]:>18.3f} {theirs.missed.get(name, 0):>11}"
        )
    for words, report in (("ours", ours), ("Presidio", theirs)):
        print(f"found as another type, {words}: { ({name: dict(others) for name, others in report.confused.items()}) }")
        print(f"not judged (types that the gold set never marks), {words}: {dict(report.unjudged)}")


def throughput(data: Path, every: int, repeats: int) -> None:
    """Texts a second; runs of both take turns, so that other work on the machine meets both alike."""
    cores = len(os.sched_getaffinity(0))
    corpora = {"pii_presidio": [item.text for item in read_gold(data / GOLD)]}
    corpora["newsgroups20"] = read_texts(data, "newsgroups20", every)
    engine = plain_presidio()
    by_presidio(engine, ["Warm up with Ann Smith."])
    print(f"\n## Texts a second, {cores} cores; medians of {repeats} turns")
    print(
        f"{'texts':<14} {'number':>7} {'characters':>11} {'Presidio':>9} {'ours, 1 process':>16} {'all cores':>10} "
        f"{'ratio':>6}"
    )
    parallel.WORTH_CHARACTERS = 0
    with ParallelDetector(processes=1) as alone, ParallelDetector() as together:
        for name, texts in corpora.items():
            for detector in (alone, together):
                by_us(detector, texts * 2 if detector is together else texts[:CHUNK])
            times: dict[str, list[float]] = {"plain": [], "one": [], "all": []}
            for _ in range(repeats):
                times["plain"].append(seconds(lambda texts=texts: by_presidio(engine, texts)))  # type: ignore[misc]
                times["one"].append(seconds(lambda texts=texts: by_us(alone, texts)))  # type: ignore[misc]
                times["all"].append(seconds(lambda texts=texts: by_us(together, texts)))  # type: ignore[misc]
            plain, one, both = (len(texts) / statistics.median(found) for found in times.values())
            print(
                f"{name:<14} {len(texts):>7} {sum(map(len, texts)):>11} {plain:>9.0f} {one:>16.0f} {both:>10.0f} "
                f"{both / plain:>6.2f}",
                flush=True,
            )


def seconds(work: Any) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def residue(data: Path, every: int) -> None:
    """What an independent look finds in the corpora before and after replacement."""
    print("\n## Patterns left after replacing, by an independent look (`tests/scrub/residue.py`)")
    print(f"{'corpus':<14} {'texts':>7} {'before':<60} {'after':<30}")
    replacer = Replacer()
    with ParallelDetector() as detector:
        for name in CORPORA:
            before: Counter[str] = Counter()
            after: Counter[str] = Counter()
            texts = read_texts(data, name, every)
            chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
            for chunk, found in detector.each(chunks, lambda chunk: [Document(text) for text in chunk]):
                for text, findings in zip(chunk, found, strict=True):
                    before.update(residues(text))
                    after.update(residues(replaced(replacer, text, findings)))
            print(f"{name:<14} {len(texts):>7} {dict(before)!s:<60} {dict(after) or 'nothing'!s:<30}", flush=True)


def replaced(replacer: Replacer, text: str, findings: Sequence[Finding]) -> str:
    """The text with a fictional value for each finding."""
    values = replacer.values((text[item.start : item.end], item.entity) for item in findings)
    return substituted(text, findings, lambda original, entity: values[original, entity])


def read_texts(data: Path, name: str, every: int) -> list[str]:
    """Every n-th text of a corpus."""
    return [text or "" for text in pq.read_table(data / CORPORA[name], columns=["text"]).column(0).to_pylist()[::every]]


def memory(rows: Sequence[int]) -> None:
    """Peak memory of scrubbing tables of growing size, each in a process of its own, with its workers."""
    print("\n## Memory over table size (texts of 400 characters)")
    print(f"{'rows':>8} {'text MB':>8} {'peak MB':>8} {'largest worker MB':>18} {'rows/s':>7}")
    for number in rows:
        done = subprocess.run(
            [sys.executable, __file__, "--one-table", str(number)], capture_output=True, text=True, check=True
        )
        print(done.stdout.strip(), flush=True)


def one_table(rows: int) -> None:
    """Scrubs one table, made as it is read, and prints what that took."""
    from dpsynth_platform.contracts.loading import parse_contract
    from dpsynth_platform.scrub.fingerprints import FingerprintKeys
    from dpsynth_platform.scrub.scrub import ScrubKeys, scrub_batches

    contract = parse_contract(
        {
            "dataset": "bench",
            "description": "Letters made up.",
            "owners": ["bench"],
            "source": {"uri": "unused", "key": ["owner"]},
            "family": "bench",
            "privacy": {
                "unit": "user",
                "owner_columns": ["owner"],
                "namespace": "bench",
                "max_contributions": 1,
                "guarantee": {"epsilon": 1.0},
                "expected_units": 1000,
            },
            "columns": {
                "owner": {"type": "identifier"},
                "first": {"type": "boolean"},
                "second": {"type": "boolean"},
                "letter": {"type": "text"},
            },
            "generate": {"rows": 1},
            "release": {"uri": "unused"},
        },
        where="bench",
        variables={},
    )
    schema = pa.schema({"owner": pa.int64(), "first": pa.bool_(), "second": pa.bool_(), "letter": pa.string()})
    text = "Letter {}: call Maria Alvarez of Acme Corp. at 212-736-5000, or write to 12 Oak Street, Troy, NY 12180. "

    def batches() -> Any:
        for start in range(0, rows, 1000):
            numbers = range(start, min(start + 1000, rows))
            letters = [(text.format(number) * 4)[:400] for number in numbers]
            flags = [True] * len(letters)
            yield pa.record_batch([pa.array(numbers, pa.int64()), flags, flags, letters], schema=schema)

    keys = ScrubKeys(FingerprintKeys(b"1" * 32, (b"2" * 32,)), b"3" * 32, b"4" * 32)
    began = time.perf_counter()
    _, scrubbed, _ = scrub_batches(batches(), contract, schema, keys)
    count = sum(batch.num_rows for batch in scrubbed)
    took = time.perf_counter() - began
    own, workers = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"{count:>8} {count * 400 / 1e6:>8.0f} {own:>8.0f} {workers:>18.0f} {count / took:>7.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables = ("quality", "throughput", "residue", "memory")
    for table in tables:
        parser.add_argument(f"--{table}", action="store_true", help="only the tables that are named")
    parser.add_argument("--every", type=int, default=1, help="every n-th text of the corpora for --residue")
    parser.add_argument("--repeats", type=int, default=3, help="turns for --throughput")
    parser.add_argument("--rows", type=int, nargs="*", default=[2000, 8000, 32000], help="table sizes for --memory")
    parser.add_argument("--one-table", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one_table:
        one_table(chosen.one_table)
        sys.exit()
    wanted = [table for table in tables if getattr(chosen, table)] or list(tables)
    if {"quality", "throughput", "residue"} & set(wanted):
        if "DPSYNTH_BENCH_DATA" not in os.environ:
            sys.exit("DPSYNTH_BENCH_DATA names the directory with pii_presidio, newsgroups20 and enron_categories")
        folder = Path(os.environ["DPSYNTH_BENCH_DATA"])
    if "quality" in wanted:
        quality(folder)
    if "throughput" in wanted:
        throughput(folder, 100, chosen.repeats)
    if "residue" in wanted:
        residue(folder, chosen.every)
    if "memory" in wanted:
        memory(chosen.rows)
