"""The log by a broker: it says what is committed, and keeps the query's progress.

The records themselves are read from its storage where that can be reached, as any Delta reader does, and fetched from
the broker where it cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields

from bus.client.admin.admin import Admin
from bus.client.config.clients import AdminConfig
from bus.client.connection.leader_calls import AtVersion, OffsetQuestion
from bus.errors import RootNotUsable
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from bus.spark.source.access import Bounds, InputRange, StorageAccess, TopicFacts
from bus.spark.source.planning import OffsetRange
from bus.spark.source.source_options import Location

_ADMIN_SETTINGS = tuple(setting.name for setting in fields(AdminConfig))


def open_admin(location: Location) -> Admin:
    assert location.address is not None, f"{location} is no broker"
    settings = {name: value for name, value in location.settings.items() if name in _ADMIN_SETTINGS}
    return Admin(location.address, **settings)


class BrokerAccess:
    """Implements `LogAccess`."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._admin = open_admin(location)
        self._topic_ids: dict[str, str] = {}  # as a query was told them last
        try:
            self._storage = self._find_storage()
        except BaseException:
            self._admin.close()
            raise

    @property
    def location(self) -> Location:
        root = None if self._storage is None else self._storage.location.root
        return Location(self._location.address, root, self._location.settings)

    def topics(self) -> Mapping[str, TopicFacts]:
        topics = self._admin.describe_topics().values()
        self._topic_ids = {topic.name: topic.topic_id for topic in topics}
        return {topic.name: TopicFacts(topic.topic_id, len(topic.partitions), topic.is_internal) for topic in topics}

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        # The earliest first: what retention takes in between leaves a range that is smaller, never one upside down.
        begins = self._offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
        ends = self._offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
        return {partition: Bounds(begins[partition], ends[partition]) for partition in partitions}

    def offsets_at_times(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return _or_none(self._offsets(times_ms))

    def offsets_at_versions(self, versions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return _or_none(self._offsets({partition: AtVersion(version) for partition, version in versions.items()}))

    def committed(self, group_id: str) -> Mapping[TopicPartition, int]:
        offsets = self._admin.list_group_offsets(group_id)
        return {partition: committed.offset for partition, committed in offsets.items()}

    def plan(self, ranges: Collection[OffsetRange]) -> list[InputRange]:
        if self._storage is None:
            return [InputRange(wanted, None, self._topic_ids.get(wanted.partition.topic)) for wanted in ranges]
        return self._storage.plan(ranges)

    def tell_progress(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._admin.alter_group_offsets(group_id, offsets)

    def close(self) -> None:
        self._admin.close()

    def _offsets(self, questions: Mapping[TopicPartition, OffsetQuestion]) -> dict[TopicPartition, int]:
        return {partition: found.offset for partition, found in self._admin.list_offsets(questions).items()}

    def _find_storage(self) -> StorageAccess | None:
        """The broker's own storage, if it is here too: a folder of that name may be another cluster's."""
        cluster = self._admin.describe_cluster()
        try:
            storage = StorageAccess(cluster.root_url)
        except RootNotUsable:
            return None
        return storage if storage.cluster_id == cluster.cluster_id else None


def _or_none(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    return {partition: offset if offset >= 0 else None for partition, offset in offsets.items()}
