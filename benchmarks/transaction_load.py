"""Transactions of either side's Python client: `python -m benchmarks.transaction_load --peer bus|confluent ...`.

Both clients run the same loops with their defaults: begin, send, commit; or consume, produce, send offsets, commit. The
records of a transaction go to its partitions in turn; with an interval it is sent to for so long, or until it has half
a million records, and then committed. Guards one promise: a figure counts only transactions whose commit was answered
without an error. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

_VALUE = bytes(range(100))
_TIMEOUT_S = 60.0
_RECORDS_MAX = 500_000  # of a transaction: a partition takes 128 MiB of one (transaction.staged.max.bytes)

Send = Callable[[int], None]  # so many records, for the time of which this is the number


@dataclass(slots=True)
class _Client:
    """One producer: what a transaction is made of."""

    begin: Callable[[], Any]
    send: Send
    commit: Callable[[], Any]
    abort: Callable[[], Any]


@dataclass(slots=True)
class _Samples:
    commit_s: list[float] = field(default_factory=list)  # of the call of commit alone
    whole_s: list[float] = field(default_factory=list)  # from begin until commit has returned
    sends: int = 0


# ---------------------------------------------------------------- the two clients


@contextlib.contextmanager
def _bus_client(arguments: argparse.Namespace, name: str) -> Iterator[_Client]:
    from bus import Producer

    with Producer(arguments.address, transactional_id=name) as producer:
        producer.init_transactions()
        batch = pa.record_batch({"value": pa.array([_VALUE] * arguments.records, pa.binary())})

        def send(number: int) -> None:
            if arguments.records >= 1_000:
                producer.send_batch(arguments.topic, batch, partition=number % arguments.partitions)
                return
            for record in range(arguments.records):
                producer.send(arguments.topic, _VALUE, partition=record % arguments.partitions)

        yield _Client(producer.begin_transaction, send, producer.commit_transaction, producer.abort_transaction)


@contextlib.contextmanager
def _confluent_client(arguments: argparse.Namespace, name: str) -> Iterator[_Client]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": arguments.address,
            "transactional.id": name,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    producer.init_transactions(_TIMEOUT_S)

    def send(number: int) -> None:
        is_large = arguments.records >= 1_000
        for record in range(arguments.records):
            partition = number if is_large else record
            producer.produce(arguments.topic, _VALUE, partition=partition % arguments.partitions)

    yield _Client(
        producer.begin_transaction,
        send,
        lambda: producer.commit_transaction(_TIMEOUT_S),
        lambda: producer.abort_transaction(_TIMEOUT_S),
    )


_CLIENTS = {"bus": _bus_client, "confluent": _confluent_client}


# ---------------------------------------------------------------- the loops


def _run_one(client: _Client, ends_s: float, samples: _Samples, interval_s: float, sends_max: int) -> None:
    while time.perf_counter() < ends_s:
        began = time.perf_counter()
        client.begin()
        for _ in range(sends_max):
            client.send(samples.sends)
            samples.sends += 1
            sent = time.perf_counter()
            if sent - began >= interval_s:
                break
        client.commit()
        done = time.perf_counter()
        samples.commit_s.append(done - sent)
        samples.whole_s.append(done - began)


def measure_commits(arguments: argparse.Namespace) -> dict[str, float]:
    """Of so many producers at once, each with an id of its own."""
    samples = [_Samples() for _ in range(arguments.producers)]
    barrier = threading.Barrier(arguments.producers + 1)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with _CLIENTS[arguments.peer](arguments, f"{arguments.topic}-{number}") as client:
                interval_s, sends_max = arguments.interval_ms / 1_000, max(1, _RECORDS_MAX // arguments.records)
                _run_one(client, time.perf_counter() + arguments.warm_up_seconds, _Samples(), interval_s, sends_max)
                barrier.wait(_TIMEOUT_S)
                _run_one(client, time.perf_counter() + arguments.seconds, samples[number], interval_s, sends_max)
        except BaseException as failure:
            failures.append(failure)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(arguments.producers)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    elapsed = time.perf_counter() - began
    commit_s = np.concatenate([one.commit_s for one in samples])
    whole_s = np.concatenate([one.whole_s for one in samples])
    return {
        "transactions": len(whole_s),
        "records": sum(one.sends for one in samples) * arguments.records,
        "seconds": elapsed,
        "commit_p50_ms": float(np.percentile(commit_s, 50)) * 1_000,
        "commit_p99_ms": float(np.percentile(commit_s, 99)) * 1_000,
        "p50_ms": float(np.percentile(whole_s, 50)) * 1_000,
        "p99_ms": float(np.percentile(whole_s, 99)) * 1_000,
    }


def measure_pipeline(arguments: argparse.Namespace) -> dict[str, float]:
    """Consume from `topic`, produce to `topic`-out, offsets in the transaction, `records` in each."""
    run = _bus_pipeline if arguments.peer == "bus" else _confluent_pipeline
    return run(arguments)


def _bus_pipeline(arguments: argparse.Namespace) -> dict[str, float]:
    from bus import Consumer, Producer, TopicPartition

    out = f"{arguments.topic}-out"
    with (
        Producer(arguments.address, transactional_id=f"{arguments.topic}-pipeline") as producer,
        Consumer(
            arguments.address,
            group_id=f"{arguments.topic}-group",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=arguments.records,
        ) as consumer,
    ):
        producer.init_transactions()
        consumer.subscribe([arguments.topic])

        def step() -> int:
            records = consumer.poll(timeout_ms=10_000)
            if records:
                producer.begin_transaction()
                for record in records:
                    producer.send(out, record.value, partition=record.partition)
                offsets = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                producer.commit_transaction()
            return len(records)

        return _time_pipeline(step, arguments.total)


def _confluent_pipeline(arguments: argparse.Namespace) -> dict[str, float]:
    from confluent_kafka import Consumer, Producer

    out = f"{arguments.topic}-out"
    producer = Producer({"bootstrap.servers": arguments.address, "transactional.id": f"{arguments.topic}-pipeline"})
    producer.init_transactions(_TIMEOUT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.address,
            "group.id": f"{arguments.topic}-group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([arguments.topic])

    def step() -> int:
        records = consumer.consume(arguments.records, timeout=10)
        if records:
            producer.begin_transaction()
            for record in records:
                producer.produce(out, record.value(), partition=record.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
            )
            producer.commit_transaction(_TIMEOUT_S)
        return len(records)

    try:
        return _time_pipeline(step, arguments.total)
    finally:
        consumer.close()


def _time_pipeline(step: Callable[[], int], total: int) -> dict[str, float]:
    """From the first records on."""
    first = 0
    while not first:
        first = step()
    done, began = 0, time.perf_counter()
    while done < total:
        found = step()
        if not found:
            raise RuntimeError(f"expected {total} records, found {done} and then none for 10 s")
        done += found
    return {"records": done, "seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=["commits", "pipeline"])
    parser.add_argument("--peer", choices=_CLIENTS, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--records", type=int, default=10, help="of a transaction, or sent at a time in an interval")
    parser.add_argument("--interval-ms", type=int, default=0, help="so long is sent before a commit")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up-seconds", type=float, default=1.0)
    parser.add_argument("--total", type=int, default=10_000, help="records of the pipeline")
    arguments = parser.parse_args()
    measure = measure_commits if arguments.loop == "commits" else measure_pipeline
    print(json.dumps(measure(arguments)))


if __name__ == "__main__":
    main()
