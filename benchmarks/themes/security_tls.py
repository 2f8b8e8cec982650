"""What TLS costs the bus and Kafka: each by plaintext and by TLS, at one broker with a listener of either, in turns.

Guards the fairness of the comparison: the same certificate, the same cipher suite, TLS 1.3. What is judged is how much
of its own speed by plaintext each side keeps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.broker_process import PLAINTEXT, BrokerProcess
from benchmarks.figure import Figure
from benchmarks.kafka import Kafka
from benchmarks.key_files import CIPHER_SUITE, KEY, KeyFiles, write_key_files
from benchmarks.send_process import has_confluent, run_sends
from benchmarks.sends import count_confluent

_SSL = "SSL"
_PARTITIONS = 4
_VALUE_BYTES = 100
_PEER_LATENCY_FACTOR = 5  # Kafka answers in a fraction of a millisecond, and its compiler goes on for a while
_NOTE = f"both sides: TLS 1.3, {CIPHER_SUITE}, key {KEY}; Kafka with its defaults: in the page cache when it answers"
_KEPT = "more than 1 as ratio: the bus loses less than Kafka"
_ADDED = "less than 1 as ratio: the bus loses less than Kafka"


@dataclass(frozen=True, slots=True)
class _Run:
    """One side, by plaintext or by TLS."""

    batch: float  # records a second
    broker_cpu: float  # seconds of the broker for a million records of `batch`
    send: float
    fetch: float
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class _Side:
    """A run of each a round."""

    plain: list[_Run] = field(default_factory=list)
    tls: list[_Run] = field(default_factory=list)

    def text(self) -> str:
        return "; ".join(
            f"{name} {run.batch:,.0f} records/s in batches ({run.broker_cpu:.3f} s of the broker), {run.send:,.0f} "
            f"by send(), {run.fetch:,.0f} fetched, p50 {run.p50_ms:.2f} ms, p99 {run.p99_ms:.2f} ms"
            for name, run in (("plaintext", self.plain[-1]), ("TLS", self.tls[-1]))
        )


def measure_tls(bench: Bench) -> list[Figure]:
    ours, peers = _Side(), _Side()
    keys = write_key_files(Path(tempfile.mkdtemp(prefix="keys-", dir=bench.folder)))
    if not has_confluent():
        bench.report("TLS without its peer: confluent-kafka is not installed; `make bench-peers` does it")
    kafka = bench.peer(keys) if has_confluent() else None
    with bench.broker(*keys.bus_settings, protocols=(PLAINTEXT, _SSL)) as broker:
        for number in range(bench.sizes.tls_rounds):
            # What comes first in a round comes last in the next: a drift of the machine hits both.
            latencies = _bus_latencies(bench, broker, keys)
            for is_tls in (False, True) if number % 2 == 0 else (True, False):
                shown = keys if is_tls else None
                (ours.tls if is_tls else ours.plain).append(_measure_bus(bench, broker, shown, latencies[is_tls]))
                if kafka is not None:
                    (peers.tls if is_tls else peers.plain).append(_measure_kafka(bench, kafka, shown))
            bench.report(f"round {number + 1}: {ours.text()}")
            if kafka is not None:
                bench.report(f"  Kafka: {peers.text()}")
    return _figures(ours, peers)


# ------------------------------------------------------------------ one run


def _bus_latencies(bench: Bench, broker: BrokerProcess, keys: KeyFiles) -> dict[bool, tuple[float, float]]:
    """p50 and p99 in ms, by whether it is TLS."""
    topic, records = bench.new_topic(), bench.sizes.latency_records
    loads.create_topic(broker.address, topic, 1)
    ways = [(broker.address, {}), (broker.addresses[_SSL], keys.client_configs)]
    plain, tls = np.percentile(loads.produce_in_turns(ways, topic, records=records), [50, 99], axis=1).T * 1_000
    return {is_tls: (float(p50), float(p99)) for is_tls, (p50, p99) in ((False, plain), (True, tls))}


def _measure_bus(bench: Bench, broker: BrokerProcess, keys: KeyFiles | None, latency_ms: tuple[float, float]) -> _Run:
    address = broker.addresses[PLAINTEXT if keys is None else _SSL]
    configs: dict[str, Any] = {} if keys is None else keys.client_configs
    topic, sent, seconds = bench.new_topic(), bench.new_topic(), bench.sizes.tls_seconds
    for name in (topic, sent):
        loads.create_topic(broker.address, name, _PARTITIONS)
    before = broker.cpu_seconds()
    batch = loads.produce_batches(address, topic, value_bytes=_VALUE_BYTES, seconds=seconds, **configs)
    used, stored = broker.cpu_seconds() - before, loads.count_records(broker.address, topic)
    fetched = min(stored, bench.sizes.tls_stored_records)
    fetch = loads.fetch_arrow(address, topic, partitions=_PARTITIONS, records=fetched, **configs)
    send = run_sends("bus", address, sent, seconds=seconds, **_send_options(keys, broker.address)).records_per_second
    return _Run(batch, used / stored * 1e6, send, fetch, *latency_ms)


def _measure_kafka(bench: Bench, kafka: Kafka, keys: KeyFiles | None) -> _Run:
    """Its own producer, warmed up, and confluent-kafka for single records."""
    address, tools = (kafka.address, kafka.tools) if keys is None else (kafka.tls_address, kafka.tls_tools)
    topic, seconds = bench.new_topic(), bench.sizes.tls_seconds
    sent, alone = f"{topic}-sent", f"{topic}-alone"
    for name, partitions in ((topic, _PARTITIONS), (sent, _PARTITIONS), (alone, 1)):
        kafka.create_topic(name, partitions)
    before = kafka.cpu_seconds()
    batch = tools.load(topic, rate=0, seconds=seconds, warm_up_seconds=seconds, value_bytes=_VALUE_BYTES)
    used, stored = kafka.cpu_seconds() - before, count_confluent(kafka.address, topic)
    fetch = tools.consume(topic, records=min(stored, bench.sizes.tls_stored_records))
    send = run_sends("confluent", address, sent, seconds=seconds, callbacks=True, **_send_options(keys, kafka.address))
    records = bench.sizes.latency_records * _PEER_LATENCY_FACTOR
    latency = tools.produce_latency(alone, records=records, value_bytes=_VALUE_BYTES)
    cpu = used / stored * 1e6
    return _Run(batch.records_per_second, cpu, send.records_per_second, fetch, latency.p50, latency.p99)


def _send_options(keys: KeyFiles | None, plain_address: str) -> dict[str, object]:
    return {} if keys is None else {"authority": keys.authority, "count_address": plain_address}


# ------------------------------------------------------------------ figures


def _figures(ours: _Side, peers: _Side) -> list[Figure]:
    figures: list[Figure] = []
    for name, title, unit in (
        ("batch", "send_batch of 100-byte values", "records/s"),
        ("send", "send() of 100-byte values", "records/s"),
        ("fetch", "fetch of stored records as Arrow", "records/s"),
        ("p50_ms", "one produce in flight, p50", "ms"),
        ("p99_ms", "one produce in flight, p99", "ms"),
        ("broker_cpu", "send_batch, processor of the broker", "s of a core for a million records"),
    ):
        figures += _figures_of(name, title, unit, ours, peers, is_more_better=unit == "records/s")
    return figures


def _figures_of(name: str, title: str, unit: str, ours: _Side, peers: _Side, *, is_more_better: bool) -> list[Figure]:
    """By plaintext, by TLS, and the one over the other of the same round, which has the target: the bus keeps as much
    of its speed as Kafka does, so beside Kafka it is by TLS what it is by plaintext."""
    stem = f"tls-{name.replace('_', '-')}"
    plain, tls, peer_plain, peer_tls = (
        [float(getattr(run, name)) for run in runs] for runs in (ours.plain, ours.tls, peers.plain, peers.tls)
    )
    return [
        Figure(f"{stem}-plain", f"{title}, by plaintext", unit, plain, None, is_more_better, peer_plain, _NOTE),
        Figure(f"{stem}-tls", "... by TLS", unit, tls, None, is_more_better, peer_tls, _NOTE),
        Figure(
            *(f"{stem}-kept", "... by TLS over by plaintext", "x", _over(tls, plain), None, is_more_better),
            *(_over(peer_tls, peer_plain), _KEPT if is_more_better else _ADDED),
            1.0 if peers.tls else None,
        ),
    ]


def _over(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]
