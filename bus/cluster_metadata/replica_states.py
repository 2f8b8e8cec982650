"""Which replicas of a partition are in sync, and what follows: under-replicated, offline.

Pure, and a function of the metadata and of what leaders say of replicas that do not keep up with them. Guards one
promise: everything that shows such a state asks here.
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
    is_offline: bool  # its leader is fenced

    @property
    def is_under_replicated(self) -> bool:
        return len(self.in_sync) < len(self.replicas)


def replica_state(
    topic: Topic, partition: int, unfenced_brokers: Collection[int], lagging: Collection[int] = ()
) -> ReplicaState:
    """`lagging`: replicas that do not keep up, as the leader says. The leader need not be a replica: where all replicas
    are fenced, another broker leads."""
    replicas = topic.replicas(partition)
    return ReplicaState(
        replicas,
        tuple(one for one in replicas if one in unfenced_brokers and one not in lagging),
        is_offline=topic.partitions[partition].leader_id not in unfenced_brokers,
    )
