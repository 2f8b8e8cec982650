"""From the call that sends a record until foreachBatch of a running query has it: one record under way at a time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.spark_programs.senders import Send, sender
from benchmarks.spark_programs.session import Side, parser, print_result, running_session, sides_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WARM_UPS = 20
_PAUSE_S = 0.25  # at most, so that records come at any point of a trigger
_TIMEOUT_S = 60


class Arrivals:
    """When a value was in the hands of foreachBatch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived: dict[bytes, float] = {}

    def keep(self, frame: DataFrame, _batch: int) -> None:
        values = [bytes(row.value) for row in frame.select("value").collect()]
        now = time.perf_counter()
        with self._changed:
            self._arrived.update((value, now) for value in values)
            self._changed.notify_all()

    def wait_for(self, value: bytes) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: value in self._arrived, _TIMEOUT_S):
                raise TimeoutError(f"expected record {value!r} in foreachBatch within {_TIMEOUT_S} s")
            return self._arrived[value]


def main() -> None:
    options = parser()
    options.add_argument("--records", type=int, required=True)
    arguments = options.parse_args()
    with running_session(arguments) as spark:
        # One side after the other: a second query would take its processors.
        print_result(
            {
                side.name: _latencies(spark, side, arguments.topic, arguments.records, arguments.folder)
                for side in sides_of(arguments)
            }
        )


def _latencies(spark: SparkSession, side: Side, topic: str, records: int, folder: str) -> list[float]:
    pause = random.Random(0)
    with _following(spark, side, topic, folder) as arrivals, sender(side, topic) as send:
        for number in range(_WARM_UPS):
            _latency(send, arrivals, b"warm-up-%d" % number)
        seconds = []
        for number in range(records):
            time.sleep(pause.uniform(0, _PAUSE_S))
            seconds.append(_latency(send, arrivals, b"%d" % number))
        return seconds


@contextmanager
def _following(spark: SparkSession, side: Side, topic: str, folder: str) -> Iterator[Arrivals]:
    """A query that begins the next batch as soon as there is something. The topic is empty: the end is the start."""
    arrivals = Arrivals()
    writer = side.stream(spark, topic, "earliest").writeStream.foreachBatch(arrivals.keep)
    query = writer.option("checkpointLocation", f"{folder}/{side.name}").trigger(processingTime="0 seconds").start()
    try:
        yield arrivals
    finally:
        query.stop()


def _latency(send: Send, arrivals: Arrivals, value: bytes) -> float:
    started = time.perf_counter()
    send(value)
    return arrivals.wait_for(value) - started


if __name__ == "__main__":
    main()
