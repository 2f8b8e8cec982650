"""What an authorizer with many access control lists costs a client that is allowed what it does: beside a broker
without one, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks import loads
from benchmarks.acl_mix import CALLER, acls_of_many, authorizing_broker
from benchmarks.bench import Bench
from benchmarks.broker_process import BrokerProcess
from benchmarks.figure import Figure
from benchmarks.send_process import run_sends

_PARTITIONS = 4
_TOPICS = "bench-"  # how those of `Bench.new_topic` begin
_SLOWER_MAX = 1.03
_WITHOUT = "in place of Kafka: a broker without an authorizer, in turns"


@dataclass(frozen=True, slots=True)
class _Run:
    records_per_second: float
    cpu_per_million: float  # seconds of the broker

    @staticmethod
    def of(broker: BrokerProcess, work: Callable[[], tuple[float, int]]) -> _Run:
        """`work` returns the records a second, and how many there were in all."""
        before = broker.cpu_seconds()
        rate, records = work()
        return _Run(rate, (broker.cpu_seconds() - before) / records * 1e6)


@dataclass(slots=True)
class _Load:
    """`on`: with the authorizer; a run of each a round."""

    name: str
    title: str
    on: list[_Run] = field(default_factory=list)
    off: list[_Run] = field(default_factory=list)

    def figures(self) -> list[Figure]:
        rates, cpus = (
            [[pick(run) for run in runs] for runs in (self.on, self.off)]
            for pick in (lambda run: run.records_per_second, lambda run: run.cpu_per_million)
        )
        return [
            Figure(
                *(f"acls-{self.name}", self.title, "records/s", rates[0]),
                is_more_better=True,
                peer_runs=rates[1],
                note=_WITHOUT,
                ratio_target=1 / _SLOWER_MAX,
            ),
            Figure(
                *(f"acls-{self.name}-cpu", "... processor of the broker", "s of a core for a million records", cpus[0]),
                peer_runs=cpus[1],
                note=_WITHOUT,
                ratio_target=_SLOWER_MAX,
            ),
        ]

    def text(self) -> str:
        on, off = self.on[-1], self.off[-1]
        return (
            f"{self.title}: {on.records_per_second:,.0f} records/s, {on.cpu_per_million:.3f} s; "
            f"without {off.records_per_second:,.0f}, {off.cpu_per_million:.3f} s"
        )


@dataclass(slots=True)
class _Latencies:
    """Milliseconds, with the authorizer and without: a row of each a round."""

    p50: list[tuple[float, ...]] = field(default_factory=list)
    p99: list[tuple[float, ...]] = field(default_factory=list)
    cpu: list[tuple[float, ...]] = field(default_factory=list)  # of the broker, for each record

    def figures(self, title: str) -> list[Figure]:
        titles = (f"{title}, p50", "... p99", "... processor of the broker for each")
        return [
            Figure(
                *(f"acls-latency-{name}", words, "ms", [pair[0] for pair in pairs]),
                peer_runs=[pair[1] for pair in pairs],
                note=_WITHOUT,
                ratio_target=_SLOWER_MAX,
            )
            for name, words, pairs in zip(("p50", "p99", "cpu"), titles, (self.p50, self.p99, self.cpu), strict=True)
        ]


def measure_acls(bench: Bench) -> list[Figure]:
    """The two brokers live side by side, and the one that waits does nothing."""
    count = bench.sizes.acls
    batches, sends, fetches = (
        _Load(name, f"{words} beside {count:,} ACLs")
        for name, words in (
            ("batch", "send_batch of 100-byte values"),
            ("send", "send() of 100-byte values"),
            ("fetch", "fetch of stored records as Arrow"),
        )
    )
    latencies = _Latencies()
    with authorizing_broker(bench, acls_of_many(count, CALLER, _TOPICS)) as asking, bench.broker() as open_to_all:
        brokers = (asking, open_to_all)
        for number in range(bench.sizes.acl_rounds):
            _measure_loads(bench, brokers, number, batches, sends, fetches)
            _measure_latencies(bench, brokers, latencies)
            texts = "; ".join(load.text() for load in (batches, sends, fetches))
            bench.report(f"round {number + 1}: {texts}; p50 {_text(latencies.p50)}, p99 {_text(latencies.p99)}")
    figures = [figure for load in (batches, sends, fetches) for figure in load.figures()]
    return [*figures, *latencies.figures(f"one produce in flight beside {count:,} ACLs")]


def _text(pairs: list[tuple[float, ...]]) -> str:
    on, off = pairs[-1]
    return f"{on:.2f} ms, without {off:.2f}"


def _measure_loads(
    bench: Bench,
    brokers: tuple[BrokerProcess, BrokerProcess],
    number: int,
    batches: _Load,
    sends: _Load,
    fetches: _Load,
) -> None:
    """The broker that comes first in a round comes last in the next."""
    topics = [bench.new_topic() for _ in range(2)]
    for load, measure in ((batches, _batches), (sends, _sends), (fetches, _fetch)):
        turns = [(brokers[0], load.on), (brokers[1], load.off)]
        for broker, runs in turns if number % 2 == 0 else reversed(turns):
            runs.append(measure(bench, broker, topics))


def _batches(bench: Bench, broker: BrokerProcess, topics: list[str]) -> _Run:
    for topic in topics:
        loads.create_topic(broker.address, topic, _PARTITIONS)
    topic = topics[0]

    def work() -> tuple[float, int]:
        rate = loads.produce_batches(broker.address, topic, value_bytes=100, seconds=bench.sizes.acl_seconds)
        return rate, loads.count_records(broker.address, topic)

    return _Run.of(broker, work)


def _sends(bench: Bench, broker: BrokerProcess, topics: list[str]) -> _Run:
    def work() -> tuple[float, int]:
        run = run_sends("bus", broker.address, topics[1], seconds=bench.sizes.acl_seconds)
        return run.records_per_second, run.warm_up_records + run.records

    return _Run.of(broker, work)


def _fetch(bench: Bench, broker: BrokerProcess, topics: list[str]) -> _Run:
    """What `_batches` has stored."""
    records = loads.count_records(broker.address, topics[0])

    def work() -> tuple[float, int]:
        return loads.fetch_arrow(broker.address, topics[0], partitions=_PARTITIONS, records=records), records

    return _Run.of(broker, work)


def _measure_latencies(bench: Bench, brokers: tuple[BrokerProcess, BrokerProcess], latencies: _Latencies) -> None:
    topic, records = bench.new_topic(), bench.sizes.acl_latency_records
    for broker in brokers:
        loads.create_topic(broker.address, topic, 1)
    before = [broker.cpu_seconds() for broker in brokers]
    seconds = loads.produce_in_turns([(broker.address, {}) for broker in brokers], topic, records=records)
    for percentile, pairs in ((50, latencies.p50), (99, latencies.p99)):
        pairs.append(tuple(np.percentile(seconds, percentile, axis=1) * 1_000))
    used = (broker.cpu_seconds() - then for broker, then in zip(brokers, before, strict=True))
    latencies.cpu.append(tuple(cpu / records * 1_000 for cpu in used))
