"""How long a cluster of three brokers is without service when one fails, and what its clients notice.

All the time a producer sends to every partition and a consumer group reads. At the moment of a failure a round is asked
for, a record to each partition at once, so that what is waited for is the brokers and not the pace of the load. A
partition is served again when it acknowledges a record that was sent after the failure. What a round takes without any
failure stands beside it: a thousand partitions are a thousand commits, whoever leads them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.broker_cluster import BrokerCluster
from benchmarks.figure import Curve, Figure
from benchmarks.partition_traffic import Account, Traffic

_BROKERS = 3
_MEMBERS = 2
_TIMEOUT_S = 120.0
_TARGET_S = 3.0


@dataclass(frozen=True, slots=True)
class Window:
    """From when until when something went on, in seconds of the monotonic clock."""

    begin_s: float
    end_s: float


@dataclass(slots=True)
class _Events:
    """What was done to the cluster, by kind."""

    rounds: list[Window] = field(default_factory=list)
    failures: dict[str, list[Window]] = field(default_factory=dict)
    moves: list[Window] = field(default_factory=list)
    restarts: list[Window] = field(default_factory=list)


def measure_failover(bench: Bench) -> list[Figure | Curve]:
    events = _Events()
    folder = Path(tempfile.mkdtemp(prefix="failover-", dir=bench.folder))
    with BrokerCluster(folder / "root", _BROKERS) as cluster:
        account = _run(bench, cluster, folder, events)
    _check_counts(bench, account)
    return _figures(bench.sizes.failover_partitions, account, events)


def _run(bench: Bench, cluster: BrokerCluster, folder: Path, events: _Events) -> Account:
    sizes, topic = bench.sizes, bench.new_topic()
    loads.create_topic(",".join(cluster.addresses), topic, sizes.failover_partitions)
    with Traffic(
        folder,
        "bus",
        cluster.addresses,
        topic,
        partitions=sizes.failover_partitions,
        rate=sizes.failover_rate,
        members=_MEMBERS,
    ) as traffic:
        traffic.wait_served(0.0, _TIMEOUT_S)
        for number in range(sizes.failover_repeats):
            took = [_fail(bench, cluster, traffic, events, kind) for kind in _FAILURES]
            said = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in zip(_FAILURES, took, strict=True))
            bench.report(f"failover {number + 1}: {said}")
        begin_s = time.monotonic()
        cluster.restart_in_turns()
        events.restarts.append(Window(begin_s, time.monotonic()))
        bench.report(f"rolling restart: {time.monotonic() - begin_s:.1f} s")
        return traffic.finish()


# ------------------------------------------------------------------ failures


def _kill_broker(cluster: BrokerCluster) -> float:
    return cluster.kill(_some_follower(cluster))


def _kill_controller(cluster: BrokerCluster) -> float:
    return cluster.kill(cluster.controller())


def _pause_broker(cluster: BrokerCluster) -> float:
    return cluster.pause(_some_follower(cluster))


def _some_follower(cluster: BrokerCluster) -> int:
    """A broker that is not the controller."""
    controller = cluster.controller()
    return next(broker_id for broker_id in cluster.ids if broker_id != controller)


_FAILURES: dict[str, Callable[[BrokerCluster], float]] = {
    "kill -9 of a broker": _kill_broker,
    "kill -9 of the controller": _kill_controller,
    "SIGSTOP of a broker": _pause_broker,
}


def _fail(bench: Bench, cluster: BrokerCluster, traffic: Traffic, events: _Events, kind: str) -> float:
    """One failure, and all that makes the cluster whole again: seconds without service, to some milliseconds."""
    begin_s = time.monotonic()
    traffic.wait_round(_TIMEOUT_S)
    events.rounds.append(Window(begin_s, time.monotonic()))
    time.sleep(bench.sizes.failover_rest_seconds)
    failed_s = _FAILURES[kind](cluster)
    traffic.ask_for_round()
    seconds = traffic.wait_served(failed_s, _TIMEOUT_S)
    events.failures.setdefault(kind, []).append(Window(failed_s, time.monotonic()))
    time.sleep(bench.sizes.failover_rest_seconds)
    cluster.resume_paused()
    cluster.start_missing()
    cluster.wait_active()
    time.sleep(bench.sizes.failover_rest_seconds)
    _move_leaders(cluster, traffic, events)
    time.sleep(bench.sizes.failover_rest_seconds)
    return seconds


def _move_leaders(cluster: BrokerCluster, traffic: Traffic, events: _Events) -> None:
    """The broker that is back leads again what it is preferred for, while a round is under way."""
    begin_s = time.monotonic()
    traffic.ask_for_round()
    cluster.elect_leaders()
    traffic.ask_for_round()
    traffic.wait_served(time.monotonic(), _TIMEOUT_S)
    events.moves.append(Window(begin_s, time.monotonic()))


# ------------------------------------------------------------------ figures


def _check_counts(bench: Bench, account: Account) -> None:
    bench.report(
        f"{account.sent:,} sent, {account.acknowledged:,} acknowledged, {account.failures} errors; "
        f"{account.lost} lost, {account.doubled} doubled, {account.read_twice} read twice"
    )
    for failure in account.first_failures:
        bench.report(f"  {failure}")


def _figures(partitions: int, account: Account, events: _Events) -> list[Figure | Curve]:
    name = f"{partitions:,} partitions on {_BROKERS} brokers"
    figures: list[Figure | Curve] = []
    rounds = [_served_s(account, window, partitions) for window in events.rounds]
    for kind, windows in events.failures.items():
        key = "failover-" + kind.split()[0].lower() + "-" + kind.split()[-1]
        took = [_served_s(account, window, partitions) for window in windows]
        note = f"from the signal until every partition has acknowledged a new record; {len(took)} times"
        figures += [
            Figure(f"{key}-p50", f"{name}, {kind}: without service, p50", "s", [_p50(took)], _TARGET_S, note=note),
            Figure(f"{key}-worst", "... the worst", "s", [max(took)]),
        ]
    figures.append(Figure("failover-round", "... the same round without a failure", "s", [_p50(rounds)]))
    return [*figures, *_planned(account, events), *_counts(account)]


def _planned(account: Account, events: _Events) -> list[Figure | Curve]:
    moves = [account.latencies_s(window.begin_s, window.end_s) for window in events.moves]
    calm = np.concatenate([account.latencies_s(window.begin_s, window.end_s) for window in events.rounds])
    rolling = np.concatenate([account.latencies_s(window.begin_s, window.end_s) for window in events.restarts])
    return [
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


def _counts(account: Account) -> list[Figure | Curve]:
    note = f"{account.sent:,} records sent, {account.acknowledged:,} acknowledged"
    return [
        Figure("failover-errors", "errors that the application was given", "", [account.failures], 0, note=note),
        Figure("failover-lost", "... acknowledged records that are lost", "", [account.lost], 0),
        Figure("failover-doubled", "... records that are in the log twice", "", [account.doubled], 0),
        Figure("failover-read-twice", "... records that the group was given twice", "", [account.read_twice], 0),
    ]


def _served_s(account: Account, window: Window, partitions: int) -> float:
    return float(account.restored_s(window.begin_s, partitions).max())


def _p50(values: Sequence[float]) -> float:
    return float(np.percentile(values, 50))
