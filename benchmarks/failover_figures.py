"""What a run of the theme `failover` tells: the windows of time in which something was done, and the figures and curves
of them.

Everything is counted from the account of single records, afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.figure import Curve, Figure, Point
from benchmarks.partition_traffic import Account

KILL = "kill -9 of a broker"
KILL_CONTROLLER = "kill -9 of the controller"
PAUSE = "SIGSTOP of a broker"
_KEYS = {KILL: "broker", KILL_CONTROLLER: "controller", PAUSE: "paused"}

BUS = "the bus (on disk)"
KAFKA = "Kafka (page cache)"
KAFKA_SHORT = "Kafka, broker.session.timeout.ms=2000 (page cache)"

PICTURE = "failover"
_SHOWN_BEFORE_S, _SHOWN_STEP_S = 2.0, 0.1
# By kind: of the p50 and of the worst. One that stands still is found dead later, and has to be fenced first.
_TARGETS_S: Mapping[str, tuple[float | None, float]] = {
    KILL: (1.5, 3.0),
    KILL_CONTROLLER: (1.5, 3.0),
    PAUSE: (None, 4.0),
}


@dataclass(frozen=True, slots=True)
class Window:
    """From when until when something went on, in seconds of the monotonic clock."""

    begin_s: float
    end_s: float


@dataclass(slots=True)
class Events:
    """What was done to a cluster, by kind."""

    rounds: list[Window] = field(default_factory=list)
    calm: list[Window] = field(default_factory=list)
    failures: dict[str, list[Window]] = field(default_factory=lambda: defaultdict(list))
    moves: list[Window] = field(default_factory=list)
    elections_s: list[float] = field(default_factory=list)
    restarts: list[Window] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    account: Account
    events: Events
    partitions: int

    def without_service_s(self, kind: str) -> list[float]:
        """Of each failure, until its last partition was served."""
        windows = self.events.failures[kind]
        return [float(self.account.restored_s(one.begin_s, self.partitions).max()) for one in windows]

    def latencies_ms(self, windows: Sequence[Window]) -> np.ndarray:
        """Of the records that were sent in them."""
        taken = [self.account.latencies_s(one.begin_s, one.end_s) for one in windows]
        return np.concatenate(taken) * 1_000


def figures_of(outcomes: Mapping[str, Outcome]) -> list[Figure | Curve]:
    """`outcomes` by whose they are: of `BUS`, and of Kafkas if there are any."""
    ours = outcomes[BUS]
    return [*_failures(outcomes), *_planned(ours), *_counts(ours), *_curves(outcomes)]


def _failures(outcomes: Mapping[str, Outcome]) -> list[Figure]:
    ours = outcomes[BUS]
    figures = []
    for kind, key in _KEYS.items():
        took = ours.without_service_s(kind)
        name = f"{ours.partitions:,} partitions on three brokers, {kind}: without service"
        note = f"from the signal until every partition has acknowledged a new record; {len(took)} times"
        p50_target_s, worst_target_s = _TARGETS_S[kind]
        theirs = outcomes[KAFKA].without_service_s(kind) if kind == KILL and KAFKA in outcomes else []
        figures += [
            Figure(
                f"failover-{key}-p50",
                f"{name}, p50",
                "s",
                [_p50(took)],
                p50_target_s,
                peer_runs=[_p50(theirs)] if theirs else [],
                note=note,
            ),
            Figure(
                f"failover-{key}-worst",
                "... the worst",
                "s",
                [max(took)],
                worst_target_s,
                peer_runs=[max(theirs)] if theirs else [],
            ),
        ]
        if kind == KILL and KAFKA_SHORT in outcomes:
            figures.append(_beside_short_sessions(took, outcomes[KAFKA_SHORT].without_service_s(kind)))
    return figures


def _beside_short_sessions(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    return Figure(
        *("failover-broker-short", "... p50 beside Kafka with a short session", "s", [_p50(ours)]),
        peer_runs=[_p50(theirs)],
        note=KAFKA_SHORT,
    )


def _planned(outcome: Outcome) -> list[Figure]:
    events = outcome.events
    rounds = [float(outcome.account.restored_s(one.begin_s, outcome.partitions).max()) for one in events.rounds]
    moves = [outcome.latencies_ms([one]) for one in events.moves]
    calm, rolling = outcome.latencies_ms(events.calm), outcome.latencies_ms(events.restarts)
    p999 = [float(np.percentile(one, 99.9)) for one in (calm, rolling)]
    return [
        Figure("failover-round", "... the same round without a failure, p50", "s", [_p50(rounds)]),
        Figure(
            "failover-move",
            "planned move of a third of the leaders: slowest produce, p50 of the moves",
            "ms",
            [_p50([float(one.max()) for one in moves])],
            note=f"elect-leaders, {len(moves)} times; {len(np.concatenate(moves)):,} records",
        ),
        Figure("failover-move-worst", "... the worst", "ms", [max(float(one.max()) for one in moves)]),
        Figure("failover-elect", "... until the call is answered, p50", "s", [_p50(events.elections_s)]),
        Figure(
            *("failover-rolling-p999", "rolling restart under load: produce, p99.9", "ms", [p999[1]]),
            note=f"{rolling.size:,} records",
        ),
        Figure("failover-rolling-worst", "... the slowest", "ms", [float(rolling.max())]),
        Figure("failover-calm-p999", "... p99.9 while nothing else happens", "ms", [p999[0]]),
        Figure("failover-calm-worst", "... the slowest", "ms", [float(calm.max())]),
    ]


def _counts(outcome: Outcome) -> list[Figure]:
    account = outcome.account
    note = f"{account.sent:,} records sent, {account.acknowledged:,} acknowledged"
    return [
        Figure("failover-errors", "errors that the application was given", "errors", [account.failures], 0, note=note),
        Figure("failover-lost", "... acknowledged records that are lost", "records", [account.lost], 0),
        Figure("failover-doubled", "... records that are in the log twice", "records", [account.doubled], 0),
        Figure("failover-read-twice", "... records that the group was given twice", "records", [account.read_twice], 0),
    ]


def _curves(outcomes: Mapping[str, Outcome]) -> list[Curve]:
    return [Curve(PICTURE, label, _over_time(outcome)) for label, outcome in outcomes.items()]


def _over_time(outcome: Outcome) -> list[Point]:
    """Across the failure of a broker that took the median time, until something else was done; x is in seconds from the
    signal."""
    took = outcome.without_service_s(KILL)
    window = outcome.events.failures[KILL][int(np.argsort(took)[len(took) // 2])]
    points = []
    for begin in np.arange(-_SHOWN_BEFORE_S, window.end_s - window.begin_s, _SHOWN_STEP_S):
        begin_s = window.begin_s + float(begin)
        latencies = outcome.account.latencies_s(begin_s, begin_s + _SHOWN_STEP_S)
        if latencies.size:
            points.append(Point(round(float(begin), 1), {"max": [float(latencies.max()) * 1_000]}))
    return points


def _p50(values: Sequence[float]) -> float:
    return float(np.percentile(values, 50))
