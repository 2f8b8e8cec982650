"""Programs that run beside a cluster while a test breaks it, and what is told of a cluster if the test fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from tests.support.chaotic_cluster import ChaoticCluster

SETTLE_S = 60.0


class Program:
    """A context: runs in a thread until the block ends. What goes wrong in it is raised there."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self.step()
        except BaseException as failure:
            self._failure = failure

    def step(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        if self._failure is not None:
            raise AssertionError(f"{type(self).__name__} failed") from self._failure

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(SETTLE_S)
        self.check()
        assert not self._thread.is_alive(), f"{type(self).__name__} hangs"

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(SETTLE_S)


@contextmanager
def told_if_it_fails(cluster: ChaoticCluster) -> Iterator[None]:
    """Also while all is well, for who runs it with `-s`."""
    try:
        yield
    except BaseException:
        for broker in cluster.brokers:
            lines = broker.process.log_path.read_text().splitlines()
            print(f"broker {broker.broker_id}:", *lines[-40:], sep="\n  ")
        raise
    finally:
        print(*cluster.told, sep="\n")
