"""A consumer beside open transactions, with either side's Python client:
`python -m benchmarks.open_transactions --peer bus|confluent --open 100 ...`.

So many transactions have records in the topic and stay open. A producer without transactions sends beside them at a
steady rate; a consumer of committed records reads from the beginning. How far it lags is measured over all records that
were sent: one that was not read in time counts with its age at the end. Guards one promise: a run in which the consumer
saw a record of an open transaction, or never saw one that was sent, gives no figure. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_TIMEOUT_S = 60.0
_STAMP = struct.Struct("<d")  # when a record was sent
_PADDING = bytes(92)
_OPEN_VALUE = b"open"
_OPEN_RECORDS = 10  # of each transaction
_INTERVAL_S = 0.01
_WARM_UP_S = 1.0
_BEGINNERS = 8  # transactions that are begun at a time


@dataclass(frozen=True, slots=True)
class _Side:
    """`poll` returns the values of what has come, or of nothing within a moment."""

    send: Callable[[bytes], object]
    flush: Callable[[], object]
    poll: Callable[[], Iterable[bytes]]


@dataclass(slots=True)
class _Seen:
    """By when they were sent: each record's lag in seconds."""

    lags: dict[float, float] = field(default_factory=dict)

    def take(self, values: Iterable[bytes]) -> None:
        now = time.perf_counter()
        for value in values:
            if value == _OPEN_VALUE:
                raise RuntimeError("expected no record of an open transaction, found one")
            (sent,) = _STAMP.unpack_from(value)
            self.lags[sent] = now - sent


# ---------------------------------------------------------------- the two clients


@contextlib.contextmanager
def _bus_side(address: str, topic: str) -> Iterator[_Side]:
    from bus import Consumer, Producer, TopicPartition

    with Producer(address) as producer, Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        yield _Side(
            lambda value: producer.send(topic, value, partition=0),
            producer.flush,
            lambda: (record.value or b"" for record in consumer.poll(timeout_ms=20)),
        )


def _bus_transaction(address: str, topic: str, name: str) -> Callable[[], object]:
    from bus import Producer

    producer = Producer(address, transactional_id=name, transaction_timeout_ms=600_000)
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(_OPEN_RECORDS):
        producer.send(topic, _OPEN_VALUE, partition=0)
    producer.flush()

    def end() -> None:
        producer.abort_transaction()
        producer.close()

    return end


@contextlib.contextmanager
def _confluent_side(address: str, topic: str) -> Iterator[_Side]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 2_000_000})
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def poll() -> Iterator[bytes]:
        for message in consumer.consume(500, timeout=0.02):
            if message.error():
                raise RuntimeError(str(message.error()))
            yield message.value()

    try:
        yield _Side(lambda value: producer.produce(topic, value, partition=0), producer.flush, poll)
    finally:
        consumer.close()


def _confluent_transaction(address: str, topic: str, name: str) -> Callable[[], object]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "transaction.timeout.ms": 600_000})
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    for _ in range(_OPEN_RECORDS):
        producer.produce(topic, _OPEN_VALUE, partition=0)
    producer.flush(_TIMEOUT_S)
    return lambda: producer.abort_transaction(_TIMEOUT_S)


_SIDES: dict[str, tuple[Any, Any]] = {
    "bus": (_bus_side, _bus_transaction),
    "confluent": (_confluent_side, _confluent_transaction),
}


# ---------------------------------------------------------------- the run


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    new_side, begin = _SIDES[arguments.peer]
    address, topic = arguments.address, arguments.topic
    names = [f"{topic}-open-{number}" for number in range(arguments.open)]
    with ThreadPoolExecutor(_BEGINNERS) as threads, new_side(address, topic) as side:
        ends = list(threads.map(lambda name: begin(address, topic, name), names))
        sent, seen = _read_beside_sends(side, arguments.rate, _WARM_UP_S + arguments.seconds)
        ended = time.perf_counter()
        read = {at: lag for at, lag in seen.lags.items() if at + lag <= ended}
        list(threads.map(lambda end: end(), ends))
        _read_the_rest(side, sent, seen)
    measured = [at for at in sent if at >= sent[0] + _WARM_UP_S]
    lags_ms = [read.get(at, ended - at) * 1_000 for at in measured]
    return {
        "sent": len(measured),
        "read_per_second": sum(at in read for at in measured) / arguments.seconds,
        "lag_p50_ms": float(np.percentile(lags_ms, 50)),
        "lag_p99_ms": float(np.percentile(lags_ms, 99)),
    }


def _read_beside_sends(side: _Side, rate: int, seconds: float) -> tuple[list[float], _Seen]:
    sent: list[float] = []
    seen, done = _Seen(), threading.Event()
    ends = time.perf_counter() + seconds

    def send() -> None:
        due = time.perf_counter()
        while due < ends:
            for _ in range(max(1, int(rate * _INTERVAL_S))):
                sent.append(time.perf_counter())
                side.send(_STAMP.pack(sent[-1]) + _PADDING)
            due += _INTERVAL_S
            time.sleep(max(0.0, due - time.perf_counter()))
        side.flush()
        done.set()

    sender = threading.Thread(target=send)
    sender.start()
    while time.perf_counter() < ends:
        seen.take(side.poll())
    sender.join()
    return sent, seen


def _read_the_rest(side: _Side, sent: list[float], seen: _Seen) -> None:
    ends = time.perf_counter() + _TIMEOUT_S
    while len(seen.lags) < len(sent):
        seen.take(side.poll())
        if time.perf_counter() > ends:
            raise RuntimeError(f"expected {len(sent)} records, found {len(seen.lags)} and then none")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=_SIDES, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--open", type=int, required=True, help="transactions that stay open meanwhile")
    parser.add_argument("--rate", type=int, default=1_000, help="records a second that are sent beside them")
    parser.add_argument("--seconds", type=float, default=5.0)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
