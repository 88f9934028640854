"""Finding personal data on all cores, in the order of the rows, with flat memory.

What belongs here: worker processes for `TextDetector`, when they are worth starting, how much is under way at a time,
and their end. What does not: finding anything (`detection`), and secrets: a worker gets texts and gives back positions.

Processes, since the detectors hold Python's lock nearly all the time. They are spawned afresh: a fork would copy the
locks of whatever threads run at that moment. Each takes one core; its numeric libraries are held to one thread. A
worker that loses its parent ends at once: texts must not outlive their step.
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

# Starting workers takes some seconds, in which one process reads about so much by itself.
WORTH_CHARACTERS = 1_000_000
UNIT_CHARACTERS = 30_000
# Units under way for each worker: one in work, one waiting.
_AHEAD = 2


class ParallelDetector:
    """Finds in a stream of items, each with several documents. Use as a context manager.

    Args:
        own: the contract's own rules.
        processes: how many; None: one for each core that this process may use. One works in this process.
    """

    def __init__(self, own: Scrub | None = None, processes: int | None = None) -> None:
        self._own = own
        alone = multiprocessing.current_process().daemon  # such a process may start no other
        self._processes = 1 if alone else processes or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None
        self._read = 0

    def __enter__(self) -> ParallelDetector:
        no_core_dumps()  # texts are in its memory, and in that of the workers, which have the limit from it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def each(
        self, items: Iterable[Item], documents: Callable[[Item], Sequence[Document]]
    ) -> Iterator[tuple[Item, Findings]]:
        """Each item with the findings of its documents, in order; items are taken as late as possible.

        Raises:
            SourceError: a worker process ended before its work was done (out of memory, or killed).
        """
        waiting: deque[tuple[Item, list[Future[Findings]]]] = deque()
        under_way = 0
        for item in items:
            futures = [self._start(unit) for unit in batches_of(documents(item), _text, UNIT_CHARACTERS)]
            waiting.append((item, futures))
            under_way += len(futures)
            # One item stays behind the one that is handed out, so that the workers never wait for who uses it.
            while len(waiting) > 1 and under_way > _AHEAD * self._processes:
                under_way -= len(waiting[0][1])
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
            problem = (
                "a process that looks for personal data ended too early, for want of memory or because it was killed"
            )
        raise SourceError(f"scrubbing: {problem}; nothing was kept, run the step again")


def _text(document: Document) -> str:
    return document.text


def _find(unit: Sequence[Document], own: Scrub | None) -> Findings:
    from threadpoolctl import threadpool_limits

    detector = text_detector()
    with threadpool_limits(limits=1):
        return detector.find(unit, own)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin_worker)


def _begin_worker() -> None:
    """A worker says nothing, since libraries quote what they read, ends with its parent, and loads its detector."""
    logging.disable(logging.CRITICAL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    text_detector()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
