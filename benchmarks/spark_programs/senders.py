"""One record at a time to either side, as soon as it can go: acks=all, no lingering, one in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.spark_programs.session import Side

Send = Callable[[bytes], None]
_TIMEOUT_S = 60


@contextmanager
def sender(side: Side, topic: str) -> Iterator[Send]:
    """Returns when the record is acknowledged."""
    address = side.where["kafka.bootstrap.servers"]
    with _kafka_sender(address, topic) if side.format == "kafka" else _bus_sender(address, topic) as send:
        yield send


@contextmanager
def _bus_sender(address: str, topic: str) -> Iterator[Send]:
    from bus import Producer

    with Producer(address, linger_ms=0) as producer:
        yield lambda value: _ignore(producer.send(topic, value).result(_TIMEOUT_S))


@contextmanager
def _kafka_sender(address: str, topic: str) -> Iterator[Send]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})

    def send(value: bytes) -> None:
        producer.produce(topic, value)
        left = producer.flush(_TIMEOUT_S)
        if left:
            raise TimeoutError(f"expected Kafka to acknowledge a record within {_TIMEOUT_S} s")

    yield send


def _ignore(_: object) -> None:
    pass
