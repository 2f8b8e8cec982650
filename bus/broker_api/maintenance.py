"""The life of the log: records deleted, maintenance by hand, files swapped by a job.

Guards one promise: each partition that was asked for gets one answer. What may be done to a partition is the runtime's
to decide, and which files may be swapped the table's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence

from bus.broker_api.requests import BrokerStopping, gather_answers
from bus.cluster_metadata.configs import is_internal_topic
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.ports import SwapKind
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShares
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.partitions.maintenance import DeleteRecordsResult, FilesSwapped, MaintainResult, MaintenanceAction
from bus.runtime.tasks import answered

_NO_PARTITION = -1


class MaintenanceApi:
    """`jobs_max` partitions of one call are worked on at a time, so that a call that is given up leaves the rest.
    `stopping` begins when the broker is to stop."""

    def __init__(
        self,
        cluster: Cluster,
        stopping: Stopping,
        shares: LoopShares,
        *,
        jobs_max: int,
        request_timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._stopping = stopping
        self._shares = shares
        self._jobs_max = jobs_max
        self._request_timeout_ms = request_timeout_ms

    async def delete_records(self, offsets: Iterable[tuple[TopicPartition, int]]) -> list[DeleteRecordsResult]:
        """All partitions at once, so that a busy one holds up no other; each has the broker's request.timeout.ms."""
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
        self, topic: str, numbers: Iterable[int], action: MaintenanceAction
    ) -> AsyncGenerator[tuple[int, MaintainResult], None]:
        """Each partition's answer as it is finished; no `numbers`: all. Raises `BrokerStopping`."""
        waiting = deque(self.partitions_of(topic, numbers))
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
                    yield running.pop(answer), answer.result()
                if self._stopping.has_begun and (waiting or running):
                    raise BrokerStopping("the broker is stopping")

    def partitions_of(self, topic: str, numbers: Iterable[int]) -> Sequence[int]:
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
        self, name: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind
    ) -> FilesSwapped | Refused:
        partition = self._cluster.host.find(name)
        return partition if isinstance(partition, Refused) else await partition.swap_files(removes, adds, kind)
