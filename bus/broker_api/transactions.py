"""Identities of producers and their transactions: the calls of producers, of administrators, and of other brokers.

What can be said of a request without its transaction is said here: how many items it may have, and that it names each
once. Guards one promise: an answer of a producer's call comes within the time of a request, and one that does not say
how the transaction ended may be repeated.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bus.broker_api.authorization import OF_CLUSTER, Access
from bus.broker_api.groups import GroupMember, PartitionOffset, find_partitions, outcomes_of, require_count
from bus.broker_api.requests import Items, gather_answers, info_at
from bus.cluster_metadata import producer_ids
from bus.consumer_groups import requests as groups
from bus.consumer_groups.bounds import PARTITIONS_MAX as GROUP_PARTITIONS_MAX
from bus.descriptions import FencedProducer, ProducerState, TransactionDescription, TransactionListing
from bus.errors import ErrorCode, Refused, StorageFault, show_names
from bus.model import SEQUENCE_MODULUS, BrokerEndpoint, ProducerStamp, TopicPartition
from bus.partition_log.appends import ACKS_NONE
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.group_coordinator import GroupCoordinator
from bus.runtime.coordinators.transaction_coordinator import TransactionCoordinator
from bus.runtime.coordinators.transaction_driver import TransactionParticipants
from bus.runtime.coordinators.transaction_link import CoordinatorLink
from bus.runtime.metadata.peers import StepAnswer, StepKind, StepRequest, Traces, TransactionAddition
from bus.runtime.partitions.partition_queue import ResumeResult
from bus.runtime.tasks import LoopShares, answered
from bus.transactions import requests as rq
from bus.transactions.bounds import PARTITIONS_MAX, check_step
from bus.transactions.decisions import TransactionFilter, list_transaction
from bus.transactions.state import ProducerIdentity, TransactionGroup, TransactionState


@dataclass(frozen=True, slots=True)
class ClaimedStamp:
    """The stamp of a batch, as its client names it. `producer_id` None: it names none."""

    producer_id: int | None
    producer_epoch: int
    base_sequence: int


class ProducerApi:
    """The identities of idempotent producers: which one a producer has, and where its records end.

    What comes from a client is checked here, once for every call that carries an identity: an id or an epoch that was
    never given, or that is out of range, gets no further. `request_timeout_ms`: for the answer of a partition.
    """

    def __init__(self, cluster: Cluster, shares: LoopShares, *, request_timeout_ms: int) -> None:
        self._cluster = cluster
        self._shares = shares
        self._request_timeout_ms = request_timeout_ms

    async def init(
        self,
        access: Access,
        name: str | None,
        *,
        producer_id: int | None,
        producer_epoch: int,
        keeps_epoch: bool,
        instance_id: bytes = b"",
    ) -> producer_ids.ProducerIdentity | Refused:
        """`producer_id` and `producer_epoch`: what the caller has been so far. It needs a right to the name, as if it
        were a transactional id, or to write at all."""
        refused = await access.refusal_of_request([name] if name else [], [] if name else OF_CLUSTER)
        if refused is not None:
            return refused
        if producer_epoch and producer_id is None:
            return _invalid(f"expected a producer id with producer epoch {producer_epoch}, found none")
        return await self._cluster.producers.init(
            name,
            producer_id=producer_id,
            producer_epoch=None if producer_id is None else producer_epoch,
            keeps_epoch=keeps_epoch,
            instance_id=instance_id,
        )

    async def resume(
        self, access: Access, producer_id: int, producer_epoch: int, partitions: Items[tuple[TopicPartition, str]]
    ) -> list[ResumeResult]:
        """An answer for each of `partitions`, with the id of its topic (empty: not checked). All are asked at once, so
        that a busy one holds up no other."""

        async def resume(permitted: Sequence[tuple[TopicPartition, str]]) -> list[ResumeResult]:
            return await self._resume(producer_id, producer_epoch, permitted)

        return await access.answer_items(partitions, lambda one: one[0].topic, resume)

    async def _resume(
        self, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[TopicPartition, str]]
    ) -> list[ResumeResult]:
        refused = check_identity(producer_id, producer_epoch) or self._cluster.producers.check(
            ProducerStamp(producer_id, producer_epoch, 0)
        )
        refused = refused or await self._cluster.prove_leadership()
        answers: list[asyncio.Future[ResumeResult]] = []
        share = self._shares.begin()

        def ask(name: TopicPartition, topic_id: str) -> asyncio.Future[ResumeResult]:
            partition = refused or self._cluster.host.find(name, topic_id)
            if isinstance(partition, Refused):
                return answered(partition)
            return partition.resume_producer(producer_id, producer_epoch)

        await share.extend(answers, itertools.starmap(ask, partitions))
        return await gather_answers(
            answers,
            timeout_ms=self._request_timeout_ms,
            otherwise=f"what was queued before was not committed within {self._request_timeout_ms} ms",
            share=share,
        )


def check_stamp(claimed: ClaimedStamp, acks: int) -> ProducerStamp | Refused | None:
    """None if the batch is of no idempotent producer."""
    if claimed.producer_id is None:
        if claimed.producer_epoch or claimed.base_sequence:
            return _invalid(
                f"expected a producer id with producer epoch {claimed.producer_epoch} and base sequence "
                f"{claimed.base_sequence}, found none"
            )
        return None
    refused = check_identity(claimed.producer_id, claimed.producer_epoch)
    if refused is not None:
        return refused
    if claimed.base_sequence < 0:
        return _invalid(f"expected a base sequence from 0 to {SEQUENCE_MODULUS - 1}, found {claimed.base_sequence}")
    if acks == ACKS_NONE:
        return _invalid(
            f"expected acks -1 or 1 of idempotent producer {claimed.producer_id}, found 0: it would learn of no gap"
        )
    return ProducerStamp(claimed.producer_id, claimed.producer_epoch, claimed.base_sequence)


def check_identity(producer_id: int, producer_epoch: int) -> Refused | None:
    if producer_id < 0:
        return _invalid(f"expected a producer id from 0 on, found {producer_id}")
    if not 0 <= producer_epoch <= producer_ids.PRODUCER_EPOCH_MAX:
        epochs = f"from 0 to {producer_ids.PRODUCER_EPOCH_MAX}"
        return _invalid(f"expected a producer epoch {epochs}, found {producer_epoch}")
    return None


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, message)


def _named_twice(what: str, name: str) -> Refused:
    return _invalid(f"expected each {what} once in a request, found {show_names([name])} more than once")


IDS_MAX = 1_000  # transactional ids, or partitions, of a request of administrators
STATES_MAX = 100


@dataclass(frozen=True, slots=True)
class ListedTransactions:
    """`refused`: why some may be missing."""

    transactions: Sequence[TransactionListing]
    unknown_states: Sequence[str]
    refused: Refused | None


class TransactionApi:
    def __init__(
        self,
        cluster: Cluster,
        coordinator: TransactionCoordinator,
        participants: TransactionParticipants,
        link: CoordinatorLink,
        groups: GroupCoordinator,
        shares: LoopShares,
        *,
        now_ms: Callable[[], int],
        request_timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._participants = participants
        self._link = link
        self._groups = groups
        self._shares = shares
        self._now_ms = now_ms
        self._timeout_ms = request_timeout_ms
        self.endpoint = cluster.endpoint

    async def find_coordinator(self, access: Access, transactional_id: str) -> BrokerEndpoint | Refused:
        """Raises `NotController`."""
        refused = await access.refusal_of_request([], [transactional_id])
        return refused or await self._coordinator.find(transactional_id)

    # ------------------------------------------------------------------ producers

    async def init_producer(
        self, access: Access, transactional_id: str, timeout_ms: int, *, producer_id: int | None, producer_epoch: int
    ) -> ProducerIdentity | Refused:
        """`producer_id` None: a new instance. CONCURRENT_TRANSACTIONS if what was open could not be ended in time."""
        refused = await access.refusal_of_request([transactional_id], [])
        if refused is not None:
            return refused
        command = rq.InitProducerId(transactional_id, timeout_ms)
        if producer_id is not None:
            refused = check_identity(producer_id, producer_epoch)
            if refused is not None:
                return refused
            command = rq.InitProducerId(transactional_id, timeout_ms, producer_id, producer_epoch)
        return await self._initialize(command)

    async def _initialize(self, command: rq.InitProducerId | rq.FenceProducer) -> ProducerIdentity | Refused:
        asked = asyncio.ensure_future(self._coordinator.initialize(command))
        answer = await self._wait(asked, ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction before it has not ended")
        if isinstance(answer, Refused):
            return answer
        assert isinstance(answer, rq.ProducerInitialized), f"expected an identity, found {answer}"
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    async def commit_offsets(
        self,
        access: Access,
        transactional_id: str,
        identity: ProducerIdentity,
        member: GroupMember,
        offsets: Items[PartitionOffset],
        *,
        sequence: int,
    ) -> list[Refused | None]:
        """Return for each partition why its offset is not pending in the transaction; None if it is. Raises
        `InvalidArgument` for more partitions than a request may name."""
        require_count(len(offsets), GROUP_PARTITIONS_MAX, "partitions")
        refused = await access.refusal_of_request([transactional_id], [member.group_id])
        found = await find_partitions(access, offsets, self._cluster, self._shares, refused)
        command = groups.TxnOffsetCommit(
            member.group_id,
            groups.TransactionKey(identity.producer_id, identity.producer_epoch),
            sequence,
            member.generation,
            member.member_id,
            member.group_instance_id,
            tuple(item for item in found if not isinstance(item, Refused)),
        )
        answer: groups.GroupAnswer = groups.OffsetsCommitted(())
        if command.offsets:
            answer = await self._commit_offsets(transactional_id, identity, command)
        return outcomes_of(found, answer)

    async def _commit_offsets(
        self, transactional_id: str, identity: ProducerIdentity, command: groups.TxnOffsetCommit
    ) -> groups.GroupAnswer:
        async def admit(offsets_partition: int) -> Refused | None:
            group = TransactionGroup(command.group_id, offsets_partition)
            who = identity.producer_id, identity.producer_epoch
            added = await self._link.add(rq.AddOffsets(transactional_id, *who, group))
            return added if isinstance(added, Refused) else None

        refused = check_identity(identity.producer_id, identity.producer_epoch)
        return refused or await self._groups.commit_in_transaction(command, admit)

    async def end(
        self,
        access: Access,
        transactional_id: str,
        identity: ProducerIdentity,
        *,
        is_commit: bool,
        last_sequences: Items[tuple[TopicPartition, int]],
    ) -> rq.TransactionEnded | Refused:
        """REQUEST_TIMED_OUT: the same call has to be repeated, and no other."""
        refused = await access.refusal_of_request([transactional_id]) or check_identity(
            identity.producer_id, identity.producer_epoch
        )
        if refused is not None:
            return refused
        if len(last_sequences) > PARTITIONS_MAX:
            found = f"expected at most {PARTITIONS_MAX} partitions, found {len(last_sequences)}"
            return Refused(ErrorCode.INVALID_REQUEST, found)
        ends = dict(last_sequences)
        if len(ends) < len(last_sequences):
            return Refused(ErrorCode.INVALID_REQUEST, "expected each partition once, found one more than once")
        command = rq.EndTransaction(
            transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            is_commit,
            ends if is_commit else {},
        )
        return await self._wait_for_end(self._coordinator.submit(command))

    async def _wait_for_end(self, asked: asyncio.Future[rq.TransactionAnswer]) -> rq.TransactionEnded | Refused:
        answer = await self._wait(asked, ErrorCode.REQUEST_TIMED_OUT, "the transaction is not ended everywhere yet")
        assert isinstance(answer, (rq.TransactionEnded, Refused)), f"expected the end, found {answer}"
        return answer

    async def _wait(
        self, asked: asyncio.Future[rq.TransactionAnswer], late: ErrorCode, reason: str
    ) -> rq.TransactionAnswer:
        """Wait for an answer for as long as a request takes. What is decided goes on, also if the answer comes too late
        for this caller."""
        try:
            await asyncio.wait([asked], timeout=self._timeout_ms / 1000)
            if asked.done():
                return asked.result()
            return Refused(late, f"{reason}, after {self._timeout_ms} ms; repeat the call")
        finally:
            asked.cancel()

    # ------------------------------------------------------------------ administration

    async def list_transactions(
        self, access: Access, states: Items[str], producer_ids: Items[int], *, duration_ms: int
    ) -> ListedTransactions:
        """Return those of the coordinators on this broker that the caller may see. Raises `InvalidArgument` for too
        many filters."""
        require_count(len(states), STATES_MAX, "states")
        require_count(len(producer_ids), IDS_MAX, "producer ids")
        known = {state.value for state in TransactionState}
        unknown = [state for state in states if state not in known]
        unproved = await self._prove()
        if unproved is not None:
            return ListedTransactions((), unknown, unproved)
        wanted = TransactionFilter(frozenset(states), frozenset(producer_ids), duration_ms if duration_ms > 0 else -1)
        there, refused = self._coordinator.list_transactions()
        now_ms, listed = self._now_ms(), list[TransactionListing]()
        own_id = self.endpoint.broker_id
        matching = (list_transaction(each, own_id) for each in there if wanted.matches(each, now_ms=now_ms))
        await self._shares.begin().extend(listed, matching)
        visible = await access.filter_visible(listed, lambda one: one.transactional_id)
        return ListedTransactions(visible, unknown, refused)

    async def describe_transactions(
        self, access: Access, transactional_ids: Items[str], listener: str
    ) -> list[TransactionDescription | Refused]:
        """Describe each, with those topics and groups that the caller may see, and with this broker's address for
        clients of the listener. Raises `InvalidArgument` for too many ids."""
        require_count(len(transactional_ids), IDS_MAX, "transactional ids")
        of_topics, of_groups = access.call.view_needs

        async def describe(permitted: Sequence[str]) -> list[TransactionDescription | Refused]:
            unproved = await self._prove()
            named: set[str] = set()
            answers: list[TransactionDescription | Refused] = []
            for name in permitted:
                again = _named_twice("transactional id", name) if name in named else None
                answers.append(again or unproved or await self._describe(name, listener))
                named.add(name)
            return answers

        async def visible(found: TransactionDescription) -> TransactionDescription:
            partitions = await access.filter_visible(found.partitions, lambda one: one.topic, of_topics)
            group_ids = await access.filter_visible(found.group_ids, str, of_groups)
            return replace(found, partitions=tuple(partitions), group_ids=tuple(group_ids))

        answers = await access.answer_items(transactional_ids, str, describe)
        return [answer if isinstance(answer, Refused) else await visible(answer) for answer in answers]

    async def _describe(self, transactional_id: str, listener: str) -> TransactionDescription | Refused:
        number = self._coordinator.partition_of(transactional_id)
        if isinstance(number, Refused):
            return number
        answer = await self._coordinator.submit(rq.DescribeTransaction(transactional_id))
        assert isinstance(answer, (rq.DescribedTransaction, Refused)), f"expected a description, found {answer}"
        return answer if isinstance(answer, Refused) else self._description(answer, number, listener)

    def _description(self, found: rq.DescribedTransaction, number: int, listener: str) -> TransactionDescription:
        return TransactionDescription(
            transactional_id=found.transactional_id,
            coordinator=info_at(listener, self.endpoint),
            coordinator_partition=number,
            state=found.state,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            timeout_ms=found.timeout_ms,
            start_ms=found.start_ms,
            update_ms=found.update_ms,
            number=found.number,
            partitions=tuple(sorted(TopicPartition(one.topic, one.partition) for one in found.partitions)),
            group_ids=tuple(sorted(found.groups)),
        )

    async def abort(self, access: Access, transactional_id: str, expected: ProducerIdentity | None) -> Refused | None:
        async def abort() -> rq.TransactionEnded | Refused:
            command = rq.AbortTransaction(transactional_id, expected)
            return await self._wait_for_end(self._coordinator.submit(command))

        answer = await access.change(transactional_id, abort, OF_CLUSTER)
        return answer if isinstance(answer, Refused) else None

    async def fence(self, access: Access, transactional_ids: Items[str]) -> list[FencedProducer | Refused]:
        """All at once. Raises `InvalidArgument` for too many ids."""
        require_count(len(transactional_ids), IDS_MAX, "transactional ids")

        async def fence(transactional_id: str) -> FencedProducer | Refused:
            answer = await self._initialize(rq.FenceProducer(transactional_id))
            return answer if isinstance(answer, Refused) else FencedProducer(answer.producer_id, answer.producer_epoch)

        async def fence_all(permitted: Sequence[str]) -> list[FencedProducer | Refused]:
            return await asyncio.gather(*map(fence, permitted))

        return await access.change_items(transactional_ids, str, fence_all)

    async def describe_producers(
        self, access: Access, partitions: Items[TopicPartition]
    ) -> list[list[ProducerState] | Refused]:
        """Return for each partition the producers whose records are in the log, as far as memory knows them, and what
        is staged beside it, also if no transaction needs it any more; by producer id. Raises `InvalidArgument` for too
        many partitions."""
        require_count(len(partitions), IDS_MAX, "partitions")
        return await access.answer_items(partitions, lambda one: one.topic, self._describe_producers)

    async def _describe_producers(self, partitions: Sequence[TopicPartition]) -> list[list[ProducerState] | Refused]:
        unproved = await self._cluster.prove_leadership()
        if unproved is not None:
            return [unproved] * len(partitions)
        asked = dict.fromkeys(partitions)
        found = dict(zip(asked, await asyncio.gather(*map(self._producers_of, asked)), strict=True))
        return [found.pop(name) if name in found else _named_twice("partition", str(name)) for name in partitions]

    async def _producers_of(self, name: TopicPartition) -> list[ProducerState] | Refused:
        partition = self._cluster.host.find(name)
        if isinstance(partition, Refused):
            return partition
        if partition.stopped is not None:
            return partition.stopped
        found: list[ProducerState] = []
        await self._shares.begin().extend(
            found,
            (
                ProducerState(producer_id, state.producer_epoch, state.last_sequence, state.last_append_ms, None, 0)
                for producer_id, state in partition.producers.items()
            ),
        )
        try:
            staged = await partition.transactions.list_staged()
        except StorageFault as fault:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {fault}")
        found += [
            ProducerState(
                key.producer_id,
                key.producer_epoch,
                known.last_sequence,
                known.newest_ms,
                key.coordinator_partition,
                known.size_bytes,
            )
            for key, known in staged
        ]
        return sorted(found, key=lambda each: (each.producer_id, each.producer_epoch))

    async def _prove(self) -> Refused | None:
        refused = await self._cluster.prove_leadership()
        return None if refused is None else Refused(ErrorCode.NOT_COORDINATOR, refused.message)

    # ------------------------------------------------------------------ other brokers

    async def add(
        self, access: Access, transactions: Sequence[Sequence[TransactionAddition]]
    ) -> list[rq.Added | Refused]:
        """An answer for each transaction, which is the first refusal of what is to be added to it, if there is one."""
        refused = await access.refusal_of_request(OF_CLUSTER)
        return [refused or await self._add(additions) for additions in transactions]

    async def _add(self, additions: Iterable[TransactionAddition]) -> rq.Added | Refused:
        found = await asyncio.gather(*map(self._coordinator.add, additions))
        refused = next((answer for answer in found if isinstance(answer, Refused)), None)
        alone = all(isinstance(answer, rq.Added) and answer.may_be_one_phase for answer in found)
        return refused or rq.Added(may_be_one_phase=alone)

    async def step(self, access: Access, kind: StepKind, request: StepRequest) -> StepAnswer:
        """Refused as a whole for what no coordinator asks: its number is written to the log of the partition's table,
        where one that is too large would make the log unreadable."""
        refused = (
            await access.refusal_of_request(OF_CLUSTER)
            or check_step(request.transactional_id, request.number, request.coordinator_partition)
            or check_identity(request.producer_id, request.producer_epoch)
        )
        if refused is not None:
            return StepAnswer([refused] * len(request.partitions), [refused] * len(request.groups))
        return await self._participants.step(kind, request)

    async def find_needed(self, access: Access, coordinator_partition: int, traces: Traces) -> Traces | Refused:
        """See `TransactionPeers.find_needed`; refused unless this broker is the coordinator."""
        refused = await access.refusal_of_request(OF_CLUSTER)
        return refused or await self._coordinator.find_needed(coordinator_partition, traces)
