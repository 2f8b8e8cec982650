"""Several runs that end together, each in a thread of its own: those of listeners, or of one consumer and its like.

When one ends by an error, or a signal comes, all of them drain, commit and leave their groups before `run` returns;
with a second signal none of them waits for its workers any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.processing.run import StopSignals
from bus.processing.work import RunSummary

logger = logger_of(__name__)

# How late a signal is seen: the kernel may give it to any thread, and that does not end a wait of the main thread.
_JOIN_S = 0.2

Run = Callable[
    [threading.Event, threading.Event], RunSummary
]  # ends by the first event; waits for nobody by the second


class RunsTogether:
    """`runs`: by the name that threads and log lines have. `close_all`: also of those that never ran."""

    def __init__(
        self,
        runs: Mapping[str, Run],
        stop: threading.Event,
        hurry: threading.Event,
        close_all: Callable[[], object],
        *,
        noun: str = "listener",
    ) -> None:
        self.ended_by: str | None = None  # the name of a signal
        self._runs = runs
        self._stop = stop
        self._hurry = hurry
        self._close_all = close_all
        self._noun = noun
        self._summaries: dict[str, RunSummary] = {}
        self._errors: list[BaseException] = []

    def run(self) -> dict[str, RunSummary]:
        """How each went. Raises the first error, after all have ended."""
        threads = [
            threading.Thread(target=self._run, args=entry, name=f"bus-{self._noun}-{entry[0]}")
            for entry in self._runs.items()
        ]
        with StopSignals(self._on_signal):
            try:
                for thread in threads:
                    thread.start()
            except BaseException as error:  # there may be no more threads
                self._errors.append(error)
                self._stop.set()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_JOIN_S)
        if self._errors:
            self._close_all()  # harmless for consumers that ran
            raise self._errors[0]
        return self._summaries

    def _run(self, name: str, run: Run) -> None:
        try:
            self._summaries[name] = run(self._stop, self._hurry)
        except BaseException as error:
            logger.error("%s %s ended, so all end: %s", self._noun, name, error)
            self._errors.append(error)
            self._stop.set()

    def _on_signal(self, name: str) -> None:
        if self.ended_by is None:
            self.ended_by = name
            logger.info("%s: all %ss end", name, self._noun)
            self._stop.set()
        else:
            logger.warning("%s: all %ss end at once, without waiting for records with workers", name, self._noun)
            self._hurry.set()


def joined(summaries: Sequence[RunSummary], ended_by: str | None) -> RunSummary:
    """One of all of them; a partition that moved between them counts with its last offset."""
    committed: dict[TopicPartition, int] = {}
    for summary in summaries:
        for partition, offset in summary.committed.items():
            committed[partition] = max(offset, committed.get(partition, offset))
    return RunSummary(
        handled=sum(each.handled for each in summaries),
        skipped=sum(each.skipped for each in summaries),
        dead_lettered=sum(each.dead_lettered for each in summaries),
        retried=sum(each.retried for each in summaries),
        abandoned=sum(each.abandoned for each in summaries),
        commits=sum(each.commits for each in summaries),
        committed=committed,
        duration_ms=max(each.duration_ms for each in summaries),
        ended_by=ended_by or summaries[0].ended_by,
    )
