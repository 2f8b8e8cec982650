"""The life of the log: records deleted, maintenance by hand, files swapped by a job, what it takes in the root.

Guards one promise: each partition that was asked for gets one answer. What may be done to a partition is the runtime's
to decide, and which files may be swapped the table's.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence

from bus.broker_api.authorization import OF_CLUSTER, Access
from bus.broker_api.requests import BrokerStopping, Items, gather_answers
from bus.cluster_metadata.cluster_decisions import check_managed_tables
from bus.cluster_metadata.cluster_state import ClusterState
from bus.cluster_metadata.configs import is_internal_topic
from bus.descriptions import LogDirDescription, ReplicaInfo
from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.ports import Storage, SwapKind, TableFiles, Volume
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.partitions.maintenance import DeleteRecordsResult, FilesSwapped, MaintainResult, MaintenanceAction
from bus.runtime.tasks import LoopShares, answered

_NO_PARTITION = -1
# Tables that are measured in one go, in the thread of the short work of maintenance, which waits for no longer.
_MEASURED_AT_ONCE = 16
_FOLLOWER = ReplicaInfo(False, 0, 0, 0)  # the folder of a table is its leader's to count


def replicas_on(broker_id: int, state: ClusterState, topics: Iterable[str]) -> Iterator[tuple[TopicPartition, bool]]:
    """The partitions of the topics that the broker leads (True) or follows; no topics: all, and the cluster's metadata
    where the broker is the controller. A topic that is not there has none."""
    named = dict.fromkeys(topics)
    controller_id = broker_id if state.controller is None else state.controller.broker_id
    if controller_id == broker_id and (not named or CLUSTER_METADATA_TOPIC in named):
        yield TopicPartition(CLUSTER_METADATA_TOPIC, 0), True
    for topic in filter(None, map(state.topics.get, named)) if named else state.topics.values():
        for number, leadership in enumerate(topic.partitions):
            is_leader = leadership.leader_id == broker_id
            if is_leader or broker_id in topic.replicas(number):
                yield TopicPartition(topic.name, number), is_leader


class MaintenanceApi:
    """`jobs_max` partitions of one call are worked on at a time, so that a call that is given up leaves the rest.
    `stopping` begins when the broker is to stop."""

    def __init__(
        self,
        cluster: Cluster,
        stopping: Stopping,
        shares: LoopShares,
        calls: BlockingCalls,
        *,
        jobs_max: int,
        request_timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._stopping = stopping
        self._shares = shares
        self._calls = calls
        self._jobs_max = jobs_max
        self._request_timeout_ms = request_timeout_ms

    async def delete_records(
        self, access: Access, offsets: Items[tuple[TopicPartition, int]]
    ) -> list[DeleteRecordsResult]:
        """All partitions at once, so that a busy one holds up no other; each has the broker's request.timeout.ms."""
        return await access.change_items(
            offsets, lambda one: one[0].topic, self._delete_records, changed_name=lambda one: str(one[0])
        )

    async def _delete_records(self, offsets: Sequence[tuple[TopicPartition, int]]) -> list[DeleteRecordsResult]:
        answers: list[asyncio.Future[DeleteRecordsResult]] = []
        share = self._shares.begin()
        await share.extend(answers, (self._delete(name, offset) for name, offset in offsets))
        return await gather_answers(
            answers,
            timeout_ms=self._request_timeout_ms,
            otherwise=f"the records were not deleted within {self._request_timeout_ms} ms; they may be later",
            share=share,
        )

    def _delete(self, name: TopicPartition, offset: int) -> asyncio.Future[DeleteRecordsResult]:
        partition = self._cluster.host.find(name)
        if isinstance(partition, Refused):
            return answered(partition)
        if is_internal_topic(name.topic):
            message = f"expected a topic of a user, found {name.topic}: its records are the bus's own"
            return answered(Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, message))
        return partition.delete_records(offset)

    async def maintain(
        self,
        access: Access,
        topic: str,
        numbers: Iterable[int],
        action: MaintenanceAction,
        note_count: Callable[[int], object] = lambda _: None,
    ) -> AsyncGenerator[tuple[int, MaintainResult], None]:
        """Each partition's answer as it is finished; no `numbers`: all. `note_count` gets how many there are before
        their work begins, if the caller may know it. Raises `BrokerStopping`."""
        access.changes.begin(lambda: [topic])
        refused = await access.refusal_of_request([topic])
        if refused is not None:
            yield _NO_PARTITION, refused
            return
        if action is MaintenanceAction.UPGRADE:
            refused = check_managed_tables(self._cluster.state)
            if refused is not None:
                yield _NO_PARTITION, refused
                return
        waiting = deque(self._partitions_of(topic, numbers))
        note_count(len(waiting))
        running: dict[asyncio.Future[MaintainResult], int] = {}
        wake = asyncio.Event()
        with self._stopping.waking(wake):
            while waiting or running:
                while waiting and len(running) < self._jobs_max:
                    number = waiting.popleft()
                    answer = self._maintain(TopicPartition(topic, number), action)
                    answer.add_done_callback(lambda _: wake.set())
                    running[answer] = number
                if not self._stopping.has_begun:
                    await wake.wait()
                    wake.clear()
                for answer in [answer for answer in running if answer.done()]:
                    number, result = running.pop(answer), answer.result()
                    access.changes.report_part(str(TopicPartition(topic, number)), result)
                    yield number, result
                if self._stopping.has_begun and (waiting or running):
                    raise BrokerStopping("the broker is stopping")
        access.changes.report(dict)

    def _partitions_of(self, topic: str, numbers: Iterable[int]) -> Sequence[int]:
        """One at least: what is not there is answered, too."""
        named = list(dict.fromkeys(numbers))
        if named:
            return named
        found = self._cluster.state.topics.get(topic)
        return [_NO_PARTITION] if found is None else range(len(found.partitions))

    def _maintain(self, name: TopicPartition, action: MaintenanceAction) -> asyncio.Future[MaintainResult]:
        partition = self._cluster.host.find(name)
        return answered(partition) if isinstance(partition, Refused) else partition.maintain(action)

    async def swap_files(
        self, access: Access, name: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind
    ) -> FilesSwapped | Refused:
        async def swap() -> FilesSwapped | Refused:
            partition = self._cluster.host.find(name)
            return partition if isinstance(partition, Refused) else await partition.swap_files(removes, adds, kind)

        return await access.change(str(name), swap, [name.topic], [name.topic])

    async def describe_log_dirs(
        self, access: Access, topics: Iterable[str]
    ) -> Mapping[str, LogDirDescription] | Refused:
        """Return the root, by its path, with what the partitions of the topics, or all, take in it. Does not wait for a
        proof that this broker still leads them: operators ask for it when the volume is full, and then no broker can
        prove anything."""
        refused = await access.refusal_of_request(OF_CLUSTER)
        if refused is not None:
            return refused
        storage, broker_id = self._cluster.storage, self._cluster.endpoint.broker_id
        volume = await self._calls.housekeep(functools.partial(_measure_volume, storage))
        here: list[tuple[TopicPartition, bool]] = await self._shares.begin().extend(
            [], replicas_on(broker_id, self._cluster.state, topics)
        )
        replicas = dict.fromkeys((name for name, _ in here), _FOLLOWER)
        led = [name for name, is_leader in here if is_leader]
        for first in range(0, len(led), _MEASURED_AT_ONCE):
            names = led[first : first + _MEASURED_AT_ONCE]
            found = await self._calls.housekeep(functools.partial(_measure_files, storage, names))
            replicas.update((name, self._measured(name, files)) for name, files in zip(names, found, strict=True))
        return {storage.root_url: _log_dir(volume, replicas)}

    def _measured(self, name: TopicPartition, files: TableFiles | Refused) -> ReplicaInfo:
        """A file may have come or gone since the files were counted."""
        if isinstance(files, Refused):
            return ReplicaInfo(True, 0, 0, 0, files)
        live_bytes = self._live_bytes(name)
        reclaimable_bytes = None if live_bytes is None else max(0, files.data_bytes - live_bytes)
        return ReplicaInfo(True, files.size_bytes, files.file_count, reclaimable_bytes)

    def _live_bytes(self, name: TopicPartition) -> int | None:
        if name.topic == CLUSTER_METADATA_TOPIC:
            return self._cluster.metadata.state.size_bytes
        partition = self._cluster.host.find(name)
        return None if isinstance(partition, Refused) else partition.live_bytes


def _log_dir(volume: Volume | Refused | None, replicas: Mapping[TopicPartition, ReplicaInfo]) -> LogDirDescription:
    """`volume`: None where the root is bounded by memory alone."""
    match volume:
        case None:
            return LogDirDescription(None, None, replicas)
        case Refused():
            return LogDirDescription(None, None, replicas, volume)
        case Volume():
            return LogDirDescription(volume.total_bytes, volume.usable_bytes, replicas)


def _measure_volume(storage: Storage) -> Volume | Refused | None:
    """Measure the volume of the root. Runs in a thread."""
    try:
        return storage.measure_volume()
    except StorageFault as fault:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))


def _measure_files(storage: Storage, names: Sequence[TopicPartition]) -> list[TableFiles | Refused]:
    """Measure the files of these partitions. Runs in a thread."""
    found: list[TableFiles | Refused] = []
    for name in names:
        try:
            found.append(storage.measure_files(name))
        except StorageFault as fault:
            found.append(Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {fault}"))
    return found
