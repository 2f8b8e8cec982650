"""`send_batch` beside Kafka's own producer at its fastest, and the broker's memory under that load."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from benchmarks import loads
from benchmarks.bench import FLUSH_EACH, MIB, PAGE_CACHE, SYNCED, Bench
from benchmarks.broker_process import Memory, MemoryWatch
from benchmarks.figure import Figure, scaled

_RATIO_TARGET = 3.0
_WARM = f"Kafka's producer after seconds of the same load; its tool counts the cold start. {PAGE_CACHE}"
_SYNCED_PART = 2  # syncing, Kafka is slower: a part of the records takes as long


@dataclass(slots=True)
class _Runs:
    """Records a second with values of one size, a run of each a round."""

    value_bytes: int
    peer_records: int
    ours: list[float] = field(default_factory=list)
    peers: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)  # Kafka's producer, what its cold start took left out
    synced: list[float] = field(default_factory=list)

    def in_mb(self) -> _Runs:
        factor = self.value_bytes / 1e6
        of = (scaled(runs, factor) for runs in (self.ours, self.peers, self.warm, self.synced))
        return _Runs(self.value_bytes, self.peer_records, *of)


def measure_batches(bench: Bench) -> list[Figure]:
    small = _Runs(100, bench.sizes.peer_small_records)
    large = _Runs(1_024, bench.sizes.peer_large_records)
    memories: list[Memory] = []
    for number in range(bench.sizes.rounds):
        for runs in (small, large):
            topic = bench.new_topic()
            memory = _produce(bench, topic, runs)
            if runs is small:
                memories.append(memory)
            bench.report(f"send_batch, {runs.value_bytes} B, round {number + 1}: {runs.ours[-1]:,.0f} records/s")
            _produce_peer(bench, topic, runs)
    return [*_small_figures(small), *_large_figures(large.in_mb()), *_memory_figures(memories)]


def _produce(bench: Bench, topic: str, runs: _Runs) -> Memory:
    with bench.broker() as broker:
        loads.create_topic(broker.address, topic, 4)
        with MemoryWatch(broker) as watch:
            seconds = bench.sizes.produce_seconds
            runs.ours.append(
                loads.produce_batches(broker.address, topic, value_bytes=runs.value_bytes, seconds=seconds)
            )
    return watch.memory


def _produce_peer(bench: Bench, topic: str, runs: _Runs) -> None:
    kafka = bench.peer()
    if kafka is None:
        return
    kafka.create_topic(topic, 4)
    runs.peers.append(kafka.tools.produce(topic, records=runs.peer_records, value_bytes=runs.value_bytes))
    seconds = bench.sizes.produce_seconds
    warm = kafka.tools.load(topic, rate=0, seconds=seconds, warm_up_seconds=seconds / 2, value_bytes=runs.value_bytes)
    runs.warm.append(warm.records_per_second)
    synced = f"{topic}-synced"
    kafka.create_topic(synced, 4, FLUSH_EACH)
    records = runs.peer_records // _SYNCED_PART
    runs.synced.append(kafka.tools.produce(synced, records=records, value_bytes=runs.value_bytes))
    bench.report(
        f"  Kafka: {runs.peers[-1]:,.0f} records/s, warmed up {runs.warm[-1]:,.0f}; syncing: {runs.synced[-1]:,.0f}"
    )


def _small_figures(small: _Runs) -> list[Figure]:
    of_records = partial(Figure, unit="records/s", is_more_better=True)
    mb = small.in_mb()
    return [
        of_records(
            "produce-100b",
            "send_batch, 100-byte values",
            runs=small.ours,
            target=2_000_000,
            peer_runs=small.peers,
            ratio_target=_RATIO_TARGET,
            note=f"10,000 a batch; {PAGE_CACHE}",
        ),
        Figure(
            "produce-100b-mb",
            "... in bytes",
            "MB/s",
            mb.ours,
            is_more_better=True,
            peer_runs=mb.peers,
            note=PAGE_CACHE,
        ),
        of_records(
            "produce-100b-warm", "... beside a producer warmed up", runs=small.ours, peer_runs=small.warm, note=_WARM
        ),
        of_records("produce-100b-synced", "... both synced", runs=small.ours, peer_runs=small.synced, note=SYNCED),
    ]


def _large_figures(large: _Runs) -> list[Figure]:
    of_bytes = partial(Figure, unit="MB/s", is_more_better=True)
    return [
        of_bytes(
            "produce-1kb",
            "send_batch, 1 KB values",
            runs=large.ours,
            target=200,
            peer_runs=large.peers,
            ratio_target=_RATIO_TARGET,
            note=f"10,000 a batch; {PAGE_CACHE}",
        ),
        of_bytes(
            "produce-1kb-warm", "... beside a producer warmed up", runs=large.ours, peer_runs=large.warm, note=_WARM
        ),
        of_bytes("produce-1kb-synced", "... both synced", runs=large.ours, peer_runs=large.synced, note=SYNCED),
    ]


def _memory_figures(memories: list[Memory]) -> list[Figure]:
    of_memory = partial(Figure, unit="MiB")
    return [
        of_memory("memory-start", "broker memory before the load", runs=[m.start / MIB for m in memories]),
        of_memory(
            "memory-peak", "broker memory, peak under the load", runs=[m.peak / MIB for m in memories], target=1_024
        ),
        of_memory("memory-end", "broker memory after the load", runs=[m.end / MIB for m in memories]),
    ]
