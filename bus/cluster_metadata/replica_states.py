"""Which replicas of a partition are in sync, and what follows: under-replicated, offline.

Pure, and a function of the metadata and of the brokers that count as in sync. As long as no follower keeps up with its
leader's log, these are the unfenced ones. Guards one promise: everything that shows such a state asks here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bus.cluster_metadata.cluster_state import Topic


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """`replicas` and `in_sync` in the order of the assignment, the preferred leader first."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    is_offline: bool  # its leader is not in sync

    @property
    def is_under_replicated(self) -> bool:
        return len(self.in_sync) < len(self.replicas)


def replica_state(topic: Topic, partition: int, in_sync_brokers: Collection[int]) -> ReplicaState:
    """The leader need not be a replica: where all replicas are fenced, another broker leads."""
    replicas = topic.replicas(partition)
    return ReplicaState(
        replicas,
        tuple(broker_id for broker_id in replicas if broker_id in in_sync_brokers),
        is_offline=topic.partitions[partition].leader_id not in in_sync_brokers,
    )
