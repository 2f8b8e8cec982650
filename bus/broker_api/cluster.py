"""What the other brokers of the cluster ask this one, and who the controller is."""

from __future__ import annotations

import asyncio

from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.errors import ErrorCode, NotController, Refused
from bus.model import BrokerEndpoint
from bus.runtime.audit_log import AuditLog
from bus.runtime.cluster import Cluster
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Registered
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.replicas.followed_tables import VersionsAnswer, VersionsRequest


class ClusterApi:
    def __init__(self, cluster: Cluster, stopping: Stopping, audit: AuditLog) -> None:
        self._cluster = cluster
        self._stopping = stopping
        self._audit = audit
        self.endpoint = cluster.endpoint

    @property
    def identity(self) -> BrokerIdentity:
        storage = self._cluster.storage
        return BrokerIdentity(storage.cluster_id, self.endpoint.broker_id, storage.incarnation)

    @property
    def controller(self) -> BrokerEndpoint | None:
        """None while none is known."""
        return self._cluster.metadata.controller

    @property
    def metadata_offset(self) -> int:
        """One past the last record of the cluster metadata that this broker has applied."""
        return self._cluster.metadata.applied_offset

    async def wait_until_applied(self, metadata_offset: int) -> None:
        await self._cluster.metadata.wait_until_applied(metadata_offset)

    async def register(self, command: RegisterBroker, *, cluster_id: str) -> Registered | Refused:
        return await self._cluster.heartbeats.register(command, cluster_id=cluster_id)

    async def raise_leader_epoch(self, command: RaiseLeaderEpoch) -> int | Refused:
        """See `decide_raise_leader_epoch`; NOT_CONTROLLER from any other broker."""
        try:
            return await self._cluster.controller.raise_leader_epoch(command)
        except NotController as error:
            return Refused(ErrorCode.NOT_CONTROLLER, str(error))

    async def append_audit(self, rows: bytes) -> Refused | None:
        """Rows of another broker."""
        return await self._audit.append_rows(rows)

    async def heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer | Refused:
        return await self._cluster.heartbeats.take(heartbeat)

    async def committed_versions(self, request: VersionsRequest) -> VersionsAnswer | Refused:
        """What this broker has committed as a leader, for a broker that follows, and says how far."""
        refused = self._cluster.host.in_sync.take(request.report)
        if refused is not None:
            return refused
        committed, wake = self._cluster.host.committed_versions, asyncio.Event()
        with self._stopping.waking(wake):
            if self._stopping.has_begun:
                return committed.answer(request)
            return await committed.wait(request, wake)
