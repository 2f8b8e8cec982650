"""The administrator's calls for transactions (KIP-664), to the coordinators of transactional ids and to the leaders of
partitions: messages to values and back.

Guards two promises: of several items all are tried, and one `BusError` tells of those that failed; and an operator who
aborts never hits a later transaction than the one that was looked at, however often the call has to be repeated. Safe
to use from several threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bus.addresses import format_address
from bus.client.admin.broker_calls import NOTHING_DONE, CoordinatorAnswer, CoordinatorCalls, raise_failures
from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.group_requests import decode_partitions, encode_partitions
from bus.client.connection.leader_calls import ask_leaders
from bus.client.values import (
    BrokerInfo,
    FencedProducer,
    GroupDescription,
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
UNREADABLE = "Unreadable"
# The leader looks into a folder for each.
PARTITIONS_MAX = 200
# The decision stands, or is about to; the same call tells of its end.
_UNDER_WAY = {*NOTHING_DONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT}

DescribeGroups = Callable[[], Iterable[GroupDescription]]
_Identity = tuple[int, int]  # producer id, epoch


class TransactionAdmin:
    """Every method blocks until the brokers' answers and raises `BusError`."""

    def __init__(self, cluster: Cluster, calls: CoordinatorCalls) -> None:
        self._cluster = cluster
        self._calls = calls

    def list_on(
        self,
        broker: pb.Broker,
        states: Sequence[str],
        producer_ids: Sequence[int],
        duration_ms: int,
        deadline_ms: float,
    ) -> list[TransactionListing]:
        """Those that this broker coordinates."""
        request = pb.ListTransactionsRequest(states=states, producer_ids=producer_ids, duration_ms=duration_ms)
        address = format_address(broker.host, broker.port)
        response = self._cluster.call("ListTransactions", request, address=address, deadline_ms=deadline_ms)
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        unknown = [state for state in response.unknown_states if state != UNREADABLE]
        if unknown:
            raise BusError(ErrorCode.INVALID_REQUEST, f"expected states of a transaction, found {', '.join(unknown)}")
        return [
            TransactionListing(one.transactional_id, broker.broker_id, one.producer_id, one.state)
            for one in response.transactions
        ]

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        answers = self._ask_to_describe(transactional_ids)
        _raise_refusals(answers)
        return {name: _description(answer.item) for name, answer in answers.items()}

    def _ask_to_describe(self, transactional_ids: Iterable[str]) -> dict[str, CoordinatorAnswer]:
        return self._calls.ask(
            "DescribeTransactions",
            transactional_ids,
            lambda ids: pb.DescribeTransactionsRequest(transactional_ids=ids),
            _answers_of_transactions,
        )

    def abort(self, transactional_id: str, expected: _Identity) -> None:
        """The open transaction with that producer id and epoch, and no other, so the call may be repeated."""
        producer_id, producer_epoch = expected
        request = pb.AbortTransactionRequest(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch
        )
        answers = self._calls.ask(
            "AbortTransaction",
            [transactional_id],
            lambda _: request,
            lambda response: [
                CoordinatorAnswer(transactional_id, response.error_code, response.error_message, response)
            ],
            asked_again=_UNDER_WAY,
        )
        _raise_refusals(answers)

    def fence(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        answers = self._calls.ask(
            "FenceProducers",
            transactional_ids,
            lambda ids: pb.FenceProducersRequest(transactional_ids=ids),
            _answers_of_fenced,
            asked_again=_UNDER_WAY,
        )
        _raise_refusals(answers)
        return {
            name: FencedProducer(answer.item.producer_id, answer.item.producer_epoch)
            for name, answer in answers.items()
        }

    def describe_producers(
        self, partitions: Iterable[TopicPartition], deadline_ms: float
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        def ask(
            address: str, some: Sequence[TopicPartition]
        ) -> Iterator[tuple[TopicPartition, tuple[ProducerState, ...] | BusError]]:
            request = pb.DescribeProducersRequest(topics=encode_partitions(some))
            response = self._cluster.call("DescribeProducers", request, address=address, deadline_ms=deadline_ms)
            for answer in response.partitions:
                yield TopicPartition(answer.topic, answer.partition), _producers(answer)

        return ask_leaders(self._cluster, partitions, ask, deadline_ms=deadline_ms, count_max=PARTITIONS_MAX)

    # ------------------------------------------------------------ what hangs

    def find_hanging(
        self,
        partitions: Sequence[TopicPartition],
        *,
        describe_groups: DescribeGroups,
        list_open: Callable[[], Iterable[TransactionListing]],
        older_than_ms: int,
        deadline_ms: float,
    ) -> list[HangingTransaction]:
        """What was open before one looked, or is open after it, does not hang: a transaction may begin and end
        meanwhile."""
        before = self._open_transactions(list_open())
        latest_ms = int(time.time() * 1_000) - older_than_ms
        suspects = [
            one
            for one in (*self._staged(partitions, deadline_ms), *_pending(describe_groups()))
            if one.last_timestamp_ms <= latest_ms and not before.has(one)
        ]
        if not suspects:
            return []
        after = self._open_transactions(list_open())
        return [one for one in suspects if not after.has(one)]

    def _staged(self, partitions: Sequence[TopicPartition], deadline_ms: float) -> Iterator[HangingTransaction]:
        for partition, producers in self.describe_producers(partitions, deadline_ms).items():
            for producer in producers:
                if producer.coordinator_partition is not None:
                    yield HangingTransaction(
                        producer.producer_id,
                        producer.producer_epoch,
                        partition,
                        None,
                        producer.last_timestamp_ms,
                        staged_bytes=producer.staged_bytes,
                    )

    def _open_transactions(self, listed: Iterable[TransactionListing]) -> _OpenTransactions:
        there = list(listed)
        answers = self._ask_to_describe([one.transactional_id for one in there if one.state != UNREADABLE])
        # One that has expired since is not open.
        described = [_description(answer.item) for answer in answers.values() if not answer.code]
        return _OpenTransactions(
            {(one.producer_id, one.open_epoch) for one in described},
            {one.producer_id for one in there if one.state == UNREADABLE},
        )


class _OpenTransactions:
    """`unreadable`: producer ids of whose transactions nothing is known; they count as open."""

    def __init__(self, identities: set[_Identity], unreadable: set[int]) -> None:
        self._identities = identities
        self._unreadable = unreadable

    def has(self, one: HangingTransaction) -> bool:
        return one.producer_id in self._unreadable or (one.producer_id, one.producer_epoch) in self._identities


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


def _answers_of_transactions(response: Any) -> Iterator[CoordinatorAnswer]:
    for one in response.transactions:
        yield CoordinatorAnswer(one.transactional_id, one.error_code, one.error_message, one)


def _answers_of_fenced(response: Any) -> Iterator[CoordinatorAnswer]:
    for one in response.producers:
        yield CoordinatorAnswer(one.transactional_id, one.error_code, one.error_message, one)


def _raise_refusals(answers: Mapping[str, CoordinatorAnswer]) -> None:
    raise_failures([(name, answer.code, answer.message) for name, answer in answers.items()])


def _description(one: pb.DescribedTransaction) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=one.transactional_id,
        coordinator=BrokerInfo(one.coordinator.broker_id, one.coordinator.host, one.coordinator.port),
        coordinator_partition=one.coordinator_partition,
        state=one.state,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        timeout_ms=one.timeout_ms,
        start_ms=one.start_ms,
        update_ms=one.update_ms,
        number=one.number,
        partitions=tuple(sorted(decode_partitions(one.topics))),
        group_ids=tuple(sorted(one.group_ids)),
    )


def _producers(answer: pb.PartitionProducers) -> tuple[ProducerState, ...] | BusError:
    if answer.error_code:
        return error_of(answer.error_code, answer.error_message or str(TopicPartition(answer.topic, answer.partition)))
    return tuple(map(_producer, answer.producers))


def _producer(one: pb.ActiveProducer) -> ProducerState:
    return ProducerState(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        last_sequence=one.last_sequence,
        last_timestamp_ms=one.last_timestamp_ms,
        coordinator_partition=one.coordinator_partition if one.coordinator_partition >= 0 else None,
        staged_bytes=one.staged_bytes,
    )
