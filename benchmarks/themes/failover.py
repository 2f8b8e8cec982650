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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.broker_cluster import BrokerCluster
from benchmarks.failover_figures import (
    BUS,
    KAFKA,
    KAFKA_SHORT,
    KILL,
    KILL_CONTROLLER,
    PAUSE,
    Events,
    Outcome,
    Window,
    figures_of,
)
from benchmarks.figure import Curve, Figure
from benchmarks.kafka_cluster import KafkaCluster
from benchmarks.partition_traffic import Account, Traffic
from benchmarks.send_process import has_confluent

_BROKERS = 3
_MEMBERS = 2
_TIMEOUT_S = 120.0

_KAFKAS: dict[str, tuple[str, ...]] = {
    KAFKA: (),
    KAFKA_SHORT: ("broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=500"),
}


def measure_failover(bench: Bench) -> list[Figure | Curve]:
    outcomes = {BUS: _measure_bus(bench)}
    if bench.has_peer and has_confluent():
        for label, properties in _KAFKAS.items():
            outcomes[label] = _measure_kafka(bench, label, properties)
    return figures_of(outcomes)


def _measure_bus(bench: Bench) -> Outcome:
    folder, topic, events = _new_folder(bench), bench.new_topic(), Events()
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
    return Outcome(account, events, bench.sizes.failover_partitions)


def _measure_kafka(bench: Bench, label: str, properties: Sequence[str]) -> Outcome:
    folder, topic, events = _new_folder(bench), bench.new_topic(), Events()
    bench.report(f"starting {_BROKERS} brokers: {label}")
    with KafkaCluster(folder, _BROKERS, *properties) as cluster:
        cluster.create_topic(topic, bench.sizes.failover_partitions)
        with _traffic(bench, folder, "confluent", cluster.addresses, topic) as traffic:
            traffic.wait_served(0.0, _TIMEOUT_S)
            for number in range(bench.sizes.failover_peer_repeats):
                took = _strike(bench, lambda: _kill_broker(cluster), traffic, events, KILL)
                _tell(bench, f"failover {number + 1}", {KILL: took})
                cluster.start_missing()
                cluster.wait_replicated(topic)
                cluster.elect_leaders()
                _rest(bench)
            account = traffic.finish()
    _tell_counts(bench, account)
    return Outcome(account, events, bench.sizes.failover_partitions)


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
    KILL: _kill_broker,
    KILL_CONTROLLER: _kill_controller,
    PAUSE: _pause_broker,
}


def _fail(bench: Bench, cluster: BrokerCluster, traffic: Traffic, events: Events, kind: str) -> float:
    """One failure, and all that makes the cluster whole again: seconds without service, to some milliseconds."""
    took = _strike(bench, lambda: _FAILURES[kind](cluster), traffic, events, kind)
    cluster.resume_paused()
    cluster.start_missing()
    cluster.wait_active()
    _rest(bench)
    _move_leaders(bench, cluster, events)
    return took


def _strike(bench: Bench, strike: Callable[[], float], traffic: Traffic, events: Events, kind: str) -> float:
    """A round in peace, and one at the moment of a failure, which `strike` returns."""
    begin_s = time.monotonic()
    traffic.wait_round(_TIMEOUT_S)
    events.rounds.append(Window(begin_s, time.monotonic()))
    _rest(bench)
    events.calm.append(_rest(bench))
    failed_s = strike()
    traffic.ask_for_round()
    took = traffic.wait_served(failed_s, _TIMEOUT_S)
    events.failures[kind].append(Window(failed_s, _rest(bench).end_s))
    return took


def _move_leaders(bench: Bench, cluster: BrokerCluster, events: Events) -> None:
    """The broker that is back leads again what it is preferred for."""
    begin_s = time.monotonic()
    cluster.elect_leaders()
    events.elections_s.append(time.monotonic() - begin_s)
    events.moves.append(Window(begin_s, _rest(bench).end_s))


def _rest(bench: Bench) -> Window:
    begin_s = time.monotonic()
    time.sleep(bench.sizes.failover_rest_seconds)
    return Window(begin_s, time.monotonic())


def _restart_in_turns(cluster: BrokerCluster, events: Events) -> None:
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
