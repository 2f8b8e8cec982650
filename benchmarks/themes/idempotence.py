"""What idempotence costs: throughput with and without it, in turns, on brokers of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.broker_process import BrokerProcess
from benchmarks.figure import Figure
from benchmarks.send_process import run_sends

_TARGET_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class _Run:
    records_per_second: float
    cpu_per_million: float  # seconds of broker, and of the client where it has a process of its own


@dataclass(slots=True)
class _Pair:
    name: str
    title: str
    measure: Callable[[Bench, BrokerProcess, str, bool], _Run]
    on: list[_Run] = field(default_factory=list)
    off: list[_Run] = field(default_factory=list)

    def figures(self) -> list[Figure]:
        rates_on = [run.records_per_second for run in self.on]
        rates_off = [run.records_per_second for run in self.off]
        slower = [(off / on - 1) * 100 for on, off in zip(rates_on, rates_off, strict=True)]
        dearer = [
            (on.cpu_per_million / off.cpu_per_million - 1) * 100 for on, off in zip(self.on, self.off, strict=True)
        ]
        name, title, unit = f"idempotence-{self.name}", self.title, "records/s"
        return [
            Figure(f"{name}-on", f"{title}, idempotent", unit, rates_on, is_more_better=True),
            Figure(f"{name}-off", f"{title}, not idempotent", unit, rates_off, is_more_better=True),
            Figure(name, "... what idempotence costs, in time", "%", slower, _TARGET_PERCENT, note="runs in turns"),
            Figure(f"{name}-cpu", "... in processor time", "%", dearer, note="of broker and client together"),
        ]


def measure_idempotence(bench: Bench) -> list[Figure]:
    pairs = [
        _Pair("send", "send() of 100-byte values", _measure_send),
        _Pair("batch", "send_batch of 10,000", _measure_batch),
    ]
    for number in range(bench.sizes.idempotence_rounds):
        # Whoever comes first in a round comes last in the next: a drift of the machine hits both.
        turns = (True, False) if number % 2 == 0 else (False, True)
        for pair in pairs:
            for is_idempotent in turns:
                (pair.on if is_idempotent else pair.off).append(_measure(bench, pair, is_idempotent))
            on, off = pair.on[-1].records_per_second, pair.off[-1].records_per_second
            bench.report(f"{pair.title}, round {number + 1}: idempotent {on:,.0f} records/s, not {off:,.0f}")
    return [figure for pair in pairs for figure in pair.figures()]


def _measure(bench: Bench, pair: _Pair, is_idempotent: bool) -> _Run:
    with bench.broker() as broker:
        topic = bench.new_topic()
        loads.create_topic(broker.address, topic, 4)
        return pair.measure(bench, broker, topic, is_idempotent)


def _measure_send(bench: Bench, broker: BrokerProcess, topic: str, is_idempotent: bool) -> _Run:
    before = broker.cpu_seconds()
    seconds = bench.sizes.idempotence_seconds
    run = run_sends("bus", broker.address, topic, seconds=seconds, idempotence=is_idempotent)
    broker_cpu = (broker.cpu_seconds() - before) / (run.warm_up_records + run.records) * 1e6
    return _Run(run.records_per_second, broker_cpu + run.cpu_per_million)


def _measure_batch(bench: Bench, broker: BrokerProcess, topic: str, is_idempotent: bool) -> _Run:
    before = broker.cpu_seconds()
    with loads.ProcessorTime() as client:
        rate = loads.produce_batches(
            broker.address,
            topic,
            value_bytes=100,
            seconds=bench.sizes.idempotence_seconds,
            enable_idempotence=is_idempotent,
        )
    records = loads.count_records(broker.address, topic)
    return _Run(rate, (broker.cpu_seconds() - before + client.seconds) / records * 1e6)
