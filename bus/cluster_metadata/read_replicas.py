"""Which replica a consumer is sent to for its reads: one in its own rack, if the leader is in another one (KIP-392).

Pure. Guards two promises: no consumer is sent to a broker that is fenced (KAFKA-15390), and none away from a leader in
its own rack.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bus.cluster_metadata.cluster_state import ClusterState


def find_nearby_brokers(state: ClusterState, *, leader_id: int, rack: str) -> frozenset[int]:
    """To which the leader may send consumers in that rack: those of it that are not fenced. None if the leader is one
    of them, or if no rack is named."""
    if not rack:
        return frozenset()
    nearby = frozenset(one.broker_id for one in state.brokers.values() if one.rack == rack and not one.is_fenced)
    return frozenset() if leader_id in nearby else nearby


def choose_read_replica(
    replicas: Sequence[int], nearby: Collection[int], applied_versions: Mapping[int, int]
) -> int | None:
    """The one of `replicas` that is nearby and has applied most of the log, of several the first; None: the leader.
    `replicas`: those in sync, in the order of the assignment. `applied_versions`: as far as the leader knows."""
    found = [broker_id for broker_id in replicas if broker_id in nearby]
    return max(found, key=lambda broker_id: applied_versions.get(broker_id, -1), default=None)
