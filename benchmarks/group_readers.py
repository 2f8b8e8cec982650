"""A consumer group that reads what `partition_load` sends: `python -m benchmarks.group_readers`, a process of its own.

Reads until a line on standard input says how many records there are and it has as many different ones, or until none
came for a while. Writes each record that was delivered: its partition, its offset and its number, and when it came, in
seconds of the monotonic clock. What that means is for others to judge.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.partition_load import NUMBER_BYTES, VALUE_BYTES

_GROUP = "readers"
_QUIET_S_MAX = 60.0  # no record in all this time: what is missing does not come
_LINGER_S = 2.0  # after the last record was there: would one come twice?
_POLL_MS = 200
_POLL_RECORDS = 500

Delivered = tuple[np.ndarray, np.ndarray, np.ndarray]  # partitions, offsets, numbers


class Readings:
    """All that the members of the group were given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._numbers: set[int] = set()
        self.last_s = time.monotonic()
        self.is_over = threading.Event()

    def add(self, delivered: Delivered) -> None:
        now = time.monotonic()
        with self._lock:
            self._parts.append((*delivered, np.full(len(delivered[0]), now)))
            self._numbers.update(delivered[2].tolist())
            self.last_s = now

    def wait_for(self, records: int) -> None:
        while len(self._numbers) < records and time.monotonic() - self.last_s < _QUIET_S_MAX:
            time.sleep(0.05)
        time.sleep(_LINGER_S)

    def save(self, path: Path) -> None:
        with self._lock:
            columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)] if self._parts else []
        partition, offset, number, read_s = columns or [np.empty(0)] * 4
        np.savez(path, partition=partition, offset=offset, number=number, read_s=read_s)


def read_bus(addresses: list[str], topic: str, readings: Readings) -> None:
    from bus import Consumer

    with Consumer(addresses, group_id=_GROUP, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while not readings.is_over.is_set():
            table = consumer.poll_arrow(timeout_ms=_POLL_MS)
            if table.num_rows:
                partitions = table.column("partition").to_numpy().astype(np.int32)
                offsets = table.column("offset").to_numpy().astype(np.int64)
                readings.add((partitions, offsets, _numbers(table.column("value"))))


def _numbers(values: pa.ChunkedArray) -> np.ndarray:
    array = values.combine_chunks().cast(pa.binary())
    first = np.frombuffer(array.buffers()[1], np.int32)[array.offset]
    data = np.frombuffer(array.buffers()[2], np.uint8, len(array) * VALUE_BYTES, first)
    numbers = data.reshape(-1, VALUE_BYTES)[:, :NUMBER_BYTES].copy().view("<u8").ravel()
    return np.asarray(numbers, np.int64)


def read_confluent(addresses: list[str], topic: str, readings: Readings) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": ",".join(addresses), "group.id": _GROUP, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        while not readings.is_over.is_set():
            messages = [one for one in consumer.consume(_POLL_RECORDS, _POLL_MS / 1_000) if one.error() is None]
            if messages:
                numbers = [int.from_bytes(one.value()[:NUMBER_BYTES], "little") for one in messages]
                readings.add(
                    (
                        np.array([one.partition() for one in messages], np.int32),
                        np.array([one.offset() for one in messages], np.int64),
                        np.array(numbers, np.int64),
                    )
                )
    finally:
        consumer.close()


_READ = {"bus": read_bus, "confluent": read_confluent}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_readers", description="A group of consumers.")
    parser.add_argument("--peer", choices=list(_READ), required=True)
    parser.add_argument("--address", required=True, help="of each broker, with commas")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--readings", type=Path, required=True, help="written at the end")
    arguments = parser.parse_args()
    readings = Readings()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            _READ[arguments.peer](arguments.address.split(","), arguments.topic, readings)
        except BaseException as error:
            failures.append(error)
            raise

    members = [threading.Thread(target=read, daemon=True) for _ in range(arguments.members)]
    for member in members:
        member.start()
    if line := sys.stdin.readline().strip():
        readings.wait_for(int(line))
    readings.is_over.set()
    for member in members:
        member.join()
    readings.save(arguments.readings)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
