"""`send` of single records from Python, beside confluent-kafka against a Kafka.

Guards the fairness of the pair: each client in a process of its own, the same loop, the same records; confluent both as
the bus works, with a report for each record, and without any; Kafka both with its defaults and syncing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks import loads
from benchmarks.bench import FLUSH_EACH, PAGE_CACHE, SYNCED, Bench
from benchmarks.broker_process import BrokerProcess
from benchmarks.figure import Figure
from benchmarks.kafka import Kafka
from benchmarks.send_process import SendRun, has_confluent, run_sends

_KEYS = 1_000
_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class _Run:
    client: SendRun
    broker_cpu_seconds: float

    @property
    def broker_cpu_per_million(self) -> float:
        return self.broker_cpu_seconds / (self.client.warm_up_records + self.client.records) * 1e6


@dataclass(slots=True)
class _Runs:
    """One a round of each kind."""

    name: str
    title: str
    keys: int
    ratio_target: float
    ours: list[_Run] = field(default_factory=list)
    ours_reported: list[_Run] = field(default_factory=list)  # with a callback on each future
    peer_reported: list[_Run] = field(default_factory=list)
    peer_bare: list[_Run] = field(default_factory=list)
    peer_synced: list[_Run] = field(default_factory=list)  # with reports


def measure_sends(bench: Bench) -> list[Figure]:
    unkeyed = _Runs("send", "send() of 100-byte values", 0, 1.0)
    keyed = _Runs("send-keyed", f"send() with {_KEYS:,} different keys", _KEYS, 0.8)
    if not has_confluent():
        bench.report("send() without its peer: confluent-kafka is not installed; `make bench-peers` does it")
    for number in range(bench.sizes.rounds):
        for runs in (unkeyed, keyed):
            _measure_ours(bench, runs)
            bench.report(
                f"{runs.title}, round {number + 1}: {_text(runs.ours)}; with callbacks {_text(runs.ours_reported)}"
            )
            kafka = bench.peer()
            if kafka is not None and has_confluent():
                _measure_peer(bench, kafka, runs)
                bench.report(
                    f"  confluent: {_text(runs.peer_reported)} with reports, {_text(runs.peer_bare)} without; "
                    f"syncing {_text(runs.peer_synced)}"
                )
    return [*_figures(unkeyed), *_figures(keyed)]


def _measure_ours(bench: Bench, runs: _Runs) -> None:
    for callbacks, taken in ((False, runs.ours), (True, runs.ours_reported)):
        with bench.broker() as broker:
            topic = bench.new_topic()
            loads.create_topic(broker.address, topic, _PARTITIONS)
            taken.append(_run(bench, "bus", broker, topic, runs.keys, callbacks))


def _measure_peer(bench: Bench, kafka: Kafka, runs: _Runs) -> None:
    for callbacks, configs, taken in (
        (True, [], runs.peer_reported),
        (False, [], runs.peer_bare),
        (True, [FLUSH_EACH], runs.peer_synced),
    ):
        topic = bench.new_topic()
        kafka.create_topic(topic, _PARTITIONS, *configs)
        taken.append(_run(bench, "confluent", kafka, topic, runs.keys, callbacks))


def _run(bench: Bench, peer: str, broker: BrokerProcess | Kafka, topic: str, keys: int, callbacks: bool) -> _Run:
    before = broker.cpu_seconds()
    options: dict[str, object] = {"keys": keys, "linger_ms": 5, "idempotence": True}
    if callbacks:
        options["callbacks"] = True
    run = run_sends(peer, broker.address, topic, seconds=bench.sizes.send_seconds, **options)
    return _Run(run, broker.cpu_seconds() - before)


def _figures(runs: _Runs) -> list[Figure]:
    name, title, unit = runs.name, runs.title, "records/s"
    reported = "a future a record; confluent: a delivery report a record"
    cpu = "s of a core for a million records"
    return [
        Figure(
            name,
            title,
            unit,
            _rates(runs.ours),
            is_more_better=True,
            peer_runs=_rates(runs.peer_reported),
            ratio_target=runs.ratio_target,
            note=f"{reported}; {PAGE_CACHE}",
        ),
        Figure(
            f"{name}-synced",
            "... both synced",
            unit,
            _rates(runs.ours),
            is_more_better=True,
            peer_runs=_rates(runs.peer_synced),
            note=f"{reported}; {SYNCED}",
        ),
        Figure(
            f"{name}-bare",
            "... confluent without reports",
            unit,
            _rates(runs.ours),
            is_more_better=True,
            peer_runs=_rates(runs.peer_bare),
            note=f"a future a record; confluent: nobody learns what became of a record; {PAGE_CACHE}",
        ),
        Figure(
            f"{name}-callbacks",
            "... a callback on each future",
            unit,
            _rates(runs.ours_reported),
            is_more_better=True,
            peer_runs=_rates(runs.peer_reported),
            note=f"confluent: a delivery report a record; {PAGE_CACHE}",
        ),
        Figure(
            f"{name}-cpu",
            "... processor time of the client",
            cpu,
            [run.client.cpu_per_million for run in runs.ours],
            peer_runs=[run.client.cpu_per_million for run in runs.peer_reported],
            note=reported,
        ),
        Figure(
            f"{name}-broker-cpu",
            "... of the broker",
            cpu,
            [run.broker_cpu_per_million for run in runs.ours],
            peer_runs=[run.broker_cpu_per_million for run in runs.peer_reported],
            note=PAGE_CACHE,
        ),
    ]


def _rates(runs: list[_Run]) -> list[float]:
    return [run.client.records_per_second for run in runs]


def _text(runs: list[_Run]) -> str:
    return f"{runs[-1].client.records_per_second:,.0f} records/s"
