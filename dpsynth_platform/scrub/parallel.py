"""Finding personal data on all cores, in the order of the rows, with constant memory.

What belongs here: worker processes for `TextDetector`, their start and end, and the amount of work in progress. What
does not: detection (`detection`), and secrets: a worker receives texts and returns positions.

Workers are processes, since detectors hold the interpreter lock, and are spawned, since a fork copies other threads'
locks. Each uses one core; its numeric libraries use one thread. A worker without its parent ends at once, since texts
must not outlive their step.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from types import TracebackType

from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.permissions import no_core_dumps
from dpsynth_platform.scrub.batches import Item, batches_of
from dpsynth_platform.scrub.detection import Document, text_detector
from dpsynth_platform.scrub.findings import Finding

Findings = list[list[Finding]]

# Starting workers takes some seconds, in which one process reads about so much.
WORTH_CHARACTERS = 1_000_000
UNIT_CHARACTERS = 30_000
# Units in progress per worker: one running, one waiting.
_AHEAD = 2


class ParallelDetector:
    """Detects in a stream of items, each with several documents. Use as a context manager.

    Without `processes`, one for each core that this process may use. With one, no other process is started.
    """

    def __init__(self, own: Scrub | None = None, processes: int | None = None) -> None:
        self._own = own
        daemon = multiprocessing.current_process().daemon  # such a process cannot start others
        self._processes = 1 if daemon else processes or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None
        self._read = 0

    def __enter__(self) -> ParallelDetector:
        no_core_dumps()  # texts are in memory; workers inherit the limit
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def each(
        self, items: Iterable[Item], documents: Callable[[Item], Sequence[Document]]
    ) -> Iterator[tuple[Item, Findings]]:
        """Each item with the findings of its documents, in order. Items are read as late as possible.

        Raises `SourceError` if a worker process ends unexpectedly (out of memory, or killed).
        """
        waiting: deque[tuple[Item, list[Future[Findings]]]] = deque()
        in_progress = 0
        for item in items:
            units = batches_of(documents(item), lambda document: document.text, UNIT_CHARACTERS)
            futures = [self._start(unit) for unit in units]
            waiting.append((item, futures))
            in_progress += len(futures)
            # A further item stays in the queue, so that workers are busy while the caller uses one. Items without
            # documents count too: a whole table of them would wait.
            while len(waiting) > 1 and max(in_progress, len(waiting)) > _AHEAD * self._processes:
                in_progress -= len(waiting[0][1])
                yield self._ready(*waiting.popleft())
        while waiting:
            yield self._ready(*waiting.popleft())

    def _start(self, unit: Sequence[Document]) -> Future[Findings]:
        self._read += sum(len(item.text) for item in unit)
        if self._pool is None and self._processes > 1 and self._read > WORTH_CHARACTERS:
            self._pool = _pool(self._processes)
        if self._pool is not None:
            return self._pool.submit(_find, unit, self._own)
        done: Future[Findings] = Future()
        done.set_result(_find(unit, self._own))
        return done

    def _ready(self, item: Item, futures: Iterable[Future[Findings]]) -> tuple[Item, Findings]:
        try:
            return item, [findings for future in futures for findings in future.result()]
        except BrokenProcessPool:
            problem = "a detector process ended unexpectedly: it was killed, or the memory was exhausted"
        raise SourceError(f"scrubbing: {problem}; nothing was kept, run the step again")


def _find(unit: Sequence[Document], own: Scrub | None) -> Findings:
    from threadpoolctl import threadpool_limits

    detector = text_detector()
    with threadpool_limits(limits=1):
        return detector.find(unit, own)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin_worker)


def _begin_worker() -> None:
    """Disables logging (libraries quote texts), ends the worker with its parent, and loads its detector."""
    logging.disable(logging.CRITICAL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    text_detector()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
