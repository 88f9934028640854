"""How long the console's pages take on a large platform. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_console.py                          # 200 datasets, 1,000 releases; minutes to fill
    python tests/benchmarks/bench_console.py --home /dev/shm/large    # keeps the platform there, and uses it again
    python tests/benchmarks/bench_console.py --datasets 20 --months 5

One line is run for real, and released. Every other release is a copy of it under names of its own: its step records
and its dossier are rewritten, the dossier is signed anew, and the ledger and the lineage graph are told of it by the
library's own writers. So each release verifies by itself, and the chain does.

"First" is the first page that a process shows, with nothing read before but Python's modules; "again" the median of
five more; "after an event" the first one after something was recorded in the ledger, as while runs go on. Bracketed is
the processor's time, where others used the machine, too.

`--http` measures the pages themselves, of a console in a process of its own: for each the response to somebody who is
signed in, and how long a browser (Chromium) takes until the page is drawn.

Measured with `--http`, 1,000 releases, 200 datasets and a graph of 20,480 nodes (half of them other names), on two
cores with nothing else to do. Seconds of the clock, and bracketed of the processor; a browser's hold the console's. The
console's start takes 14 s of processor with all that it reads ahead, and it answers meanwhile.

| page | response, first | again | drawn, first | again |
| --- | --- | --- | --- | --- |
| overview | 0.19 (0.17) | 0.17 (0.18) | 0.29 (0.44) | 0.30 (0.42) |
| families | 0.07 (0.05) | 0.05 (0.06) | 0.25 (0.38) | 0.18 (0.26) |
| family | 0.14 (0.13) | 0.10 (0.09) | 0.30 (0.42) | 0.26 (0.33) |
| datasets | 0.04 (0.03) | 0.03 (0.02) | 0.19 (0.30) | 0.16 (0.27) |
| dataset | 0.06 (0.05) | 0.03 (0.03) | 0.22 (0.38) | 0.18 (0.28) |
| releases | 0.06 (0.06) | 0.05 (0.05) | 0.19 (0.28) | 0.17 (0.26) |
| releases of one state | 0.26 (0.23) | 0.23 (0.22) | 0.34 (0.44) | 0.37 (0.50) |
| release | 0.42 (0.40) | 0.12 (0.11) | 0.29 (0.43) | 0.28 (0.40) |
| candidate | 0.15 (0.14) | 0.13 (0.13) | 0.28 (0.37) | 0.32 (0.44) |
| graph, two steps | 0.37 (0.28) | 0.16 (0.16) | 0.32 (0.42) | 0.31 (0.47) |
| graph, ten steps, not collapsed | 0.18 (0.16) | 0.16 (0.16) | 0.30 (0.41) | 0.32 (0.41) |
| graph around a source | 0.16 (0.15) | 0.15 (0.15) | 0.33 (0.45) | 0.36 (0.50) |
| way between two nodes | 0.24 (0.23) | 0.46 (0.46) | 0.65 (0.80) | 0.61 (0.76) |
| search | 0.07 (0.06) | 0.06 (0.06) | 0.24 (0.33) | 0.21 (0.32) |
| ledger | 0.05 (0.04) | 0.05 (0.04) | 0.24 (0.37) | 0.22 (0.30) |
| ledger, by text | 0.05 (0.04) | 0.05 (0.04) | 0.19 (0.26) | 0.18 (0.27) |
| entry | 0.04 (0.03) | 0.02 (0.02) | 0.16 (0.24) | 0.17 (0.25) |

What belongs here: timing read models. What does not: asserting; `tests/console` holds what must hold at any speed.
"""

from __future__ import annotations

import argparse
import copy
import datetime as dt
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
sys.path.insert(0, str(Path(__file__).parents[1] / "console"))

from browser_cases import Console, Visitor, chromium, console, visitor
from deployment import FAMILY, Deployment
from graph_cases import graph_of
from inside import inside
from line_cases import SMALL, run_here, small_table

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import candidates, datasets, families, ledger, lineage, overview, releases
from dpsynth_platform.foundation import addresses as to
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage, write_table
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import Entry
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.release import evidence
from dpsynth_platform.release.attestation import Envelope, release_statement
from dpsynth_platform.release.register import Register
from dpsynth_platform.reviewing import decisions
from dpsynth_platform.reviewing.chronicle import chronicle
from dpsynth_platform.reviewing.file_cache import FileCache
from dpsynth_platform.secrets.vault import Vault

