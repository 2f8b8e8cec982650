"""The picture of throughput against the size of a batch: `send_batch`, `send()` and Kafka's own producer.

The x of `send_batch` is its records times 100 bytes; of the others it is batch.size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from benchmarks import loads
from benchmarks.bench import FLUSH_EACH, Bench
from benchmarks.figure import Curve, Point
from benchmarks.kafka import Kafka
from benchmarks.send_process import run_sends

PICTURE = "batch-size"
_VALUE_BYTES = 100
_FIRST_RECORDS = 100_000
_ENOUGH = 0.7  # of the seconds that were wanted
_GROWTH_MAX = 8.0
_BATCHES = "the bus, send_batch (on disk)"
_SENDS = "the bus, send() (on disk)"
_KAFKA = "Kafka's perf-test (page cache)"
_KAFKA_SYNCED = "Kafka's perf-test, flush.messages=1 (on disk)"

_Rates = dict[str, dict[float, list[float]]]  # label -> bytes of a batch -> a run a round


def measure_batch_sizes(bench: Bench) -> list[Curve]:
    rates: _Rates = defaultdict(lambda: defaultdict(list))
    kafka = bench.peer()
    perf_test = None if kafka is None else _PerfTest(bench, kafka)
    for number in range(bench.sizes.rounds):
        for records in bench.sizes.batch_records:
            rates[_BATCHES][records * _VALUE_BYTES].append(_with_broker(bench, _send_batches(bench, records)))
        for size in bench.sizes.batch_bytes:
            rates[_SENDS][size].append(_with_broker(bench, _sends(bench, size)))
            if perf_test is not None:
                rates[_KAFKA][size].append(perf_test.rate(size))
                rates[_KAFKA_SYNCED][size].append(perf_test.rate(size, FLUSH_EACH))
        bench.report(f"throughput against batch size, round {number + 1}: {_text(rates)}")
    return [
        Curve(PICTURE, label, [Point(x, {"records/s": runs}) for x, runs in sorted(by_size.items())])
        for label, by_size in rates.items()
    ]


def _with_broker(bench: Bench, measure: Callable[[str, str], float]) -> float:
    with bench.broker() as broker:
        topic = bench.new_topic()
        loads.create_topic(broker.address, topic, 4)
        return measure(broker.address, topic)


def _send_batches(bench: Bench, records: int) -> Callable[[str, str], float]:
    def measure(address: str, topic: str) -> float:
        seconds = bench.sizes.sweep_seconds
        return loads.produce_batches(address, topic, value_bytes=_VALUE_BYTES, seconds=seconds, batch_records=records)

    return measure


def _sends(bench: Bench, batch_size: int) -> Callable[[str, str], float]:
    def measure(address: str, topic: str) -> float:
        run = run_sends("bus", address, topic, seconds=bench.sizes.sweep_seconds, batch_size=batch_size)
        return run.records_per_second

    return measure


class _PerfTest:
    """Kafka's tool, with as many records as take the seconds that are wanted.

    It counts its own cold start, a second or more: a run that turns out short says nothing about Kafka and is done
    again with more records. What was enough in one round is where the next one begins.
    """

    def __init__(self, bench: Bench, kafka: Kafka) -> None:
        self._bench = bench
        self._kafka = kafka
        self._records: dict[tuple[int, tuple[str, ...]], int] = {}

    def rate(self, batch_size: int, *configs: str) -> float:
        wanted_s = self._bench.sizes.peer_sweep_seconds
        records = self._records.get((batch_size, configs), _FIRST_RECORDS)
        while True:
            topic = self._bench.new_topic()
            self._kafka.create_topic(topic, 4, *configs)
            rate = self._kafka.tools.produce(topic, records=records, value_bytes=_VALUE_BYTES, batch_size=batch_size)
            if records / rate >= wanted_s * _ENOUGH:
                self._records[batch_size, configs] = records
                return rate
            records = round(records * min(_GROWTH_MAX, max(1.5, wanted_s * rate / records)))


def _text(rates: _Rates) -> str:
    return "; ".join(
        f"{label}: {min(runs[-1] for runs in by_size.values()):,.0f} to "
        f"{max(runs[-1] for runs in by_size.values()):,.0f} records/s"
        for label, by_size in rates.items()
    )
