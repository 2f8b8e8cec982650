"""Which broker leads a partition, by the cluster's metadata, and requests for newer metadata.

Guards one promise: one request is under way at a time, for all topics together, with a pause after each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from bus.client.connection.cluster import TopicInfo
from bus.client.producer.instructions import Agenda, RefreshTopics
from bus.client.producer.queue import PartitionQueue
from bus.errors import BusError, ErrorCode, count_of


class Metadata(Protocol):
    """What the sender asks of the cluster: answers from memory only."""

    def cached_topic(self, name: str) -> TopicInfo | None: ...

    def leader_address(self, info: TopicInfo, partition: int) -> str | None: ...

    def is_stale(self, info: TopicInfo) -> bool: ...


class Leaders:
    def __init__(self, metadata: Metadata, agenda: Agenda, backoff_ms: Callable[[int], float]) -> None:
        self._metadata = metadata
        self._agenda = agenda
        self._backoff_ms = backoff_ms
        self._stale_topics: set[str] = set()
        self._is_refreshing = False
        self._refresh_at_ms = 0.0
        self._failures = 0

    def find(self, queue: PartitionQueue) -> tuple[TopicInfo, str] | None:
        """The topic and the leader's address; None while they are not known: then a refresh is requested."""
        info = self._metadata.cached_topic(queue.topic)
        if info is not None and queue.partition < len(info.partitions):
            address = self._metadata.leader_address(info, queue.partition)
            if address is not None:
                return info, address
        self.ask_for(queue.topic)
        return None

    def ask_for(self, topic: str) -> None:
        """What is known of it may be old."""
        self._stale_topics.add(topic)
        self._agenda.wake_by(self._refresh_at_ms)

    def refresh(self, topics: Iterable[str], now_ms: float) -> None:
        """Those of `topics` that are old, and those that were asked for, if it is time."""
        if now_ms < self._refresh_at_ms or self._is_refreshing:
            return
        for topic in topics:
            info = self._metadata.cached_topic(topic)
            if info is not None and self._metadata.is_stale(info):
                self._stale_topics.add(topic)
        if self._stale_topics:
            self._is_refreshing = True
            self._agenda.add(RefreshTopics(tuple(self._stale_topics)))

    def on_refreshed(self, results: Mapping[str, BusError | None], now_ms: float) -> list[tuple[str, int, BusError]]:
        """`results`: None, or why nothing is known of a topic. Returns the partitions that are gone: a topic, its
        first missing partition, and the error."""
        self._is_refreshing = False
        gone: list[tuple[str, int, BusError]] = []
        failed = False
        for topic, error in results.items():
            if error is None:
                self._stale_topics.discard(topic)
                gone.append(self._missing_of(topic))
            elif not error.retriable or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._stale_topics.discard(topic)
                gone.append((topic, 0, error))
            else:
                failed = True
        self._refresh_at_ms = now_ms + self._backoff_ms(self._failures)
        self._failures = self._failures + 1 if failed else 0
        self._agenda.wake_by(self._refresh_at_ms)
        return gone

    def _missing_of(self, topic: str) -> tuple[str, int, BusError]:
        info = self._metadata.cached_topic(topic)
        count = len(info.partitions) if info is not None else 0
        message = f"topic {topic!r} has {count_of(count, 'partition')} now"
        return topic, count, BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)

    def next_event(self) -> float:
        return self._refresh_at_ms if self._stale_topics and not self._is_refreshing else math.inf