EVERYTHING = frozenset(Action)
FIRST = "2024-06"
TOLD_STEPS = ("scrubbed", "bounded", "model", "synthetic", "released")
DATASETS_A_FAMILY = 5


def month(number: int) -> str:
    """`2025-01`, `2025-02`, ..."""
    return f"{2025 + number // 12}-{number % 12 + 1:02d}"


def contract_of(name: str, family: str) -> dict[str, Any]:
    """The small contract as a monthly dataset."""
    contract = copy.deepcopy(SMALL) | {"dataset": name, "family": family, "description": f"Dataset {name}, by month."}
    contract["source"] |= {"uri": f"${{DPSYNTH_HOME}}/sources/{name}", "period_column": "day"}
    contract["columns"] = {**contract["columns"], "day": {"type": "date", "min": "2025-01-01", "max": "2035-12-31"}}
    contract["release"] |= {"uri": f"${{DPSYNTH_HOME}}/public/{name}", "cadence": "monthly", "start": FIRST}
    return contract


def family_of(number: int) -> str:
    """The family of a dataset."""
    return f"family-{number // DATASETS_A_FAMILY:03d}"


@dataclass(frozen=True)
class Template:
    """The line that was run for real, as text to be rewritten."""

    place: Place
    family: str
    entry: Entry
    run_key: str
    records: dict[str, dict[str, Any]]
    released: Path
    dossier: str
    events: tuple[dict[str, Any], ...]


def fill(root: Path, number: int, months: int) -> Deployment:
    """A platform with so many datasets, each released so often, and one candidate of every tenth that waits."""
    deployment = Deployment(root, contract_of("data_000", family_of(0)), _family(family_of(0))).write()
    _write_contracts(deployment, number)
    table = small_table(1500)
    days = [dt.date(2025, 1, 1) + dt.timedelta(days=int(day)) for day in np.random.default_rng(1).integers(0, 31, 1500)]
    table = table.append_column("day", pa.array(days, pa.date32()))
    write_table(deployment.settings.home / "sources" / "data_000", table.schema, table.to_batches())
    template = _run(deployment)
    filler = _Filler(deployment.settings, template)
    for index in range(number):
        for which in range(months + (index % 10 == 0)):
            if (index, which) != (0, 0):
                filler.add(Place(f"data_{index:03d}", month(which)), family_of(index), publish=which < months)
        if index % 20 == 0:
            print(f"  {index} of {number} datasets", file=sys.stderr)
    return deployment


def _family(name: str) -> dict[str, Any]:
    return copy.deepcopy(FAMILY) | {"family": name, "cap": {"epsilon": 60.0, "delta": 1e-5}}


