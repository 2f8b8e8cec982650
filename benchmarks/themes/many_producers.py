"""Ten thousand producer ids on one partition: what they cost in memory, in latency and at a restart.

Two topics have the same life, batch by batch, but for one thing: in one of them each batch has a producer of its own,
in the other none has. So what differs between them is the producers and nothing else: not the commits, not the cached
records, not the allocator's first growth.
"""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks import loads
from benchmarks.bench import MIB, Bench
from benchmarks.broker_process import BrokerProcess
from benchmarks.figure import Figure
from benchmarks.producer_crowd import ProducerCrowd

_VALUE_BYTES = 100
_TURNS = 5  # in each round, between the two topics
_MEMORY_TARGET_MIB = 50.0
_RATIO_TARGET = 1.05  # "not measurable": within what two topics of the same life differ by


def measure_many_producers(bench: Bench) -> list[Figure]:
    count = bench.sizes.producers
    with bench.broker() as broker:
        plain, crowded = bench.new_topic(), bench.new_topic()
        for topic in (plain, crowded):
            loads.create_topic(broker.address, topic, 1)
        loads.produce_one_by_one(broker.address, plain, records=bench.sizes.latency_records // 2)
        before = _p50(loads.produce_one_by_one(broker.address, plain, records=bench.sizes.latency_records))
        loads.produce_one_by_one(broker.address, crowded, records=bench.sizes.latency_records * 3 // 2)
        growth, without = _grow(bench, broker, plain, crowded, count)
        of_plain, of_crowded = _take_turns(bench, broker, plain, crowded)
        resident = broker.resident_bytes()
        starts = [broker.restart() for _ in range(bench.sizes.rounds)]
    ratios = [with_them / alone for with_them, alone in zip(of_crowded, of_plain, strict=True)]
    name = f"{count:,} producer ids on one partition"
    bench.report(f"{name}: {growth:.1f} MiB more, p50 {statistics.median(ratios):.2f} times as long")
    return [
        Figure(
            "producers-memory",
            f"{name}, memory that they take",
            "MiB",
            [growth],
            _MEMORY_TARGET_MIB,
            note=f"the same batches without producers took {without:.1f} MiB before",
        ),
        Figure("producers-resident", "... memory of the broker then", "MiB", [resident / MIB]),
        Figure("producers-before", "one produce in flight before them, p50", "ms", [before]),
        Figure("producers-p50", "... with them on its partition, p50", "ms", of_crowded),
        Figure("producers-alone", "... on a partition of the same life without, p50", "ms", of_plain),
        Figure("producers-latency", "... the one over the other", "x", ratios, _RATIO_TARGET, note="in turns"),
        Figure("producers-restart", "... restart until ready", "s", starts),
    ]


def _grow(bench: Bench, broker: BrokerProcess, plain: str, crowded: str, count: int) -> tuple[float, float]:
    """MiB that the broker grew by with the producers, and by the same batches without them, taken first."""
    with ProducerCrowd(broker.address, value_bytes=_VALUE_BYTES) as crowd:
        levels = [_settled(broker)]
        crowd.produce_unstamped(plain, count)
        levels.append(_settled(broker))
        producers = crowd.new_producers(count)
        bench.report(f"{count:,} producer ids were given")
        crowd.produce_one_each(crowded, producers)
        levels.append(_settled(broker))
    start, after_plain, after_crowd = (level / MIB for level in levels)
    return after_crowd - after_plain, after_plain - start


def _take_turns(bench: Bench, broker: BrokerProcess, plain: str, crowded: str) -> tuple[list[float], list[float]]:
    """Milliseconds, p50, of small produces to either topic in turns."""
    records = max(50, bench.sizes.latency_records // _TURNS)
    of: dict[str, list[float]] = {plain: [], crowded: []}
    for turn in range(bench.sizes.rounds * _TURNS):
        for topic in (plain, crowded) if turn % 2 == 0 else (crowded, plain):
            of[topic].append(_p50(loads.produce_one_by_one(broker.address, topic, records=records)))
    return of[plain], of[crowded]


def _settled(broker: BrokerProcess) -> int:
    """Resident bytes once nothing moves any more: the least of a few looks."""
    return min(broker.resident_bytes_soon() for _ in range(5))


def _p50(seconds: np.ndarray) -> float:
    return float(np.percentile(seconds, 50)) * 1_000
