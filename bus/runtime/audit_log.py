"""The audit log: what callers did, or were kept from, as rows of `__audit`.

Theory of operation. Callers of `add` put an event into memory and go on. A task of the broker appends the events of the
last second, or sooner if there are many, to the one partition of the topic, here or at the broker that leads it. Guards
two promises: no request waits for the audit or fails with it; events that could not be kept are counted in a row (see
security/audit_trail.py). The controller creates the topic; until it exists, rows wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bus.errors import ErrorCode, NotController, Refused
from bus.model import AUDIT_TOPIC, BrokerEndpoint, TopicPartition
from bus.partition_log.appends import ACKS_ALL
from bus.ports import Clock, KeyedRow
from bus.runtime.cluster import Cluster
from bus.runtime.metadata.peers import AuditPeers
from bus.runtime.tasks import TaskScope, time_limit
from bus.security.audit_trail import AuditEvent, AuditTrail, check_row, encode_event

_log = logging.getLogger(__name__)

_PARTITION = TopicPartition(AUDIT_TOPIC, 0)
_FLUSH_INTERVAL_S = 1.0
_ROWS_PER_APPEND = 1_000
_LAST_RETRY_S = 0.05
_LAST_FLUSH_S = 5.0
_APPEND_TIMEOUT_S = 10.0
_PORTION_BYTES = 2 << 20  # rows sent to another broker in one call
# The rows of a month, in few commits. They are stamped by the broker that writes them.
_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": str(30 * 86_400_000),
}


class AuditLog:
    """The audit of one broker, for one event loop. Call `start`, then `close`; without `audit.enable` it keeps and
    writes nothing."""

    def __init__(self, cluster: Cluster, peers: AuditPeers, *, clock: Clock, tasks: TaskScope) -> None:
        self.is_enabled = cluster.config.audit_enable
        self._cluster = cluster
        self._peers = peers
        self._clock = clock
        self._tasks = tasks
        self._trail = AuditTrail()
        self._writer: asyncio.Task[None] | None = None
        self._is_failing = False

    def start(self) -> None:
        if self.is_enabled:
            self._writer = self._tasks.start(self._write(), "audit")

    def add(self, event: AuditEvent, *, is_refused: bool = False) -> None:
        """A login, a change: a row of its own. `is_refused`: a change of which nothing was done."""
        if self.is_enabled:
            self._trail.add(event, is_refused=is_refused)

    def add_denial(self, event: AuditEvent) -> None:
        """A row of its own, but for those that repeat, which are counted."""
        if self.is_enabled:
            self._trail.add_denial(event)

    def add_grant(self, event: AuditEvent) -> None:
        """A read or a write that was allowed: it is counted."""
        if self.is_enabled:
            self._trail.add_grant(event)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def close(self) -> None:
        """Write the gathered rows, for some seconds at most, before the broker leaves what it leads."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.cancel()
        await asyncio.wait([writer])
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(_LAST_FLUSH_S):
                while await self._flush(is_last=True) or self._is_failing:
                    if self._is_failing:  # the partition may be on its way to another broker
                        await asyncio.sleep(_LAST_RETRY_S)

    async def append_rows(self, encoded: bytes) -> Refused | None:
        """A JSON list of rows of another broker, to the partition if it is led here."""
        try:
            rows = list(map(check_row, json.loads(encoded)))
        except (ValueError, TypeError) as error:
            return Refused(ErrorCode.INVALID_REQUEST, f"rows of the audit: {str(error)[:500]}")
        return await self._append_here(rows) if rows else None

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_INTERVAL_S)
            try:
                while await self._flush():
                    pass
            except Exception as error:
                _log.error("the audit could not be written, its rows wait", exc_info=error)

    async def _flush(self, *, is_last: bool = False) -> bool:
        """Write the next rows; True if more may be ready to be written."""
        events = self._trail.take(_ROWS_PER_APPEND, self._clock.now_ms(), is_last=is_last)
        if not events:
            return False
        try:
            refused = await self._append(events)
        except BaseException:
            # an interrupted append may have reached the log: a row may be there twice, but never not at all
            self._trail.put_back(events)
            raise
        if refused is None:
            self._is_failing = False
            return len(events) == _ROWS_PER_APPEND
        self._trail.put_back(events)
        if not self._is_failing:
            _log.warning("the audit cannot be written for now, its rows wait: %s", refused.message)
        self._is_failing = True
        return False

    async def _append(self, events: Sequence[AuditEvent]) -> Refused | None:
        rows = [encode_event(event, broker_id=self._cluster.endpoint.broker_id) for event in events]
        leader = await self._find_leader()
        if isinstance(leader, Refused):
            return leader
        if leader.broker_id == self._cluster.endpoint.broker_id:
            return await self._append_here(rows)
        for encoded in _portions(rows):
            refused = await self._peers.append_audit(leader, encoded, timeout_s=_APPEND_TIMEOUT_S)
            if refused is not None:
                return refused
        return None

    async def _find_leader(self) -> BrokerEndpoint | Refused:
        if AUDIT_TOPIC not in self._cluster.state.topics:
            try:
                created = await self._cluster.controller.create_internal_topic(
                    AUDIT_TOPIC, partitions=1, configs=_CONFIGS, kept={}
                )
            except NotController:
                return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the controller has not created __audit yet")
            if isinstance(created, Refused):
                return created
        leadership = self._cluster.state.leadership(_PARTITION)
        leader = None if leadership is None else self._cluster.state.brokers.get(leadership.leader_id)
        if leader is None:
            return Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{_PARTITION} has no leader for now")
        return leader.endpoint

    async def _append_here(self, rows: Sequence[Mapping[str, Any]]) -> Refused | None:
        partition = self._cluster.host.find(_PARTITION)
        if isinstance(partition, Refused):
            return partition
        keyed = [KeyedRow(row["principal"].encode(errors="replace"), row) for row in rows]
        batch = self._cluster.storage.keyed_rows(AUDIT_TOPIC).encode(keyed, now_ms=self._clock.now_ms())
        result = await partition.append(batch, acks=ACKS_ALL, current_leader_epoch=None, request_id="audit")
        return result if isinstance(result, Refused) else None


def _portions(rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """JSON lists, in order; none is much larger than a call may be."""
    texts: list[str] = []
    size = 0
    for row in rows:
        texts.append(json.dumps(row))
        size += len(texts[-1])
        if size >= _PORTION_BYTES:
            yield f"[{','.join(texts)}]".encode()
            texts, size = [], 0
    if texts:
        yield f"[{','.join(texts)}]".encode()
