"""Single records to every partition of a topic at a pace: `python -m benchmarks.partition_load`, a process of its own.

The same loop for either client. Each record carries its number, which names its partition and, in what this writes at
the end, when it was sent and when it was acknowledged. Guards one promise: a record is sent when it is due, however
many before it wait for an answer; so a partition without service shows as records that took long, and none is left out.

It runs until its standard input ends. SIGUSR1 asks for a round at once: a record to each partition, out of turn. While
it runs, the file `--progress` holds for each partition when the newest of its acknowledged records was sent, in seconds
of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

VALUE_BYTES = 100
NUMBER_BYTES = 8
_TICK_S = 0.005
_FLUSH_TIMEOUT_S = 150.0
_NEVER = float("nan")
_PADDING = bytes(VALUE_BYTES - NUMBER_BYTES)

# Sends a value to a partition; the callback gets the error, or None.
Send = Callable[[int, bytes, Callable[[BaseException | None], None]], None]


class Ledger:
    """What became of each record, by its number. Callbacks of the client write into it from a thread of its own."""

    def __init__(self, progress: np.ndarray) -> None:
        self._progress = progress
        self.partition: list[int] = []
        self.sent_s: list[float] = []
        self.answered_s: list[float] = []
        self.failures: list[str] = []

    def send(self, partition: int, send: Send) -> None:
        number, now = len(self.sent_s), time.monotonic()
        self.partition.append(partition)
        self.sent_s.append(now)
        self.answered_s.append(_NEVER)

        def take(error: BaseException | None) -> None:
            if error is not None:
                self.failures.append(f"partition {partition}: {error!r}")
                return
            self.answered_s[number] = time.monotonic()
            if self._progress[partition] < now:
                self._progress[partition] = now

        send(partition, number.to_bytes(NUMBER_BYTES, "little") + _PADDING, take)

    def save(self, path: Path) -> None:
        np.savez(
            path,
            partition=np.array(self.partition, np.int32),
            sent_s=np.array(self.sent_s),
            answered_s=np.array(self.answered_s),
        )


@contextmanager
def open_bus(addresses: list[str], topic: str) -> Iterator[tuple[Send, Callable[[], None]]]:
    from bus import Producer

    with Producer(addresses) as producer:

        def send(partition: int, value: bytes, take: Callable[[BaseException | None], None]) -> None:
            future = producer.send(topic, value, partition=partition)
            future.add_done_callback(lambda done: take(done.exception(0)))

        yield send, lambda: producer.flush(_FLUSH_TIMEOUT_S)


@contextmanager
def open_confluent(addresses: list[str], topic: str) -> Iterator[tuple[Send, Callable[[], None]]]:
    from confluent_kafka import KafkaException, Producer

    options = {"bootstrap.servers": ",".join(addresses), "acks": "all", "enable.idempotence": True, "linger.ms": 5}
    producer = Producer(options)
    is_done = threading.Event()

    def serve() -> None:
        while not is_done.is_set():
            producer.poll(0.05)

    def send(partition: int, value: bytes, take: Callable[[BaseException | None], None]) -> None:
        def report(error: object, _message: object) -> None:
            take(None if error is None else KafkaException(error))

        producer.produce(topic, value, partition=partition, on_delivery=report)

    def flush() -> None:
        if left := producer.flush(_FLUSH_TIMEOUT_S):
            raise TimeoutError(f"{left} records were not acknowledged within {_FLUSH_TIMEOUT_S} s")

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield send, flush
    finally:
        is_done.set()
        server.join()


OPEN = {"bus": open_bus, "confluent": open_confluent}


def send_until(is_over: threading.Event, ledger: Ledger, send: Send, partitions: int, rate: float) -> None:
    """In turns, `rate` records a second over all partitions; a round out of turn for each SIGUSR1."""
    rounds = 0

    def ask(*_: object) -> None:
        nonlocal rounds
        rounds += 1

    signal.signal(signal.SIGUSR1, ask)
    started, due, sent, done = time.monotonic(), 0, 0, 0
    while not is_over.is_set():
        if done < rounds:
            done += 1
            for partition in range(partitions):
                ledger.send(partition, send)
        due = int((time.monotonic() - started) * rate)
        for turn in range(sent, due):
            ledger.send(turn % partitions, send)
        sent = due
        time.sleep(_TICK_S)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partition_load", description="A record to each partition in turns."
    )
    parser.add_argument("--peer", choices=list(OPEN), required=True)
    parser.add_argument("--address", required=True, help="of each broker, with commas")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="records a second, of all partitions together")
    parser.add_argument("--progress", type=Path, required=True, help="a file of a float64 for each partition")
    parser.add_argument("--ledger", type=Path, required=True, help="written at the end")
    arguments = parser.parse_args()
    progress = np.memmap(arguments.progress, np.float64, "r+", shape=(arguments.partitions,))
    ledger = Ledger(progress)
    is_over = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=watch, daemon=True).start()
    with OPEN[arguments.peer](arguments.address.split(","), arguments.topic) as (send, flush):
        send_until(is_over, ledger, send, arguments.partitions, arguments.rate)
        flush()
    ledger.save(arguments.ledger)
    sys.stdout.write(json.dumps({"failures": len(ledger.failures), "first_failures": ledger.failures[:3]}) + "\n")


if __name__ == "__main__":
    main()
