"""A client's knowledge of the cluster: its brokers, its controller, its topics and the leaders of their partitions.

Guards one promise: a leader once known is never replaced by an older one (leader epochs of a topic id only grow here),
and no answer of a broker that knows less than another one is taken. Asks nobody: `Cluster` does. Safe to use from
several threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from bus.addresses import format_address
from bus.client.connection.retrying import monotonic_ms
from bus.client_texts import one_line
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import Mapper, refused_with
from bus.platform.reentry import OwnLock


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    partition: int
    leader_id: int
    leader_epoch: int
    error_code: int
    error_message: str


_LEADER = Mapper(PartitionLeader, pb.PartitionMetadata)


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """A broker's hint at the leader of a partition that it does not lead itself."""

    leader_id: int
    leader_epoch: int
    address: str


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Invariant: partitions[i].partition == i."""

    name: str
    topic_id: str
    partitions: tuple[PartitionLeader, ...]
    fetched_at_ms: float  # monotonic_ms()


class OldMetadata(BusError):
    """A broker knows less of the cluster than another one has told before."""


def error_of(code: int, message: str) -> BusError:
    """The error of one item of a response, its text escaped: it may repeat a name that somebody chose."""
    refused = refused_with(code, one_line(message))
    return BusError(refused.code, refused.message)


def hint_of(answer: Any) -> LeaderHint | None:
    """Return the leader named in a partition's part of a Produce or Fetch response."""
    if not answer.HasField("current_leader"):
        return None
    leader = answer.current_leader
    return LeaderHint(leader.broker.broker_id, leader.leader_epoch, address_of(leader.broker))


def address_of(broker: Any) -> str:
    return format_address(broker.host, broker.port)


class MetadataCache:
    def __init__(self, age_ms_max: float) -> None:
        self._age_ms_max = age_ms_max
        self._lock = OwnLock()
        self._brokers: dict[int, str] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._controller_id = -1
        self._end = ("", 0)  # cluster id and metadata offset of the newest answer

    @property
    def controller_address(self) -> str | None:
        """None while it is not known; then any broker will do."""
        return self._brokers.get(self._controller_id)

    def addresses(self) -> Iterable[str]:
        """The addresses of all brokers in the latest metadata."""
        return self._brokers.values()

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def is_stale(self, info: TopicInfo) -> bool:
        return monotonic_ms() - info.fetched_at_ms >= self._age_ms_max

    def leader_address(self, info: TopicInfo, partition: int) -> str | None:
        """None while no leader is known, or its address is not."""
        return self._brokers.get(info.partitions[partition].leader_id)

    def broker_address(self, broker_id: int) -> str | None:
        """None if the latest metadata do not have that broker."""
        return self._brokers.get(broker_id)

    def is_available(self, info: TopicInfo, partition: int) -> bool:
        """True if the partition is known to have a leader, which has not said that the partition is stopped."""
        return self.leader_address(info, partition) is not None and not info.partitions[partition].error_code

    def available_partitions(self, info: TopicInfo) -> list[int]:
        return [partition for partition in range(len(info.partitions)) if self.is_available(info, partition)]

    def forget(self, names: Iterable[str]) -> None:
        """Ask again before these topics are used the next time. Leader epochs are remembered."""
        with self._lock:
            for name in names:
                info = self._topics.get(name)
                if info is not None:
                    self._topics[name] = replace(info, fetched_at_ms=-math.inf)

    def take_hint(self, topic: str, partition: int, hint: LeaderHint) -> bool:
        """Go by it from now on, unless as much or more is known of the partition already: then False."""
        with self._lock:
            info = self._topics.get(topic)
            if info is None or partition >= len(info.partitions):
                return False
            if hint.leader_epoch <= info.partitions[partition].leader_epoch:
                return False
            leader = PartitionLeader(partition, hint.leader_id, hint.leader_epoch, 0, "")
            partitions = (*info.partitions[:partition], leader, *info.partitions[partition + 1 :])
            self._topics[topic] = replace(info, partitions=partitions)
            self._brokers = {**self._brokers, hint.leader_id: hint.address}
            return True

    def check_not_older(self, response: Any) -> None:
        """Raises `OldMetadata`. So no client outlives that a root is put back to an earlier state."""
        cluster_id, offset = self._end
        if response.cluster_id == cluster_id and 0 < response.metadata_offset < offset:
            raise OldMetadata(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"expected the cluster metadata up to offset {offset}, found a broker that has followed them up to "
                f"{response.metadata_offset}",
            )

    def take(self, response: Any) -> tuple[dict[str, TopicInfo], BusError | None]:
        """Take the topics of a `MetadataResponse`, as well as the brokers. Returns the topics, and the error of the
        first one that has one. Raises `OldMetadata`."""
        failure: BusError | None = None
        found: dict[str, TopicInfo] = {}
        with self._lock:
            self._take_brokers(response)
            for topic in response.topics:
                if topic.error_code:
                    self._topics.pop(topic.name, None)
                    failure = failure or error_of(topic.error_code, topic.error_message)
                else:
                    found[topic.name] = self._topics[topic.name] = self._newest(_topic_info(topic))
        return found, failure

    def take_brokers(self, response: Any) -> None:
        """Take the brokers alone. Raises `OldMetadata`."""
        with self._lock:
            self._take_brokers(response)

    def _take_brokers(self, response: Any) -> None:
        self.check_not_older(response)  # another thread may have had a newer one meanwhile
        if response.metadata_offset:
            self._end = response.cluster_id, response.metadata_offset
        self._brokers = {broker.broker_id: address_of(broker) for broker in response.brokers}
        self._controller_id = response.controller_id

    def _newest(self, info: TopicInfo) -> TopicInfo:
        known = self._topics.get(info.name)
        if known is None or known.topic_id != info.topic_id or len(known.partitions) > len(info.partitions):
            return info
        partitions = list(info.partitions)
        for position, leader in enumerate(known.partitions):
            if leader.leader_epoch > partitions[position].leader_epoch:
                partitions[position] = leader
        return replace(info, partitions=tuple(partitions))


def _topic_info(topic: Any) -> TopicInfo:
    leaders = sorted(map(_LEADER.decode, topic.partitions), key=attrgetter("partition"))
    return TopicInfo(topic.name, topic.topic_id, tuple(leaders), fetched_at_ms=monotonic_ms())
