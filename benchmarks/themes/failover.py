"""How long a cluster of three brokers is without service when one fails, and what its clients notice.

All the time a producer sends to every partition and a consumer group reads. At the moment of a failure a round is asked
for, a record to each partition at once, so that what is waited for is the brokers and not the pace of the load. A
partition is served again when it acknowledges a record that was sent after the failure. What a round takes without any
failure stands beside it: a thousand partitions are a thousand commits, whoever leads them.

Kafka has three brokers too, each partition on all of them, the same load by confluent-kafka, and loses a broker in the
same way; once with its defaults and once with the session of a broker as short as the bus has it.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.broker_cluster import BrokerCluster
from benchmarks.figure import Curve, Figure, Point
from benchmarks.kafka_cluster import KafkaCluster
from benchmarks.partition_traffic import Account, Traffic
from benchmarks.send_process import has_confluent

_BROKERS = 3
_MEMBERS = 2
_TIMEOUT_S = 120.0
_TARGET_S = 3.0

PICTURE = "failover"
_SHOWN_BEFORE_S, _SHOWN_STEP_S = 2.0, 0.1

_BUS = "the bus (on disk)"
_KAFKA = "Kafka (page cache)"
_KAFKA_SHORT = "Kafka, broker.session.timeout.ms=2000 (page cache)"
_KAFKAS = {_KAFKA: (), _KAFKA_SHORT: ("broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=500")}

_KILL = "kill -9 of a broker"


@dataclass(frozen=True, slots=True)
class Window:
    """From when until when something went on, in seconds of the monotonic clock."""

    begin_s: float
    end_s: float


@dataclass(slots=True)
class _Events:
    """What was done to a cluster, by kind."""

    rounds: list[Window] = field(default_factory=list)
    failures: dict[str, list[Window]] = field(default_factory=lambda: defaultdict(list))
    moves: list[Window] = field(default_factory=list)
    restarts: list[Window] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Outcome:
    account: Account
    events: _Events
    partitions: int

    def without_service_s(self, kind: str) -> list[float]:
        """Of each failure, until its last partition was served."""
        windows = self.events.failures[kind]
        return [float(self.account.restored_s(one.begin_s, self.partitions).max()) for one in windows]


def measure_failover(bench: Bench) -> list[Figure | Curve]:
    outcomes = {_BUS: _measure_bus(bench)}
    if bench.has_peer and has_confluent():
        for label, properties in _KAFKAS.items():
            outcomes[label] = _measure_kafka(bench, label, properties)
    return [*_failures(outcomes), *_planned(outcomes[_BUS]), *_counts(outcomes[_BUS]), *_curves(outcomes)]


def _measure_bus(bench: Bench) -> _Outcome:
    folder, topic, events = _new_folder(bench), bench.new_topic(), _Events()
    with BrokerCluster(folder / "root", _BROKERS) as cluster:
        loads.create_topic(",".join(cluster.addresses), topic, bench.sizes.failover_partitions)
        with _traffic(bench, folder, "bus", cluster.addresses, topic) as traffic:
            traffic.wait_served(0.0, _TIMEOUT_S)
            for number in range(bench.sizes.failover_repeats):
                took = {kind: _fail(bench, cluster, traffic, events, kind) for kind in _FAILURES}
                _tell(bench, f"failover {number + 1}", took)
            _restart_in_turns(cluster, events)
            account = traffic.finish()
    _tell_counts(bench, account)
    return _Outcome(account, events, bench.sizes.failover_partitions)


def _measure_kafka(bench: Bench, label: str, properties: Sequence[str]) -> _Outcome:
    folder, topic, events = _new_folder(bench), bench.new_topic(), _Events()
    bench.report(f"starting {_BROKERS} brokers: {label}")
    with KafkaCluster(folder, _BROKERS, *properties) as cluster:
        cluster.create_topic(topic, bench.sizes.failover_partitions)
        with _traffic(bench, folder, "confluent", cluster.addresses, topic) as traffic:
            traffic.wait_served(0.0, _TIMEOUT_S)
            for number in range(bench.sizes.failover_peer_repeats):
                took = _strike(bench, lambda: _kill_broker(cluster), traffic, events, _KILL)
                _tell(bench, f"failover {number + 1}", {_KILL: took})
                cluster.start_missing()
                cluster.wait_replicated(topic)
                cluster.elect_leaders()
                time.sleep(bench.sizes.failover_rest_seconds)
            account = traffic.finish()
    _tell_counts(bench, account)
    return _Outcome(account, events, bench.sizes.failover_partitions)


def _new_folder(bench: Bench) -> Path:
    return Path(tempfile.mkdtemp(prefix="failover-", dir=bench.folder))


def _traffic(bench: Bench, folder: Path, peer: str, addresses: list[str], topic: str) -> Traffic:
    sizes = bench.sizes
    return Traffic(
        *(folder, peer, addresses, topic),
        partitions=sizes.failover_partitions,
        rate=sizes.failover_rate,
        members=_MEMBERS,
    )


# ------------------------------------------------------------------ failures


def _kill_broker(cluster: BrokerCluster | KafkaCluster) -> float:
    return cluster.kill(_some_follower(cluster))


def _kill_controller(cluster: BrokerCluster) -> float:
    return cluster.kill(cluster.controller())


def _pause_broker(cluster: BrokerCluster) -> float:
    return cluster.pause(_some_follower(cluster))


def _some_follower(cluster: BrokerCluster | KafkaCluster) -> int:
    """A broker that is not the controller."""
    controller = cluster.controller()
    return next(broker_id for broker_id in cluster.ids if broker_id != controller)


_FAILURES: dict[str, Callable[[BrokerCluster], float]] = {
    _KILL: _kill_broker,
    "kill -9 of the controller": _kill_controller,
    "SIGSTOP of a broker": _pause_broker,
}


def _fail(bench: Bench, cluster: BrokerCluster, traffic: Traffic, events: _Events, kind: str) -> float:
    """One failure, and all that makes the cluster whole again: seconds without service, to some milliseconds."""
    took = _strike(bench, lambda: _FAILURES[kind](cluster), traffic, events, kind)
    cluster.resume_paused()
    cluster.start_missing()
    cluster.wait_active()
    time.sleep(bench.sizes.failover_rest_seconds)
    _move_leaders(cluster, traffic, events)
    time.sleep(bench.sizes.failover_rest_seconds)
    return took


def _strike(bench: Bench, strike: Callable[[], float], traffic: Traffic, events: _Events, kind: str) -> float:
    """A round in peace, and one at the moment of a failure, which `strike` returns."""
    begin_s = time.monotonic()
    traffic.wait_round(_TIMEOUT_S)
    events.rounds.append(Window(begin_s, time.monotonic()))
    time.sleep(bench.sizes.failover_rest_seconds)
    failed_s = strike()
    traffic.ask_for_round()
    took = traffic.wait_served(failed_s, _TIMEOUT_S)
    time.sleep(bench.sizes.failover_rest_seconds)
    events.failures[kind].append(Window(failed_s, time.monotonic()))
    return took


def _move_leaders(cluster: BrokerCluster, traffic: Traffic, events: _Events) -> None:
    """The broker that is back leads again what it is preferred for, while a round is under way."""
    begin_s = time.monotonic()
    traffic.ask_for_round()
    cluster.elect_leaders()
    traffic.ask_for_round()
    traffic.wait_served(time.monotonic(), _TIMEOUT_S)
    events.moves.append(Window(begin_s, time.monotonic()))


def _restart_in_turns(cluster: BrokerCluster, events: _Events) -> None:
    begin_s = time.monotonic()
    cluster.restart_in_turns()
    events.restarts.append(Window(begin_s, time.monotonic()))


def _tell(bench: Bench, name: str, took: Mapping[str, float]) -> None:
    bench.report(f"{name}: " + ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in took.items()))


def _tell_counts(bench: Bench, account: Account) -> None:
    bench.report(
        f"  {account.sent:,} sent, {account.acknowledged:,} acknowledged, {account.failures} errors; "
        f"{account.lost} lost, {account.doubled} doubled, {account.read_twice} read twice"
    )
    for failure in account.first_failures:
        bench.report(f"  {failure}")


# ------------------------------------------------------------------ figures


def _failures(outcomes: Mapping[str, _Outcome]) -> list[Figure]:
    ours = outcomes[_BUS]
    figures = []
    for key, kind in zip(("broker", "controller", "paused"), _FAILURES, strict=True):
        took = ours.without_service_s(kind)
        name = f"{ours.partitions:,} partitions on {_BROKERS} brokers, {kind}: without service"
        note = f"from the signal until every partition has acknowledged a new record; {len(took)} times"
        theirs = outcomes[_KAFKA].without_service_s(kind) if kind == _KILL and _KAFKA in outcomes else []
        figures += [
            Figure(
                f"failover-{key}-p50",
                f"{name}, p50",
                "s",
                [_p50(took)],
                _TARGET_S,
                peer_runs=[_p50(theirs)] if theirs else [],
                note=note,
            ),
            Figure(
                f"failover-{key}-worst", "... the worst", "s", [max(took)], peer_runs=[max(theirs)] if theirs else []
            ),
        ]
        if kind == _KILL and _KAFKA_SHORT in outcomes:
            figures.append(_beside_short_sessions(took, outcomes[_KAFKA_SHORT].without_service_s(kind)))
    return figures


def _beside_short_sessions(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    note = ", ".join(_KAFKAS[_KAFKA_SHORT])
    return Figure(
        *("failover-broker-short", "... p50 beside Kafka with a short session", "s", [_p50(ours)]),
        peer_runs=[_p50(theirs)],
        note=f"Kafka with {note}",
    )


def _planned(outcome: _Outcome) -> list[Figure]:
    account, events = outcome.account, outcome.events
    rounds = [float(account.restored_s(one.begin_s, outcome.partitions).max()) for one in events.rounds]
    moves = [account.latencies_s(window.begin_s, window.end_s) for window in events.moves]
    calm = np.concatenate([account.latencies_s(window.begin_s, window.end_s) for window in events.rounds])
    rolling = np.concatenate([account.latencies_s(window.begin_s, window.end_s) for window in events.restarts])
    return [
        Figure("failover-round", "... the same round without a failure, p50", "s", [_p50(rounds)]),
        Figure(
            "failover-move",
            "planned move of a third of the leaders: slowest produce, p50 of the moves",
            "ms",
            [_p50([float(one.max()) for one in moves]) * 1_000],
            note="elect-leaders with a round under way",
        ),
        Figure("failover-move-worst", "... the worst", "ms", [max(float(one.max()) for one in moves) * 1_000]),
        Figure("failover-calm", "... slowest produce of a round without a move", "ms", [float(calm.max()) * 1_000]),
        Figure(
            "failover-rolling-p999",
            "rolling restart under load: produce, p99.9",
            "ms",
            [float(np.percentile(rolling, 99.9)) * 1_000],
            note=f"{rolling.size:,} records",
        ),
        Figure("failover-rolling-worst", "... the slowest", "ms", [float(rolling.max()) * 1_000]),
    ]


def _counts(outcome: _Outcome) -> list[Figure]:
    account = outcome.account
    note = f"{account.sent:,} records sent, {account.acknowledged:,} acknowledged"
    return [
        Figure("failover-errors", "errors that the application was given", "errors", [account.failures], 0, note=note),
        Figure("failover-lost", "... acknowledged records that are lost", "records", [account.lost], 0),
        Figure("failover-doubled", "... records that are in the log twice", "records", [account.doubled], 0),
        Figure("failover-read-twice", "... records that the group was given twice", "records", [account.read_twice], 0),
    ]


def _curves(outcomes: Mapping[str, _Outcome]) -> list[Curve]:
    return [Curve(PICTURE, label, _over_time(outcome)) for label, outcome in outcomes.items()]


def _over_time(outcome: _Outcome) -> list[Point]:
    """Across the failure of a broker that took the median time, until something else was done; x is in seconds from the
    signal."""
    took = outcome.without_service_s(_KILL)
    window = outcome.events.failures[_KILL][int(np.argsort(took)[len(took) // 2])]
    points = []
    for begin in np.arange(-_SHOWN_BEFORE_S, window.end_s - window.begin_s, _SHOWN_STEP_S):
        begin_s = window.begin_s + float(begin)
        latencies = outcome.account.latencies_s(begin_s, begin_s + _SHOWN_STEP_S)
        if latencies.size:
            points.append(Point(round(float(begin), 1), {"max": [float(latencies.max()) * 1_000]}))
    return points


def _p50(values: Sequence[float]) -> float:
    return float(np.percentile(values, 50))
