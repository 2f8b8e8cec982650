"""A producer that goes on whatever happens: record n of a partition has the value n, so its offset must be n, too."""

from __future__ import annotations

import threading
from types import TracebackType

from bus import Producer
from bus.client.producer.future import BatchFuture

_PAUSE_S = 0.05


class SteadyProducer:
    """A context: sends `records` to each partition every 50 ms, until `finish` or the end of the block."""

    def __init__(self, address: str, topic: str, partitions: int, records: int) -> None:
        self._producer = Producer(address, retry_backoff_ms=20, retry_backoff_max_ms=100, reconnect_backoff_ms=20)
        self._topic = topic
        self._partitions = partitions
        self._records = records
        self._futures: list[BatchFuture] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="steady-producer")
        self.sent = 0  # to each partition

    def _produce(self) -> None:
        while not self._is_over.wait(_PAUSE_S):
            for number in range(self.sent, self.sent + self._records):
                value = b"%d" % number
                for partition in range(self._partitions):
                    self._futures.append(self._producer.send(self._topic, value, partition=partition))
            self.sent += self._records

    def finish(self) -> int:
        """All is acknowledged; how many records each partition has."""
        self._is_over.set()
        self._thread.join(60)
        self._producer.flush(60)
        for future in self._futures:
            future.result(0)
        return self.sent

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(60)
        self._producer.close(timeout=0)
