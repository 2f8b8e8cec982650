"""What an authorizer with many access control lists costs a client that is allowed what it does: beside a broker
without one, in turns of a fraction of a second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks import loads
from benchmarks.acl_mix import CALLER, acls_of_many, authorizing_broker
from benchmarks.bench import Bench
from benchmarks.broker_process import BrokerProcess
from benchmarks.figure import Figure
from bus import Producer

_PARTITIONS = 4
_TOPICS = "bench-"  # how those of `Bench.new_topic` begin
_BATCHES_OF_A_TURN = 20  # of 10,000 records
_SENDS_OF_A_TURN = 50_000
_FETCHED_OF_A_TURN = 400_000
_SLOWER_MAX = 1.03
_WITHOUT = "in place of Kafka: a broker without an authorizer, in turns"

# One turn: so many records, and the seconds that they took.
Turn = Callable[[], tuple[int, float]]
Turns = Callable[[BrokerProcess, str], contextlib.AbstractContextManager[Turn]]
Brokers = tuple[BrokerProcess, BrokerProcess]  # with the authorizer, and without


# ------------------------------------------------------------------ throughput


@contextlib.contextmanager
def _batches(broker: BrokerProcess, topic: str) -> Iterator[Turn]:
    batch = loads.random_batch(100)
    with Producer(broker.address) as producer:

        def turn() -> tuple[int, float]:
            started = time.perf_counter()
            for _ in range(_BATCHES_OF_A_TURN):
                last = producer.send_batch(topic, batch)
            producer.flush(60)
            last.result(0)
            return _BATCHES_OF_A_TURN * batch.num_rows, time.perf_counter() - started

        yield turn


@contextlib.contextmanager
def _sends(broker: BrokerProcess, topic: str) -> Iterator[Turn]:
    value = bytes(100)
    with Producer(broker.address) as producer:

        def turn() -> tuple[int, float]:
            started = time.perf_counter()
            for _ in range(_SENDS_OF_A_TURN):
                last = producer.send(topic, value)
            producer.flush(60)
            last.result(0)
            return _SENDS_OF_A_TURN, time.perf_counter() - started

        yield turn


@contextlib.contextmanager
def _fetches(broker: BrokerProcess, topic: str) -> Iterator[Turn]:
    """From the beginning of what is stored."""
    records = min(_FETCHED_OF_A_TURN, loads.count_records(broker.address, topic))

    def turn() -> tuple[int, float]:
        return records, records / loads.fetch_arrow(broker.address, topic, partitions=_PARTITIONS, records=records)

    yield turn


@dataclass(slots=True)
class _Load:
    """By the broker with the authorizer and by the other one: a row of both a round."""

    name: str
    title: str
    turns: Turns
    rates: list[tuple[float, ...]] = field(default_factory=list)  # records a second
    cpus: list[tuple[float, ...]] = field(default_factory=list)  # seconds of the broker for a million records

    def measure(self, brokers: Brokers, topic: str, count: int) -> None:
        """The broker that waits does nothing, so all the processor time that it has used is for its own turns."""
        before = [broker.cpu_seconds() for broker in brokers]
        records, seconds = [0, 0], [0.0, 0.0]
        with contextlib.ExitStack() as opened:
            turns = [opened.enter_context(self.turns(broker, topic)) for broker in brokers]
            for turn in turns:
                turn()  # not counted: clients have found the leaders after it
            for number in range(count):
                # What comes first comes last in the next turn: a drift of the machine hits both.
                for side in (0, 1) if number % 2 == 0 else (1, 0):
                    done, taken = turns[side]()
                    records[side] += done
                    seconds[side] += taken
        self.rates.append(tuple(done / taken for done, taken in zip(records, seconds, strict=True)))
        used = [broker.cpu_seconds() - then for broker, then in zip(brokers, before, strict=True)]
        all_records = [done * (count + 1) / count for done in records]
        self.cpus.append(tuple(cpu / done * 1e6 for cpu, done in zip(used, all_records, strict=True)))

    def figures(self) -> list[Figure]:
        return [
            _figure(self.name, self.title, "records/s", self.rates, is_more_better=True),
            _figure(f"{self.name}-cpu", "... processor of the broker", "s of a core for a million records", self.cpus),
        ]

    def text(self) -> str:
        (on, off), (on_cpu, off_cpu) = self.rates[-1], self.cpus[-1]
        return f"{self.name} {on:,.0f} records/s, {on_cpu:.3f} s; without {off:,.0f}, {off_cpu:.3f} s"


# ------------------------------------------------------------------ latency


@dataclass(slots=True)
class _Latencies:
    """Milliseconds, as the rows of `_Load`."""

    p50: list[tuple[float, ...]] = field(default_factory=list)
    p99: list[tuple[float, ...]] = field(default_factory=list)
    cpu: list[tuple[float, ...]] = field(default_factory=list)  # of the broker, for each record

    def measure(self, brokers: Brokers, topic: str, records: int) -> None:
        before = [broker.cpu_seconds() for broker in brokers]
        seconds = loads.produce_in_turns([(broker.address, {}) for broker in brokers], topic, records=records)
        for percentile, rows in ((50, self.p50), (99, self.p99)):
            rows.append(tuple(float(value) * 1_000 for value in np.percentile(seconds, percentile, axis=1)))
        used = (broker.cpu_seconds() - then for broker, then in zip(brokers, before, strict=True))
        self.cpu.append(tuple(cpu / records * 1_000 for cpu in used))

    def figures(self, title: str) -> list[Figure]:
        return [
            _figure("latency-p50", f"{title}, p50", "ms", self.p50),
            _figure("latency-p99", "... p99", "ms", self.p99),
            _figure("latency-cpu", "... processor of the broker for each", "ms", self.cpu),
        ]

    def text(self) -> str:
        (p50, calm_p50), (p99, calm_p99) = self.p50[-1], self.p99[-1]
        return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms; without {calm_p50:.2f} ms, {calm_p99:.2f} ms"


def _figure(
    name: str, title: str, unit: str, rows: Sequence[tuple[float, ...]], *, is_more_better: bool = False
) -> Figure:
    on, off = zip(*rows, strict=True)
    target = 1 / _SLOWER_MAX if is_more_better else _SLOWER_MAX
    return Figure(f"acls-{name}", title, unit, on, None, is_more_better, off, _WITHOUT, target)


# ------------------------------------------------------------------ the theme


def measure_acls(bench: Bench) -> list[Figure]:
    count = bench.sizes.acls
    batches, sends, fetches = measured = (
        _Load("batch", f"send_batch of 100-byte values beside {count:,} ACLs", _batches),
        _Load("send", f"send() of 100-byte values beside {count:,} ACLs", _sends),
        _Load("fetch", f"fetch of stored records as Arrow beside {count:,} ACLs", _fetches),
    )
    latencies = _Latencies()
    with authorizing_broker(bench, acls_of_many(count, CALLER, _TOPICS)) as asking, bench.broker() as open_to_all:
        brokers = (asking, open_to_all)
        for number in range(bench.sizes.acl_rounds):
            stored, sent, alone = (
                _new_topic(bench, brokers, partitions) for partitions in (_PARTITIONS, _PARTITIONS, 1)
            )
            for load, topic in ((batches, stored), (sends, sent), (fetches, stored)):
                load.measure(brokers, topic, bench.sizes.acl_turns)
            latencies.measure(brokers, alone, bench.sizes.acl_latency_records)
            texts = "; ".join(each.text() for each in (*measured, latencies))
            bench.report(f"beside {count:,} ACLs, round {number + 1}: {texts}")
    figures = [figure for load in measured for figure in load.figures()]
    return [*figures, *latencies.figures(f"one produce in flight beside {count:,} ACLs")]


def _new_topic(bench: Bench, brokers: Brokers, partitions: int) -> str:
    topic = bench.new_topic()
    for broker in brokers:
        loads.create_topic(broker.address, topic, partitions)
    return topic
