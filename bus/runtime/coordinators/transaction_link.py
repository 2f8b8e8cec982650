"""From a partition or a group to the coordinator of a transaction, wherever that is: each part is added to the
transaction before anything of it is acknowledged (KIP-890).

The coordinator may be moving or loading. The producer knows nothing of it, so it is looked for here, until the time of
a request is up.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint
from bus.ports import Clock
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.group_coordinator import GroupCoordinator
from bus.runtime.coordinators.staged_sweeper import StagedSweeper
from bus.runtime.coordinators.transaction_coordinator import TransactionCoordinator
from bus.runtime.coordinators.transaction_driver import TransactionParticipants
from bus.runtime.metadata.peers import Peers, Traces, TransactionAddition, TransactionPeers
from bus.runtime.tasks import TaskScope
from bus.settings.broker import BrokerConfig
from bus.transactions.requests import Added, AddPartitions

_RETRY_S = 0.05
_MAY_PASS = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


@dataclass(frozen=True, slots=True)
class Transactions:
    """The parts of transactions on one broker, beside those in its partitions and groups."""

    coordinator: TransactionCoordinator
    participants: TransactionParticipants
    link: CoordinatorLink
    sweeper: StagedSweeper

    def start(self) -> None:
        self.coordinator.start()
        self.sweeper.start()

    def close(self) -> None:
        """Refuse waiting calls; other brokers, or the next life of this one, continue open transactions."""
        self.link.close()
        self.sweeper.stop()
        self.coordinator.close()


class CoordinatorLink:
    def __init__(
        self, own: BrokerEndpoint, coordinator: TransactionCoordinator, peers: TransactionPeers, *, timeout_ms: int
    ) -> None:
        self._own = own
        self._coordinator = coordinator
        self._peers = peers
        self._timeout_s = timeout_ms / 1000
        self._is_closed = False

    def close(self) -> None:
        """Nothing is tried again."""
        self._is_closed = True

    def partition_of(self, transactional_id: str) -> int | Refused:
        """The partition of `__transaction_state`. COORDINATOR_NOT_AVAILABLE if this broker does not know the topic:
        NOT_COORDINATOR would tell the client that this broker, which it addresses as a leader, is the wrong one."""
        number = self._coordinator.partition_of(transactional_id)
        if isinstance(number, Refused) and number.code is ErrorCode.NOT_COORDINATOR:
            return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, number.message)
        return number

    async def add(self, addition: TransactionAddition) -> Added | Refused:
        """REQUEST_TIMED_OUT if no coordinator has answered in time."""
        unknown = self.partition_of(addition.transactional_id)
        if isinstance(unknown, Refused):
            return unknown
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        while True:
            added = await self._add_once(addition, deadline_s - loop.time())
            if isinstance(added, Added) or added.code not in _MAY_PASS:
                return added
            if self._is_closed or loop.time() + _RETRY_S >= deadline_s:
                return Refused(ErrorCode.REQUEST_TIMED_OUT, f"the transaction's coordinator: {added.message}")
            await asyncio.sleep(_RETRY_S)

    def add_at_once(self, addition: AddPartitions) -> Added | None:
        """Added by the coordinator of this broker, without waiting. None: await `add`."""
        return self._coordinator.add_at_once(addition)

    async def find_needed(self, coordinator_partition: int, traces: Traces) -> Traces | Refused:
        """Return the part of `traces` that the coordinator of that partition of `__transaction_state` may need; refused
        unless it has loaded all transactions there."""
        coordinator = self._coordinator.find_partition(coordinator_partition)
        if isinstance(coordinator, Refused):
            return coordinator
        if coordinator.broker_id == self._own.broker_id:
            return await self._coordinator.find_needed(coordinator_partition, traces)
        return await self._peers.find_needed(coordinator, coordinator_partition, traces, timeout_s=self._timeout_s)

    async def _add_once(self, addition: TransactionAddition, timeout_s: float) -> Added | Refused:
        coordinator = self._coordinator.find_known(addition.transactional_id)
        if isinstance(coordinator, Refused):
            return coordinator
        if coordinator.broker_id != self._own.broker_id:
            return await self._peers.add_to_transaction(coordinator, addition, timeout_s=timeout_s)
        answer = await self._coordinator.add(addition)
        assert isinstance(answer, (Added, Refused)), f"expected an addition, found {answer}"
        return answer


def new_transactions(
    cluster: Cluster,
    config: BrokerConfig,
    peers: Peers,
    groups: GroupCoordinator,
    *,
    clock: Clock,
    calls: BlockingCalls,
    tasks: TaskScope,
) -> Transactions:
    participants = TransactionParticipants(cluster.host, groups, tasks)
    coordinator = TransactionCoordinator(cluster, config, peers, participants, clock=clock, calls=calls, tasks=tasks)
    link = CoordinatorLink(cluster.endpoint, coordinator, peers, timeout_ms=config.request_timeout_ms)
    sweeper = StagedSweeper(
        lambda: cluster.host.partitions,
        link,
        age_min_ms=config.transaction_max_timeout_ms,
        id_age_min_ms=config.transactional_id_expiration_ms,
        now_ms=cluster.retention_clock.now_ms,
        tasks=tasks,
    )
    return Transactions(coordinator, participants, link, sweeper)
