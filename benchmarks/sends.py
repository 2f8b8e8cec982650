"""Single records from Python, as a user's loop sends them: `python -m benchmarks.sends --peer bus|confluent ...`.

A process of its own for each run, so that neither client pays for the other's threads, memory or imports. Both send the
same values and keys from the same loop, acks=all and the same linger, with the same placement of keys (murmur2).
Guards one promise: a figure counts only records that are in the log; the ends of the partitions are asked for
afterwards, and any failure ends the program. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

_BURST = 1_000  # records between two looks at the clock
_DISTINCT_VALUES = 10_000
_FLUSH_TIMEOUT_S = 120.0

Records = Sequence[tuple[bytes, bytes | None]]  # value and key


@dataclass(slots=True)
class Outcome:
    """What the reports of single records said; `reported` stays 0 where nobody asked for them."""

    reported: int = 0
    failure: str = ""


def records_of(value_bytes: int, keys: int) -> Records:
    """Random values; with `keys`, each of so many keys in turn."""
    data = np.random.default_rng(0).bytes(value_bytes * _DISTINCT_VALUES)
    values = [data[start : start + value_bytes] for start in range(0, len(data), value_bytes)]
    return [(value, b"key-%06d" % (number % keys) if keys else None) for number, value in enumerate(values)]


def send_for(seconds: float, records: Records, send_all: Callable[[Records], None]) -> int:
    """Sends the records again and again, burst by burst, until `seconds` are over; how many were sent."""
    bursts = [records[start : start + _BURST] for start in range(0, len(records), _BURST)]
    sent = 0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        burst = bursts[sent // _BURST % len(bursts)]
        send_all(burst)
        sent += len(burst)
    return sent


# ---------------------------------------------------------------- the two clients


@contextmanager
def open_bus(arguments: argparse.Namespace, outcome: Outcome) -> Iterator[tuple[Callable[[Records], None], Any]]:
    """The SDK's producer: a future a record, dropped, or with a callback on each."""
    from bus import Producer

    topic = arguments.topic
    options: dict[str, Any] = {"linger_ms": arguments.linger_ms, "enable_idempotence": arguments.idempotence}
    if arguments.batch_size is not None:
        options["batch_size"] = arguments.batch_size
    if arguments.authority is not None:
        options |= {"security_protocol": "SSL", "ssl_ca_location": arguments.authority}

    def report(future: Any) -> None:
        outcome.reported += 1
        if (error := future.exception()) is not None:
            outcome.failure = str(error)

    with Producer(arguments.address, acks="all", **options) as producer:

        def send_all(records: Records) -> None:
            for value, key in records:
                producer.send(topic, value, key)

        def send_all_reported(records: Records) -> None:
            for value, key in records:
                producer.send(topic, value, key).add_done_callback(report)

        yield send_all_reported if arguments.callbacks else send_all, lambda: producer.flush(_FLUSH_TIMEOUT_S)


@contextmanager
def open_confluent(arguments: argparse.Namespace, outcome: Outcome) -> Iterator[tuple[Callable[[Records], None], Any]]:
    """librdkafka by confluent-kafka. It is polled once a burst, not once a record, which is to its advantage."""
    from confluent_kafka import Producer

    topic = arguments.topic
    options: dict[str, Any] = {
        "bootstrap.servers": arguments.address,
        "enable.idempotence": arguments.idempotence,
        "acks": "all",
        "linger.ms": arguments.linger_ms,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 1_000_000,
    }
    if arguments.batch_size is not None:
        options["batch.size"] = arguments.batch_size
    if arguments.authority is not None:
        options |= {"security.protocol": "SSL", "ssl.ca.location": arguments.authority}
    producer = Producer(options)

    def report(error: Any, _message: Any) -> None:
        outcome.reported += 1
        if error is not None:
            outcome.failure = str(error)

    def send_all_reported(records: Records) -> None:
        for value, key in records:
            try:
                producer.produce(topic, value, key, on_delivery=report)
            except BufferError:
                send_with_room(value, key)
        producer.poll(0)

    def send_all(records: Records) -> None:
        for value, key in records:
            try:
                producer.produce(topic, value, key)
            except BufferError:
                send_with_room(value, key)
        producer.poll(0)

    def send_with_room(value: bytes, key: bytes | None) -> None:
        while True:
            producer.poll(0.1)
            try:
                producer.produce(topic, value, key, on_delivery=report if arguments.callbacks else None)
                return
            except BufferError:
                continue

    def flush() -> None:
        if left := producer.flush(_FLUSH_TIMEOUT_S):
            outcome.failure = f"{left} records were not acknowledged within {_FLUSH_TIMEOUT_S} s"

    yield send_all_reported if arguments.callbacks else send_all, flush


def count_bus(address: str, topic: str) -> int:
    from benchmarks.loads import count_records

    return count_records(address, topic)


def count_confluent(address: str, topic: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench-count"})
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1] for number in partitions)
    finally:
        consumer.close()


_OPEN = {"bus": open_bus, "confluent": open_confluent}
_COUNT = {"bus": count_bus, "confluent": count_confluent}


# ---------------------------------------------------------------- one run


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Records a second from the first call until all are acknowledged, and processor seconds of this process."""
    records = records_of(arguments.value_bytes, arguments.keys)
    counted_at = arguments.count_address or arguments.address
    before = _COUNT[arguments.peer](counted_at, arguments.topic)
    outcome = Outcome()
    with _OPEN[arguments.peer](arguments, outcome) as (send_all, flush):
        warmed = send_for(arguments.warm_up_seconds, records, send_all)
        flush()
        cpu, started = _cpu_seconds(), time.perf_counter()
        sent = send_for(arguments.seconds, records, send_all)
        looped = time.perf_counter() - started
        flush()
        elapsed, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
    _check(arguments, outcome, sent + warmed, _COUNT[arguments.peer](counted_at, arguments.topic) - before)
    return {
        "records_per_second": sent / elapsed,
        "loop_seconds": looped,
        "elapsed_seconds": elapsed,
        "records": sent,
        "warm_up_records": warmed,
        "cpu_seconds": cpu,
    }


def _check(arguments: argparse.Namespace, outcome: Outcome, sent: int, found: int) -> None:
    if outcome.failure:
        raise RuntimeError(f"a record failed: {outcome.failure}")
    if arguments.callbacks and outcome.reported != sent:
        raise RuntimeError(f"expected a report for each of {sent} records, found {outcome.reported}")
    # Without idempotence a retry may have stored a record twice.
    if found < sent or (arguments.idempotence and found != sent):
        raise RuntimeError(f"expected {sent} records in {arguments.topic}, found {found}")


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sends", description="Single records, one run.")
    parser.add_argument("--peer", choices=list(_OPEN), required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True, help="exists, and nobody else writes to it")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm-up-seconds", type=float, default=1.0)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--keys", type=int, default=0, help="so many different keys; 0: none")
    parser.add_argument("--callbacks", action="store_true", help="a callback for each record")
    parser.add_argument("--idempotence", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--linger-ms", type=int, default=5)
    parser.add_argument("--batch-size", type=int, help="default: the client's")
    parser.add_argument("--authority", metavar="FILE", help="by TLS, trusting this authority")
    parser.add_argument("--count-address", help="where the records are counted, by plaintext; default: --address")
    sys.stdout.write(json.dumps(measure(parser.parse_args())) + "\n")


if __name__ == "__main__":
    main()