def _write_contracts(deployment: Deployment, number: int) -> None:
    for index in range(number):
        contract, family = contract_of(f"data_{index:03d}", family_of(index)), _family(family_of(index))
        family["owner_normalization"] = []
        for kind, name, document in (
            ("contracts", contract["dataset"], contract),
            ("families", family["family"], family),
        ):
            (deployment.settings.deploy / kind / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def _run(deployment: Deployment) -> Template:
    """Runs the first line for real, and releases it."""
    settings, place = deployment.settings, Place("data_000", month(0))
    ran = run_here(deployment, "data_000_candidate", period=place.period, accelerator=inside(deployment))
    assert ran.success, ran.failures
    decisions.approve(settings, place, "reviewer", "")
    ran = run_here(deployment, "data_000_release", period=place.period)
    assert ran.success, ran.failures
    storage = Storage(settings.restricted)
    records = {
        path.stem: json.loads(path.read_text())
        for path in (settings.restricted / place.dataset / place.period).glob("*.json")
    }
    (entry,) = Ledger(settings.ledger_url).entries()
    released = Path(storage.require(place, "released").facts["path"])
    told = [
        dict(event.payload)
        for event in LineageStore(settings.ledger_url).events()
        if event.kind == "COMPLETE" and event.job_name.rpartition(".")[2] in TOLD_STEPS
    ]
    return Template(
        place,
        family_of(0),
        entry,
        records["raw"]["run_key"],
        records,
        released,
        (released / layout.DOSSIER).read_text(encoding="utf-8"),
        tuple(told),
    )


class _Filler:
    """Adds copies of the first line."""

    def __init__(self, settings: Settings, template: Template) -> None:
        self._settings = settings
        self._template = template
        self._ledger = Ledger(settings.ledger_url)
        self._lineage = LineageStore(settings.ledger_url)
        self._storage = Storage(settings.restricted)
        self._key = Vault(settings.vault).signing_key()
        self._key_ids = self._ledger.account(template.family).key_ids
        self._people = self._ledger.participants(template.entry.entry_id)

    def add(self, place: Place, family: str, *, publish: bool) -> None:
        """One more candidate, published or waiting."""
        from dpsynth_platform.contracts.loading import load_family

        first = self._template
        self._ledger.open_account(load_family(self._settings.families / f"{family}.yaml"), self._key_ids)
        run_key = hashlib.sha256(place.label.encode()).hexdigest()[:32]
        request = replace(first.entry.request, dataset=place.dataset, period=place.period)
        entry = self._ledger.reserve(family, run_key, request, self._people, "compose", key_ids=self._key_ids)
        self._ledger.start(entry.entry_id)
        self._ledger.complete(entry.entry_id, first.entry.model_digest or "")
        names = {
            f"/{first.place.dataset}/{first.place.period}": f"/{place.dataset}/{place.period}",
            f"{first.place.dataset}/{first.place.period}": f"{place.dataset}/{place.period}",
            first.place.dataset: place.dataset,
            f'"{first.place.period}"': f'"{place.period}"',
            f'"{first.family}"': f'"{family}"',
            first.entry.entry_id: entry.entry_id,
            first.run_key: run_key,
        }
        self._copy_steps(place, names)
        contract = decisions.sealed_contract(self._storage, place)
        candidate = evidence.candidate_of(self._storage, place, contract, self._ledger, read=False)
        self._ledger.record(chain.CANDIDATE, candidate.digest, {"entry": entry.entry_id})
        release = f"{place.dataset}-{place.period}-{candidate.digest[:16]}" if publish else None
        if release is not None:
            self._ledger.approve(candidate.digest, by="reviewer", entry_id=entry.entry_id, runners=["runner"])
            self._publish(place, release, candidate.digest, entry.entry_id, names)
        self._tell(names, release)

    def _copy_steps(self, place: Place, names: dict[str, str]) -> None:
        first, base = self._template, self._settings.restricted
        target = base / place.dataset / str(place.period)
        shutil.copytree(
            base / first.place.dataset / str(first.place.period),
            target,
            copy_function=os.link,
            ignore=shutil.ignore_patterns("*.json"),
        )
        hashes: dict[str, str] = {}
        written = {step: json.loads(_renamed(json.dumps(record), names)) for step, record in first.records.items()}
        for step, record in written.items():
            if record["path"] is not None:
                kept = Path(first.records[step]["path"]).relative_to(
                    base / first.place.dataset / str(first.place.period)
                )
                record["path"] = str(target / kept)
            else:
                new = canonical_digest(record["facts"])
                hashes[first.records[step]["content_hash"]] = record["content_hash"] = new
        for path in (base / first.place.dataset / str(first.place.period)).rglob("*.json"):
            relative = path.relative_to(base / first.place.dataset / str(first.place.period))
            if len(relative.parts) > 1:
                os.link(path, target / relative)
        for step, record in written.items():
            if step != "released":
                record["inputs"] = {name: hashes.get(value, value) for name, value in record["inputs"].items()}
                (target / f"{step}.json").write_text(json.dumps(record, indent=1), encoding="utf-8")

    def _publish(self, place: Place, release: str, candidate: str, entry: str, names: dict[str, str]) -> None:
        first = self._template
        directory = self._settings.home / "public" / place.dataset / release
        shutil.copytree(first.released, directory, copy_function=os.link)
        dossier = json.loads(_renamed(first.dossier, names))
        dossier["release"]["id"] = release
        dossier["commitments"]["candidate"] = candidate
        dossier["ledger"]["head"] = asdict(self._ledger.head())
        for name in (layout.DOSSIER, layout.ATTESTATION):
            (directory / name).unlink()
        (directory / layout.DOSSIER).write_text(json.dumps(dossier, indent=2, ensure_ascii=False) + "\n")
        envelope = Envelope.seal(release_statement(directory, dossier), self._key)
        (directory / layout.ATTESTATION).write_bytes(envelope.to_bytes())
        Register(self._settings.restricted).note(release, directory, ["data@example.org"])
        self._ledger.release(release, candidate=candidate, entry_id=entry, check=lambda _: None)
        facts = {"release_id": release, "path": str(directory), "candidate": candidate}
        record = self._template.records["released"] | {
            "dataset": place.dataset,
            "period": place.period,
            "facts": facts,
            "content_hash": canonical_digest(facts),
        }
        file = self._settings.restricted / place.dataset / str(place.period) / "released.json"
        file.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def _tell(self, names: dict[str, str], release: str | None) -> None:
        old = self._template.released.name
        for event in self._template.events:
            if release is None and event["job"]["name"].endswith(".released"):
                continue
            text = _renamed(json.dumps(event), names | ({old: release} if release else {}))
            told = json.loads(text)
            told["run"]["runId"] = str(uuid.uuid4())
            self._lineage.record(told)


def _renamed(text: str, names: dict[str, str]) -> str:
    """Longest names first, so that none is renamed in part."""
    for old in sorted(names, key=len, reverse=True):
        text = text.replace(json.dumps(old)[1:-1] if '"' not in old else old, names[old])
    return text


def shown(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Every page's read model, for somebody who may see all of it."""
    known = chronicle(settings)
    release = known.published_of("data_000")[-1].release
    other = known.published_of("data_003")[0].release
    entry = known.publications[release].entry.entry_id
    last = max(place.period or "" for place in Storage(settings.restricted).places("data_000"))
    may = EVERYTHING
    return {
        "overview": lambda: overview.overview(settings, may),
        "families": lambda: families.families(settings, may),
        "family": lambda: families.family(settings, may, family_of(0)),
        "datasets": lambda: datasets.datasets(settings, may),
        "dataset": lambda: datasets.dataset(settings, may, "data_000"),
        "releases, first page": lambda: releases.releases(settings, may),
        "releases, by text": lambda: releases.releases(settings, may, text="data_001"),
        "releases, by state": lambda: releases.releases(settings, may, state="damaged"),
        "release": lambda: releases.release(settings, may, release),
        "candidate": lambda: candidates.candidate(settings, may, "data_000", last),
        "graph, two steps": lambda: lineage.graph(settings, may, release),
        "graph, ten steps, not collapsed": lambda: lineage.graph(settings, may, release, 10, 10, collapse=False),
        "graph around a source": lambda: lineage.graph(settings, may, "data_000"),
        "path": lambda: lineage.path(settings, may, release, other),
        "search": lambda: lineage.search(settings, may, "data_17"),
        "node": lambda: lineage.node(settings, may, release),
        "ledger, first page": lambda: ledger.entries(settings, may),
        "ledger, by text": lambda: ledger.entries(settings, may, text="data_017"),
        "entry": lambda: ledger.entry(settings, may, entry),
        "verify a release": lambda: releases.verify(settings, may, release),
        "verify the ledger": lambda: ledger.verify(settings, may),
    }


Times = tuple[float, float]
"""Of the clock, and of the processor; in seconds."""


def seconds(work: Callable[[], object]) -> Times:
    """How long something takes."""
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


def measure(settings: Settings) -> Iterator[tuple[str, Times, Times, Times]]:
    """First, again, after an event: for each page, each in a process of its own as far as what it keeps goes."""
    store = Ledger(settings.ledger_url)
    for name, show in shown(settings).items():
        _forget()
        first = seconds(show)
        again = statistics.median_low([seconds(show) for _ in range(5)])
        store.record("bench", "bench_console", {})
        yield name, first, again, seconds(show)


def _forget() -> None:
    """Drops what the process keeps, as after a start."""
    from dpsynth_platform.reviewing import catalogue, chronicle, verification

    chronicle._reader.cache_clear()
    for module in (catalogue, verification):
        for value in vars(module).values():
            if isinstance(value, FileCache):
                value._values.clear()


def addresses(settings: Settings) -> dict[str, str]:
    """Every page's address."""
    known = chronicle(settings)
    release = known.published_of("data_000")[-1].release
    other = known.published_of("data_003")[0].release
    last = max(place.period or "" for place in Storage(settings.restricted).places("data_000"))
    return {
        "overview": "/",
        "families": "/families",
        "family": to.family_page(family_of(0)),
        "datasets": "/datasets",
        "dataset": to.dataset_page("data_000"),
        "releases": "/releases",
        "releases of one state": "/releases?state=withdrawn",
        "release": to.release_page(release),
        "candidate": to.candidate_page("data_000", last),
        "graph, two steps": to.node_page(release),
        "graph, ten steps, not collapsed": f"{to.node_page(release)}&up=10&down=10&sent=yes",
        "graph around a source": to.node_page("data_000"),
        "way between two nodes": f"{to.node_page(release)}&path={other}",
        "search": "/lineage?text=data_17",
        "ledger": "/ledger",
        "ledger, by text": "/ledger?text=data_017",
        "entry": to.entry_page(known.publications[release].entry.entry_id),
    }


def over_http(deployment: Deployment) -> Iterator[tuple[str, Times, Times, Times, Times]]:
    """Each page of a console in a process of its own, for somebody who is signed in.

    The response's seconds, first and again, and then a browser's until the page is drawn, first and again: of the
    clock, and of the processor, for the console alone or with the browser. First is after the console has read ahead.
    """
    shutil.rmtree(deployment.settings.console_home, ignore_errors=True)  # users of an earlier run
    with console(deployment) as running, chromium() as browser, visitor(running, browser) as here:
        _rest(running)
        print(f"start and reading ahead: {_processor(running.process):.1f} s of processor", file=sys.stderr)
        for name, address in addresses(deployment.settings).items():
            first = _served(here, address)
            again = statistics.median_low([_served(here, address) for _ in range(5)])
            drawn = [_drawn(here, address) for _ in range(4)]
            yield name, first, again, drawn[0], statistics.median_low(drawn[1:])


def _rest(running: Console) -> None:
    """Waits until the console computes nothing any more."""
    while True:
        before = _processor(running.process)
        time.sleep(2)
        if _processor(running.process) - before < 0.1:
            return


def _processor(process: int) -> float:
    """Seconds that a process has used of the processor (proc_pid_stat(5), fields 14 and 15)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _processor_of_all() -> float:
    """The same of this process and all that it started: the console, and the browser's processes."""
    ours, used = {os.getpid()}, 0.0
    for process in sorted(int(place.name) for place in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):  # it has ended
            parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            if parent in ours or process in ours:
                ours.add(process)
                used += _processor(process)
    return used


def _served(here: Visitor, address: str) -> Times:
    start, used = time.perf_counter(), _processor(here.console.process)
    answer = here.page.request.get(here.console.url + address)
    took = time.perf_counter() - start
    assert answer.ok, (answer.url, answer.status)
    return took, _processor(here.console.process) - used


def _drawn(here: Visitor, address: str) -> Times:
    start, used = time.perf_counter(), _processor_of_all()
    here.open(address)
    return time.perf_counter() - start, _processor_of_all() - used


def size_of(settings: Settings) -> str:
    """What there is, in words."""
    known = chronicle(settings)
    nodes = sum(1 for _ in graph_of(LineageStore(settings.ledger_url)).datasets)
    return (
        f"{len(known.publications):,} releases, {len(list(settings.contracts.glob('*.yaml')))} datasets, {nodes:,} "
        f"nodes of the graph, {len(known.entries):,} ledger entries, {len(known.events):,} events of the chain"
    )


def main() -> None:
    """Fills a platform, unless there is one, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="where the platform is, or is to be made")
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--months", type=int, default=5)
    parser.add_argument("--http", action="store_true", help="measure pages over HTTP and in a browser instead")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = given.home or Path(temporary)
        if not (root / "home" / "ledger").is_dir():
            start = time.perf_counter()
            fill(root, given.datasets, given.months)
            print(f"filled in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        settings = Deployment(root).settings
        print(f"{size_of(settings)}\n")
        if not given.http:
            print("| page | first | again | after an event |")
            print("| --- | --- | --- | --- |")
            for name, *times in measure(settings):
                print(f"| {name} | {' | '.join(_told(*item) for item in times)} |", flush=True)
            return
        print("| page | response, first | again | drawn, first | again |")
        print("| --- | --- | --- | --- | --- |")
        for name, *times in over_http(Deployment(root)):
            print(f"| {name} | {' | '.join(_told(*item) for item in times)} |", flush=True)


def _told(clock: float, used: float) -> str:
    return f"{clock:.2f} s ({used:.2f})"


if __name__ == "__main__":
    main()
