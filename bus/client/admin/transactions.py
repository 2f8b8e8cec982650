"""The administrator's calls about transactions (KIP-664), to the coordinators of transactional ids and to the leaders
of partitions.

Guards two promises: of several items all are tried, and one `BusError` tells of those that failed; and an operator who
aborts never hits a later transaction than the one that was looked at, however often the call has to be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from bus.client.admin.broker_calls import NOTHING_DONE, CoordinatorAnswer, answered_items
from bus.client.admin.groups import GroupAdmin
from bus.client.arguments import (
    INT_64_MAX,
    check_integer,
    check_items,
    check_text,
    check_texts,
    check_topic_partitions,
    wrong_value,
)
from bus.client.connection.leader_calls import ask_leaders
from bus.client.connection.metadata_cache import error_of
from bus.descriptions import (
    FencedProducer,
    GroupDescription,
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import FENCED_PRODUCER, PRODUCER, TRANSACTION, TRANSACTION_LISTING, encode_partitions
from bus.model import TopicPartition

_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
_UNREADABLE = "Unreadable"
# The leader looks into a folder for each.
_PARTITIONS_MAX = 200
# The decision stands, or is about to; the same call tells of its end.
_UNDER_WAY = {*NOTHING_DONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT}

_Producers = tuple[ProducerState, ...]


class TransactionAdmin(GroupAdmin):
    """Transactions stand on groups, in which their offsets are pending."""

    def list_transactions(
        self, states: Iterable[str] = (), producer_ids: Iterable[int] = (), *, duration_ms: int = 0
    ) -> list[TransactionListing]:
        """All transactional ids, or those that fit all that is given (KIP-664), sorted: in one of `states`, with one of
        `producer_ids`, with a transaction that has been open for longer than `duration_ms` (KIP-994). Raises
        INVALID_REQUEST for a state that there is not."""
        request = pb.ListTransactionsRequest(
            states=check_texts("states", states),
            producer_ids=check_items("producer_ids", producer_ids, _check_producer_id, "integers"),
            duration_ms=check_integer("duration_ms", duration_ms, 0, INT_64_MAX),
        )
        return self._list_transactions(request)

    def _list_transactions(
        self, request: pb.ListTransactionsRequest, deadline_ms: float | None = None
    ) -> list[TransactionListing]:
        found = self._calls.ask_each("ListTransactions", request, _decode_listed, deadline_ms)
        by_id = {one.transactional_id: one for one in found}
        return [by_id[name] for name in sorted(by_id)]

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Return them by id, in the order of `transactional_ids`. Raises TRANSACTIONAL_ID_NOT_FOUND for an id that was
        never initialised, or has expired."""
        answers = self._ask_to_describe(check_texts("transactional_ids", transactional_ids))
        return {name: TRANSACTION.decode(one) for name, one in answered_items(answers).items()}

    def _ask_to_describe(self, transactional_ids: Iterable[str]) -> dict[str, CoordinatorAnswer]:
        return self._calls.transactions.ask(
            "DescribeTransactions",
            transactional_ids,
            lambda ids: pb.DescribeTransactionsRequest(transactional_ids=ids),
            lambda response: map(_answer_of, response.transactions),
        )

    def describe_producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Return the producers that have records in each of these partitions, or staged beside it, by producer id."""
        named = check_topic_partitions("partitions", partitions)
        return self._describe_producers(named, self._calls.deadline_ms())

    def _describe_producers(
        self, partitions: Iterable[TopicPartition], deadline_ms: float
    ) -> dict[TopicPartition, _Producers]:
        cluster = self._calls.cluster

        def ask(address: str, some: Sequence[TopicPartition]) -> Iterator[tuple[TopicPartition, _Producers | BusError]]:
            request = pb.DescribeProducersRequest(topics=encode_partitions(some))
            response = cluster.call("DescribeProducers", request, address=address, deadline_ms=deadline_ms)
            for answer in response.partitions:
                yield TopicPartition(answer.topic, answer.partition), _decode_producers(answer)

        return ask_leaders(cluster, partitions, ask, deadline_ms=deadline_ms, count_max=_PARTITIONS_MAX)

    # ------------------------------------------------------------ what ends them

    def abort_transaction(
        self, transactional_id: str, *, producer_id: int | None = None, producer_epoch: int | None = None
    ) -> TransactionDescription:
        """End the open transaction of an id without its producer, and with nothing of it in any partition or group;
        what it was. The producer's next call is refused with TRANSACTION_ABORTABLE, and it may begin again. With
        `producer_id` and `producer_epoch` only the transaction of these.

        Raises INVALID_TXN_STATE if none is open, or another one, or if it is decided that it is committed;
        TRANSACTIONAL_ID_NOT_FOUND.
        """
        check_text("transactional_id", transactional_id)
        if (producer_id is None) != (producer_epoch is None):
            raise wrong_value("producer_id and producer_epoch, or neither", (producer_id, producer_epoch))
        found = self.describe_transactions([transactional_id])[transactional_id]
        if producer_id is not None:
            _check_producer_id("producer_id", producer_id)
            producer_epoch = check_integer("producer_epoch", producer_epoch, 0)
        elif found.state in ("Ongoing", "PrepareAbort"):
            producer_id, producer_epoch = found.producer_id, found.open_epoch
        else:
            raise BusError(
                ErrorCode.INVALID_TXN_STATE,
                f"{transactional_id}: expected a transaction that is open and not decided, found {found.state}",
            )
        # That of this producer id and epoch and no other, so the call may be repeated.
        request = pb.AbortTransactionRequest(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch
        )
        answers = self._calls.transactions.ask(
            "AbortTransaction",
            [transactional_id],
            lambda _: request,
            lambda response: [
                CoordinatorAnswer(transactional_id, response.error_code, response.error_message, response)
            ],
            asked_again=_UNDER_WAY,
        )
        answered_items(answers)
        return found

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        """Shut out every producer that has one of these ids, as another instance would: what it has open is aborted,
        and each of its calls is refused for good. By id the lowest identity that is not refused. Raises
        TRANSACTIONAL_ID_NOT_FOUND."""
        answers = self._calls.transactions.ask(
            "FenceProducers",
            check_texts("transactional_ids", transactional_ids),
            lambda ids: pb.FenceProducersRequest(transactional_ids=ids),
            lambda response: map(_answer_of, response.producers),
            asked_again=_UNDER_WAY,
        )
        fenced = answered_items(answers)
        return {name: FENCED_PRODUCER.decode(one) for name, one in fenced.items()}

    # ------------------------------------------------------------ what hangs

    def find_hanging_transactions(
        self, partitions: Collection[TopicPartition] | None = None, *, older_than_ms: int = 900_000
    ) -> list[HangingTransaction]:
        """Find what is staged in these partitions, or in all, and what is pending in any group, of transactions that
        are not open, if the last of it came longer ago than `older_than_ms`: `transaction.max.timeout.ms`, since a
        first batch may be there before its transaction is. No reader waits for it; the leaders delete what is staged in
        time."""
        check_integer("older_than_ms", older_than_ms, 0, INT_64_MAX)
        if partitions is not None:
            partitions = check_topic_partitions("partitions", partitions)
        else:
            described = self.describe_topics().values()
            partitions = [
                TopicPartition(topic.name, one.partition)
                for topic in described
                if not topic.is_internal
                for one in topic.partitions
            ]
        # A transaction may begin and end meanwhile: one that was open before, or is open after, does not hang.
        deadline_ms = self._calls.deadline_ms()
        before = self._find_open(deadline_ms)
        latest_ms = int(time.time() * 1_000) - older_than_ms
        staged = _staged(self._describe_producers(partitions, deadline_ms))
        suspects = [
            one
            for one in (*staged, *_pending(self._describe_all_groups()))
            if one.last_timestamp_ms <= latest_ms and not before.has(one)
        ]
        if not suspects:
            return []
        after = self._find_open(deadline_ms)
        return [one for one in suspects if not after.has(one)]

    def _find_open(self, deadline_ms: float) -> _OpenTransactions:
        request = pb.ListTransactionsRequest(states=(*_OPEN_STATES, _UNREADABLE))
        there = self._list_transactions(request, deadline_ms)
        answers = self._ask_to_describe([one.transactional_id for one in there if one.state != _UNREADABLE])
        # One that has expired since is not open.
        described = [TRANSACTION.decode(answer.item) for answer in answers.values() if not answer.code]
        return _OpenTransactions(
            {(one.producer_id, one.open_epoch) for one in described},
            {one.producer_id for one in there if one.state == _UNREADABLE},
        )


class _OpenTransactions:
    """`unreadable`: producer ids of whose transactions nothing is known; they count as open."""

    def __init__(self, identities: set[tuple[int, int]], unreadable: set[int]) -> None:
        self._identities = identities
        self._unreadable = unreadable

    def has(self, one: HangingTransaction) -> bool:
        return one.producer_id in self._unreadable or (one.producer_id, one.producer_epoch) in self._identities


def _staged(found: dict[TopicPartition, _Producers]) -> Iterator[HangingTransaction]:
    for partition, producers in found.items():
        for one in producers:
            if one.coordinator_partition is not None:
                yield HangingTransaction(
                    one.producer_id,
                    one.producer_epoch,
                    partition,
                    None,
                    one.last_timestamp_ms,
                    staged_bytes=one.staged_bytes,
                )


def _pending(groups: Iterable[GroupDescription]) -> Iterator[HangingTransaction]:
    for group in groups:
        for one in group.pending_offsets:
            yield HangingTransaction(
                one.producer_id,
                one.producer_epoch,
                None,
                group.group_id,
                one.commit_ms,
                offset_count=one.offset_count,
            )


def _check_producer_id(name: str, value: Any) -> int:
    return check_integer(name, value, 0, INT_64_MAX)


def _answer_of(one: Any) -> CoordinatorAnswer:
    return CoordinatorAnswer(one.transactional_id, one.error_code, one.error_message, one)


def _decode_listed(broker: pb.Broker, response: pb.ListTransactionsResponse) -> list[TransactionListing]:
    """Those that this broker coordinates."""
    unknown = [state for state in response.unknown_states if state != _UNREADABLE]
    if unknown:
        raise BusError(ErrorCode.INVALID_REQUEST, f"expected states of a transaction, found {', '.join(unknown)}")
    return [TRANSACTION_LISTING.decode(one, coordinator_id=broker.broker_id) for one in response.transactions]


def _decode_producers(answer: pb.PartitionProducers) -> _Producers | BusError:
    if answer.error_code:
        return error_of(answer.error_code, answer.error_message or str(TopicPartition(answer.topic, answer.partition)))
    return tuple(map(PRODUCER.decode, answer.producers))
