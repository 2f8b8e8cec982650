"""Reports between brokers about replicas that do not keep up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bus.cluster_metadata.cluster_records import BrokerRegistered, LeaderChanged, TopicCreated, apply_all
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.grpc_api.server.peer_messages import encode_lagging
from bus.grpc_api.server.request_limits import control_reader
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.runtime.replicas.in_sync_replicas import LaggingReplicas
from tests.support.fake_table import ManualClock

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
CLUSTER = apply_all(
    EMPTY_CLUSTER,
    [
        *(BrokerRegistered(broker_id, "h", 1 + broker_id) for broker_id in range(3)),
        TopicCreated("t", "id", 3, 0),
        LeaderChanged("t", "id", 1, 1, 1),
        LeaderChanged("t", "id", 2, 2, 1),
    ],
)


class Bench:
    """Broker 0's, which leads t-0."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.found: dict[TopicPartition, tuple[int, ...]] = {}
        in_sync: Any = SimpleNamespace(lagging=lambda: dict(self.found))
        self.lagging = LaggingReplicas(0, in_sync, self.clock)


def test_broker_looks_through_what_it_leads_now_and_then() -> None:
    bench = Bench()
    assert bench.lagging.own() == {}
    bench.found[P0] = (2,)
    assert bench.lagging.own() == {}
    bench.clock.advance(2_000)
    assert bench.lagging.own() == {P0: (2,)}
    assert bench.lagging.of(P0) == (2,)


def test_controller_tells_all_what_each_leader_says_of_what_it_leads() -> None:
    bench = Bench()
    bench.found[P0] = (2,)
    bench.lagging.take(1, {P1: (0,), P2: (0,)})
    assert bench.lagging.merge(CLUSTER) == {P0: (2,), P1: (0,)}
    assert bench.lagging.of(P1) == (0,)
    bench.lagging.take(1, {})
    assert bench.lagging.merge(CLUSTER) == {P0: (2,)}
    assert bench.lagging.of(P1) == ()


def test_new_controller_forgets_what_was_told_before() -> None:
    bench = Bench()
    bench.lagging.take(1, {P1: (0,)})
    bench.lagging.follow({P1: (0,)})
    assert bench.lagging.of(P1) == (0,)
    bench.lagging.begin()
    assert bench.lagging.merge(CLUSTER) == {}
    assert bench.lagging.of(P1) == ()


def test_heartbeat_of_a_leader_whose_replicas_all_lag_is_one_that_the_controller_reads() -> None:
    """A heartbeat that is refused would have the broker fenced."""
    bench = Bench()
    bench.found.update((TopicPartition("t" * 249, number), (1, 2)) for number in range(30_000))
    heartbeat = pb.BrokerHeartbeatRequest(used_producer_ids=range(1_000), lagging=encode_lagging(bench.lagging.own()))
    assert len(heartbeat.lagging) == 5_000
    read = control_reader(pb.BrokerHeartbeatRequest)(heartbeat.SerializeToString())
    assert isinstance(read, pb.BrokerHeartbeatRequest), read
