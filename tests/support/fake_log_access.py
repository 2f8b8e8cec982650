"""A log as a query asks for it, in memory: what its topics are and where they begin and end can be set at any time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.source.access import Bounds, InputRange, TopicFacts
from bus.spark.source.planning import OffsetRange
from bus.spark.source.source_options import Location


class FakeLogAccess:
    def __init__(self) -> None:
        self.location = Location(address="nowhere:1")
        self.facts: dict[str, TopicFacts] = {}
        self.bounds_of: dict[TopicPartition, Bounds] = {}
        self.times_ms: dict[TopicPartition, list[int]] = {}  # of the records, from offset 0 on
        self.versions: dict[TopicPartition, list[int]] = {}  # the high watermark that each left
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.faults: list[Exception] = []  # raised by the next questions, one each
        self.asked: list[str] = []
        self.is_closed = False

    def create(self, topic: str, *ends: int, topic_id: str | None = None, is_internal: bool = False) -> None:
        """Partitions from 0 on with that many records; again: a topic that has been made anew, or has grown."""
        self.facts[topic] = TopicFacts(topic_id or f"id of {topic}", len(ends), is_internal)
        for number, end in enumerate(ends):
            self.bounds_of[TopicPartition(topic, number)] = Bounds(0, end)

    def delete(self, topic: str) -> None:
        del self.facts[topic]

    def topics(self) -> Mapping[str, TopicFacts]:
        self._ask("topics")
        return dict(self.facts)

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        self._ask("bounds")
        for partition in partitions:
            facts = self.facts.get(partition.topic)
            if facts is None or partition.partition >= facts.partition_count:
                raise BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"found {partition}")
        return {partition: self.bounds_of[partition] for partition in partitions}

    def offsets_at_times(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        self._ask("times")
        return {
            partition: next((offset for offset, time in enumerate(self.times_ms[partition]) if time >= at), None)
            for partition, at in times_ms.items()
        }

    def offsets_at_versions(self, versions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        self._ask("versions")
        return {
            partition: dict(enumerate(self.versions[partition])).get(version) for partition, version in versions.items()
        }

    def committed(self, group_id: str) -> Mapping[TopicPartition, int]:
        self._ask("committed")
        return self.groups.get(group_id, {})

    def plan(self, ranges: Collection[OffsetRange]) -> list[InputRange]:
        self._ask("plan")
        return [InputRange(wanted, None, self.facts[wanted.partition.topic].topic_id) for wanted in ranges]

    def tell_progress(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._ask("progress")
        self.groups.setdefault(group_id, {}).update(offsets)

    def close(self) -> None:
        self.is_closed = True

    def _ask(self, question: str) -> None:
        self.asked.append(question)
        if self.faults:
            raise self.faults.pop(0)
