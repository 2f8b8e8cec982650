"""The coordinator of transactions on one broker: which shard a transactional id belongs to, and what runs beside the
calls.

Theory of operation. A transactional id belongs to one partition of `__transaction_state`, and to its shard (shard.py)
on the broker that leads it (coordinated_topic.py). The topic is created when a first producer asks for its coordinator.
The rules (bus/transactions) decide; what they want done at other brokers, the driver (transaction_driver.py) has done.
An end and an initialisation wait in the rules until it is done everywhere.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bus.cluster_metadata.cluster_state import LEVEL_OF_ONE_PHASE, LEVEL_OF_RISING_NUMBERS, ClusterState
from bus.errors import ErrorCode, NotController, Refused
from bus.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, BrokerEndpoint, TopicPartition
from bus.ports import Clock
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.coordinated_topic import CoordinatedTopic, TopicPlan
from bus.runtime.coordinators.log import CoordinatorLog
from bus.runtime.coordinators.shard import CoordinatorShard
from bus.runtime.coordinators.transaction_driver import TransactionDriver, TransactionParticipants
from bus.runtime.metadata.peers import Peers, StepAnswer, StepKind, StepRequest, Traces, TransactionAddition
from bus.runtime.partitions.partition import Partition
from bus.runtime.tasks import TaskScope, answered, time_limit
from bus.settings.broker import BrokerConfig
from bus.transactions.bounds import TransactionBounds, TransactionTotals, check_transactional_id, coordinator_partition
from bus.transactions.changes import Finish, Resolve, TransactionNotice, TransactionRules
from bus.transactions.decisions import TransactionMachine
from bus.transactions.epochs import needs_producer_id
from bus.transactions.loading import TransactionCodec
from bus.transactions.records import LoggedRecord
from bus.transactions.requests import (
    Added,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    FenceProducer,
    InitProducerId,
    TransactionAnswer,
    TransactionCommand,
)
from bus.transactions.state import ProducerIdentity, Transaction, TransactionPartition

_log = logging.getLogger(__name__)

_LOG_S_MAX = 5.0

# Shards that commit at a time; the others gather meanwhile what will be one commit then. More than of groups: a
# transaction waits for several commits one after another, and the ids of few producers are spread over all shards.
COMMITS_MAX = 4

TransactionShard = CoordinatorShard[Transaction, TransactionCommand, LoggedRecord, TransactionAnswer, TransactionNotice]
TransactionTopic = CoordinatedTopic[Transaction, TransactionCommand, LoggedRecord, TransactionAnswer, TransactionNotice]


class TransactionCoordinator:
    """`start` once the cluster has; `close` before it ends."""

    def __init__(
        self,
        cluster: Cluster,
        config: BrokerConfig,
        peers: Peers,
        participants: TransactionParticipants,
        *,
        clock: Clock,
        calls: BlockingCalls,
        tasks: TaskScope,
    ) -> None:
        self._cluster = cluster
        self._peers = peers
        self._participants = participants
        self._clock = clock
        self._calls = calls
        self._tasks = tasks
        self._timeout_s = config.request_timeout_ms / 1000
        self._machine = TransactionMachine(
            TransactionRules(
                transaction_max_timeout_ms=config.transaction_max_timeout_ms,
                transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            )
        )
        self._totals = TransactionTotals(
            TransactionBounds(
                ids_max=config.transactional_ids_count_max, partitions_max=config.transaction_partitions_count_max
            )
        )
        self._commit_slots = asyncio.Semaphore(COMMITS_MAX)
        self._last_producer_id = -1  # that was taken here
        self._request_ids = itertools.count(1)
        self._topic: TransactionTopic = CoordinatedTopic(
            TopicPlan(TRANSACTION_STATE_TOPIC, "transactions", config.transaction_state_log_num_partitions, kept={}),
            cluster,
            tasks,
            new_shard=self._new_shard,
        )
        self._driver = TransactionDriver(
            cluster=lambda: cluster.state, ask=self._ask, take_producer_id=self._take_producer_id, tasks=tasks
        )

    def start(self) -> None:
        """Load the existing transactions in the background, and continue the open ones."""
        self._topic.start()

    async def log_all(self) -> None:
        """Before the broker leaves: its successors know of every transaction that is open, unless the log takes nothing
        in `_LOG_S_MAX`."""
        try:
            async with time_limit(_LOG_S_MAX):
                await self._topic.log_all()
        except asyncio.TimeoutError:
            _log.warning("%s takes no record; transactions that are open may be aborted", TRANSACTION_STATE_TOPIC)

    def close(self) -> None:
        """Refuse waiting calls and every new one; the next coordinator continues open transactions."""
        self._topic.close()
        self._driver.stop()

    # ------------------------------------------------------------------ where a transactional id is

    async def find(self, transactional_id: str) -> BrokerEndpoint | Refused:
        """Its coordinator. Creates `__transaction_state` if it is not there. Raises `NotController`."""
        refused = check_transactional_id(transactional_id) or await self._topic.prepare()
        if refused is not None:
            return refused
        return self._topic.find(self._number_of(transactional_id))

    def find_known(self, transactional_id: str) -> BrokerEndpoint | Refused:
        """The same, and nothing is created: NOT_COORDINATOR if this broker knows of no `__transaction_state`."""
        number = self.partition_of(transactional_id)
        return number if isinstance(number, Refused) else self._topic.find(number)

    def partition_of(self, transactional_id: str) -> int | Refused:
        """The partition of `__transaction_state`."""
        refused = check_transactional_id(transactional_id)
        if refused is not None:
            return refused
        return _not_here(transactional_id) if self._topic.topic is None else self._number_of(transactional_id)

    def _number_of(self, transactional_id: str) -> int:
        assert self._topic.topic is not None, "there is no partition without its topic"
        return _partition_of(transactional_id, len(self._topic.topic.partitions))

    def _shard_of(self, transactional_id: str) -> TransactionShard | Refused:
        number = self.partition_of(transactional_id)
        return number if isinstance(number, Refused) else self._topic.shard(number)

    # ------------------------------------------------------------------ calls

    def submit(self, command: TransactionCommand) -> asyncio.Future[TransactionAnswer]:
        """See `CoordinatorShard.submit`. For an id whose coordinator is elsewhere NOT_COORDINATOR."""
        shard = self._shard_of(command.transactional_id)
        return answered(shard) if isinstance(shard, Refused) else shard.submit(self._with_one_phase(command))

    def _with_one_phase(self, command: TransactionCommand) -> TransactionCommand:
        if isinstance(command, (AddPartitions, EndTransaction)) and self._cluster.state.level >= LEVEL_OF_ONE_PHASE:
            return replace(command, allows_one_phase=True)
        return command

    async def add(self, addition: TransactionAddition) -> TransactionAnswer:
        """Refused for what this broker has not heard of yet, and what is not there at all: a transaction ends only
        when all have answered that take part. Of a topic that it has heard of it knows when it is deleted, and so does
        every later coordinator, so none takes a new topic for one that is gone.

        What takes part already is answered from memory, so this broker has to prove that it leads: offsets that are
        added to a transaction that a successor has ended would be pending for ever."""
        unproved = await self._cluster.prove_leadership()
        if unproved is not None:
            return Refused(ErrorCode.NOT_COORDINATOR, unproved.message)
        unknown = self._find_unknown(addition)
        if unknown is not None:
            message = f"{addition.transactional_id}: {unknown} is not known here yet, or deleted"
            return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        return await self.submit(addition)

    def add_at_once(self, addition: AddPartitions) -> Added | None:
        """`add`, where neither the proof of leadership nor a commit has to be waited for. None: await `add`; it may
        refuse."""
        shard = self._shard_of(addition.transactional_id)
        if isinstance(shard, Refused) or not self._cluster.has_proved_leadership or self._find_unknown(addition):
            return None
        answer = shard.answer_at_once(self._with_one_phase(addition))
        return answer if isinstance(answer, Added) else None

    def _find_unknown(self, addition: TransactionAddition) -> TransactionPartition | TopicPartition | None:
        """Return a partition that the transaction would wait for and that this broker's metadata lack, if there is
        one."""
        cluster = self._cluster.state
        if isinstance(addition, AddPartitions):
            partitions = addition.partitions
            return next((each for each in partitions if not _is_in(cluster, each.name, each.topic_id)), None)
        offsets = TopicPartition(CONSUMER_OFFSETS_TOPIC, addition.group.offsets_partition)
        return None if _is_in(cluster, offsets) else offsets

    async def initialize(self, command: InitProducerId | FenceProducer) -> TransactionAnswer:
        """The command, with a new producer id if it needs one."""
        shard = self._shard_of(command.transactional_id)
        if isinstance(shard, Refused):
            return shard
        if shard.refusal is not None:
            return shard.refusal
        if needs_producer_id(shard.states.get(command.transactional_id), command):
            taken = await self._take_producer_id()
            if isinstance(taken, Refused):
                return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, taken.message)
            command = replace(command, new_producer_id=taken)
        begins_at_clock = self._cluster.state.level < LEVEL_OF_RISING_NUMBERS
        return await shard.submit(replace(command, begins_at_clock=begins_at_clock))

    def list_transactions(self) -> tuple[Iterator[Transaction], Refused | None]:
        """List the transactions of all partitions that this broker leads, as they are now, and the reason why some may
        be missing, if any."""
        refusals = [
            refused
            for shard in map(self._topic.shard, self._topic.led_here())
            if (refused := shard if isinstance(shard, Refused) else shard.refusal) is not None
        ]
        found = [transaction for shard in self._topic.serving() for transaction in shard.states.values()]
        return iter(found), (refusals[0] if refusals else None)

    def find_partition(self, number: int) -> BrokerEndpoint | Refused:
        """Return the leader of that partition of `__transaction_state`."""
        if self._topic.topic is None or not 0 <= number < len(self._topic.topic.partitions):
            return Refused(ErrorCode.NOT_COORDINATOR, f"{TRANSACTION_STATE_TOPIC}-{number} is not known here")
        return self._topic.find(number)

    async def find_needed(self, number: int, traces: Traces) -> Traces | Refused:
        """Find like `TransactionPeers.find_needed`. Traces that are not needed are deleted, so the answer rests on a
        new look at the metadata."""
        leader = await self._cluster.prove_leadership(by_new_look=True) or self.find_partition(number)
        if isinstance(leader, Refused):
            return leader
        shard = self._topic.shard(number)
        if isinstance(shard, Refused):
            return shard
        if shard.refusal is not None:
            return shard.refusal
        for transaction in _unresolved_of(shard.states, traces):
            # Any call has the partition asked; the next look of the leader finds the id resolved.
            shard.submit(DescribeTransaction(transaction.transactional_id))
        return needed_of(shard.states, traces)

    # ------------------------------------------------------------------ shards

    def _new_shard(self, number: int, partition: Partition) -> TransactionShard:
        rows = self._cluster.storage.keyed_rows(TRANSACTION_STATE_TOPIC)
        return CoordinatorShard(
            self._machine,
            CoordinatorLog(partition, rows, TransactionCodec(), clock=self._clock, calls=self._calls),
            self._totals,
            clock=self._clock,
            tasks=self._tasks,
            commit_slots=self._commit_slots,
            request_ids=self._request_ids,
            on_notice=functools.partial(self._on_notice, number),
        )

    def _on_notice(self, number: int, notice: TransactionNotice) -> None:
        self._driver.begin(
            notice,
            coordinator_partition=number,
            is_wanted=functools.partial(self._is_wanted, number, notice),
            submit=self.submit,
        )

    def _is_wanted(self, number: int, notice: TransactionNotice) -> bool:
        """True if the transaction still waits for this work, according to this coordinator."""
        shard = self._topic.shard(number)
        if isinstance(shard, Refused) or shard.refusal is not None:
            return False
        transaction = shard.states.get(notice.transactional_id)
        if transaction is None or transaction.number != notice.number:
            return False
        if isinstance(notice, Finish):
            return transaction.state.is_decided
        if isinstance(notice, Resolve):
            return transaction.is_unresolved
        return transaction.vote is not None and transaction.vote.vote_id == notice.vote_id

    # ------------------------------------------------------------------ other brokers

    async def _ask(self, broker: BrokerEndpoint, kind: StepKind, request: StepRequest) -> StepAnswer | Refused:
        if broker.broker_id == self._cluster.endpoint.broker_id:
            return await self._participants.step(kind, request)
        return await self._peers.step_transaction(broker, kind, request, timeout_s=self._timeout_s)

    async def _take_producer_id(self) -> int | Refused:
        """One that is larger than all before: an answer that has been under way for long, of a controller that stood
        still, may be overtaken."""
        while True:
            taken = await self._ask_for_producer_id()
            if isinstance(taken, Refused):
                return taken
            if taken > self._last_producer_id:
                self._last_producer_id = taken
                return taken

    async def _ask_for_producer_id(self) -> int | Refused:
        """From the controller, whichever broker that is."""
        try:
            identity = await self._cluster.producers.init(None)
            return identity if isinstance(identity, Refused) else identity.producer_id
        except NotController as error:
            controller = self._cluster.metadata.controller
            if controller is None or controller.broker_id == self._cluster.endpoint.broker_id:
                return Refused(ErrorCode.NOT_CONTROLLER, str(error))
        taken = await self._peers.take_producer_id(controller, timeout_s=self._timeout_s)
        if isinstance(taken, Refused):
            return taken
        await self._cluster.metadata.wait_until_applied(taken.metadata_offset)
        return taken.producer_id


def _unresolved_of(states: Mapping[str, Transaction], traces: Traces) -> list[Transaction]:
    """Those that keep rows in `traces` because their partition has not been asked yet."""
    return [each for each in states.values() if each.is_unresolved and any(map(each.may_need, traces.rows))]


def needed_of(states: Mapping[str, Transaction], traces: Traces) -> Traces:
    """Return what the transactional ids in `states`, which are all, may need of `traces`, and what has ended."""
    open_rows = {transaction.open_identity for transaction in states.values()}
    uncertain = [transaction for transaction in states.values() if transaction.is_uncertain]
    owners = {
        producer_id: transaction
        for transaction in states.values()
        for producer_id in (transaction.previous_producer_id, transaction.producer_id)
    }

    def is_needed(rows: ProducerIdentity) -> bool:
        return rows in open_rows or any(transaction.may_need(rows) for transaction in uncertain)

    def has_ended(rows: ProducerIdentity) -> bool:
        owner = owners.get(rows.producer_id)
        return owner is not None and owner.has_ended(rows)

    needed = frozenset(filter(is_needed, traces.rows))
    ended = frozenset(filter(has_ended, traces.rows - needed))
    return Traces(needed, traces.transactional_ids & states.keys(), ended)


def _is_in(cluster: ClusterState, name: TopicPartition, topic_id: str | None = None) -> bool:
    """`topic_id` None: not checked."""
    topic = cluster.topics.get(name.topic)
    if topic is None or topic_id not in (None, topic.topic_id):
        return False
    return 0 <= name.partition < len(topic.partitions)


def _not_here(transactional_id: str) -> Refused:
    message = f"{transactional_id}: no broker is known here that coordinates transactions; ask for the coordinator"
    return Refused(ErrorCode.NOT_COORDINATOR, message)


@functools.lru_cache(maxsize=65_536)
def _partition_of(transactional_id: str, count: int) -> int:
    """Remembered: the hash is computed letter by letter, and every batch asks for it."""
    return coordinator_partition(transactional_id, count)
