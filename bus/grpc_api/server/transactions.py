"""Transactions over gRPC: messages to values, and answers back."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from bus.broker_api.authorization import Access
from bus.broker_api.groups import require_count
from bus.broker_api.transactions import IDS_MAX, TransactionApi
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.conversions import Converted, refusal_of, with_error
from bus.grpc_api.server.group_calls import encode_coordinator, encode_outcomes, member_of, offsets_of
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import FENCED_PRODUCER, PRODUCER, TRANSACTION, TRANSACTION_LISTING, decode_partitions
from bus.model import TopicPartition
from bus.runtime.metadata.peers import StepAnswer, StepKind, Stepped, StepRequest, Traces, TransactionAddition
from bus.runtime.tasks import LoopShares
from bus.transactions.requests import Added, AddOffsets, AddPartitions, TransactionEnded
from bus.transactions.state import ProducerIdentity, TransactionGroup, TransactionPartition

# What brokers say to each other about transactions, as messages and as values, for both ends of a call.

STEP_METHODS = {
    StepKind.VOTE: "VoteTransaction",
    StepKind.COMMIT: "CommitTransaction",
    StepKind.APPLY: "ApplyTransaction",
    StepKind.DROP: "DropTransaction",
    StepKind.RESOLVE: "ResolveTransaction",
}


def encode_addition(addition: TransactionAddition) -> pb.TransactionAdditions:
    message = pb.TransactionAdditions(
        transactional_id=addition.transactional_id,
        producer_id=addition.producer_id,
        producer_epoch=addition.producer_epoch,
    )
    if isinstance(addition, AddPartitions):
        message.partitions.extend(_encode_partition(each, 0) for each in addition.partitions)
    else:
        message.groups.append(_encode_group(addition.group))
    return message


def additions_of(message: pb.TransactionAdditions) -> list[TransactionAddition]:
    """One for the partitions, if there are any, and one for each group."""
    who = message.transactional_id, message.producer_id, message.producer_epoch
    found: list[TransactionAddition] = [AddOffsets(*who, _group_of(group)) for group in message.groups]
    if message.partitions or not found:
        found.append(AddPartitions(*who, tuple(map(_partition_of, message.partitions))))
    return found


def encode_added(answer: Added | Refused) -> pb.TransactionAdded:
    if isinstance(answer, Refused):
        return with_error(pb.TransactionAdded(), answer)
    return pb.TransactionAdded(may_be_one_phase=answer.may_be_one_phase)


def added_of(message: pb.TransactionAdded) -> Added | Refused:
    return refusal_of(message) or Added(may_be_one_phase=message.may_be_one_phase)


def encode_step(request: StepRequest) -> pb.TransactionStepRequest:
    return pb.TransactionStepRequest(
        transactional_id=request.transactional_id,
        number=request.number,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        coordinator_partition=request.coordinator_partition,
        partitions=[_encode_partition(partition, last) for partition, last in request.partitions],
        groups=map(_encode_group, request.groups),
        heeds_marks=request.heeds_marks,
    )


def step_of(message: pb.TransactionStepRequest) -> StepRequest:
    return StepRequest(
        message.transactional_id,
        message.number,
        message.producer_id,
        message.producer_epoch,
        message.coordinator_partition,
        [(_partition_of(each), each.last_sequence) for each in message.partitions],
        [_group_of(group) for group in message.groups],
        message.heeds_marks,
    )


def encode_step_answer(answer: StepAnswer) -> pb.TransactionStepResponse:
    return pb.TransactionStepResponse(
        partitions=map(_encode_result, answer.partitions), groups=map(_encode_result, answer.groups)
    )


def step_answer_of(request: StepRequest, message: pb.TransactionStepResponse) -> StepAnswer | Refused:
    found = len(message.partitions), len(message.groups)
    if found != (len(request.partitions), len(request.groups)):
        expected = f"expected answers of {len(request.partitions)} partitions and {len(request.groups)} groups"
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{expected}, found {found[0]} and {found[1]}")
    return StepAnswer(_results_of(message.partitions), _results_of(message.groups))


def _encode_partition(partition: TransactionPartition, last_sequence: int) -> pb.TransactionPartition:
    return pb.TransactionPartition(
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        last_sequence=last_sequence,
    )


def _partition_of(message: pb.TransactionPartition) -> TransactionPartition:
    return TransactionPartition(message.topic, message.topic_id, message.partition)


def _encode_group(group: TransactionGroup) -> pb.TransactionGroup:
    return pb.TransactionGroup(group_id=group.group_id, offsets_partition=group.offsets_partition)


def _group_of(message: pb.TransactionGroup) -> TransactionGroup:
    return TransactionGroup(message.group_id, message.offsets_partition)


def _encode_result(result: Stepped | Refused) -> pb.TransactionStepResult:
    if isinstance(result, Refused):
        return with_error(pb.TransactionStepResult(last_sequence=-1, version=-1, base_offset=-1), result)
    return pb.TransactionStepResult(
        last_sequence=result.last_sequence,
        version=result.version,
        base_offset=result.base_offset,
        is_pending=result.has_pending,
        number=None if result.number < 0 else result.number,
    )


def _results_of(messages: Iterable[pb.TransactionStepResult]) -> Sequence[Stepped | Refused]:
    return [
        refusal_of(each)
        or Stepped(
            each.last_sequence,
            each.version,
            each.base_offset,
            each.is_pending,
            each.number if each.HasField("number") else -1,
        )
        for each in messages
    ]


def encode_traces(traces: Traces) -> pb.Traces:
    rows = sorted(traces.rows, key=lambda each: (each.producer_id, each.producer_epoch))
    return pb.Traces(
        producer_ids=[each.producer_id for each in rows],
        producer_epochs=[each.producer_epoch for each in rows],
        transactional_ids=sorted(traces.transactional_ids),
    )


def traces_of(message: pb.Traces) -> Traces:
    rows = map(ProducerIdentity, message.producer_ids, message.producer_epochs)
    return Traces(frozenset(rows), frozenset(message.transactional_ids))


class TransactionHandler:
    def __init__(self, api: TransactionApi, shares: LoopShares, listener: str) -> None:
        self._api = api
        self._shares = shares
        self._listener = listener

    # ------------------------------------------------------------------ producers

    async def find_coordinator(self, access: Access, request: pb.FindCoordinatorRequest) -> pb.FindCoordinatorResponse:
        return encode_coordinator(await self._api.find_coordinator(access, request.key), self._listener)

    async def init(self, access: Access, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        if request.name or request.keep_epoch:
            refused = Refused(
                ErrorCode.INVALID_REQUEST, "expected a name or a transactional id, found both, or an epoch to keep"
            )
            return with_error(pb.InitProducerIdResponse(producer_id=-1, producer_epoch=-1), refused)
        identity = await self._api.init_producer(
            access,
            request.transactional_id,
            request.transaction_timeout_ms,
            producer_id=request.producer_id if request.HasField("producer_id") else None,
            producer_epoch=request.producer_epoch,
        )
        if isinstance(identity, Refused):
            return with_error(pb.InitProducerIdResponse(producer_id=-1, producer_epoch=-1), identity)
        return pb.InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)

    async def commit_offsets(self, access: Access, request: pb.TxnOffsetCommitRequest) -> pb.TxnOffsetCommitResponse:
        outcomes = await self._api.commit_offsets(
            access,
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            member_of(request),
            offsets_of(request),
            sequence=request.sequence,
        )
        return pb.TxnOffsetCommitResponse(partitions=encode_outcomes(request.partitions, outcomes))

    async def end(self, access: Access, request: pb.EndTxnRequest) -> pb.EndTxnResponse:
        answer = await self._api.end(
            access,
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            is_commit=request.is_commit,
            last_sequences=Converted(request.ends, _end_of),
        )
        if isinstance(answer, Refused):
            return with_error(pb.EndTxnResponse(producer_id=-1, producer_epoch=-1), answer)
        return _encode_ended(answer)

    # ------------------------------------------------------------------ administration

    async def list_transactions(
        self, access: Access, request: pb.ListTransactionsRequest
    ) -> pb.ListTransactionsResponse:
        listed = await self._api.list_transactions(
            access, request.states, request.producer_ids, duration_ms=request.duration_ms
        )
        response = pb.ListTransactionsResponse(unknown_states=listed.unknown_states)
        await self._shares.begin().extend(response.transactions, map(TRANSACTION_LISTING.encode, listed.transactions))
        return response if listed.refused is None else with_error(response, listed.refused)

    async def describe_transactions(
        self, access: Access, request: pb.DescribeTransactionsRequest
    ) -> pb.DescribeTransactionsResponse:
        answers = await self._api.describe_transactions(access, request.transactional_ids, self._listener)
        response = pb.DescribeTransactionsResponse()
        encoded = (
            TRANSACTION.encode_answer(answer, transactional_id=transactional_id)
            for transactional_id, answer in zip(request.transactional_ids, answers, strict=True)
        )
        await self._shares.begin().extend(response.transactions, encoded)
        return response

    async def describe_producers(
        self, access: Access, request: pb.DescribeProducersRequest
    ) -> pb.DescribeProducersResponse:
        require_count(sum(len(topic.partitions) for topic in request.topics), IDS_MAX, "partitions")
        names = decode_partitions(request.topics)
        answers = await self._api.describe_producers(access, names)
        response = pb.DescribeProducersResponse()
        share = self._shares.begin()
        for name, answer in zip(names, answers, strict=True):
            part = response.partitions.add(topic=name.topic, partition=name.partition)
            if isinstance(answer, Refused):
                with_error(part, answer)
            else:
                await share.extend(part.producers, map(PRODUCER.encode, answer))
        return response

    async def abort(self, access: Access, request: pb.AbortTransactionRequest) -> pb.AbortTransactionResponse:
        expected = None
        if request.HasField("producer_id"):
            expected = ProducerIdentity(request.producer_id, request.producer_epoch)
        refused = await self._api.abort(access, request.transactional_id, expected)
        response = pb.AbortTransactionResponse()
        return response if refused is None else with_error(response, refused)

    async def fence(self, access: Access, request: pb.FenceProducersRequest) -> pb.FenceProducersResponse:
        answers = await self._api.fence(access, request.transactional_ids)
        fenced = (
            FENCED_PRODUCER.encode_answer(answer, transactional_id=name)
            for name, answer in zip(request.transactional_ids, answers, strict=True)
        )
        return pb.FenceProducersResponse(producers=fenced)

    # ------------------------------------------------------------------ other brokers

    async def add(self, access: Access, request: pb.AddPartitionsToTxnRequest) -> pb.AddPartitionsToTxnResponse:
        answers = await self._api.add(access, list(map(additions_of, request.transactions)))
        return pb.AddPartitionsToTxnResponse(transactions=map(encode_added, answers))

    async def _step(
        self, kind: StepKind, access: Access, request: pb.TransactionStepRequest
    ) -> pb.TransactionStepResponse:
        return encode_step_answer(await self._api.step(access, kind, step_of(request)))

    vote = functools.partialmethod(_step, StepKind.VOTE)
    commit = functools.partialmethod(_step, StepKind.COMMIT)
    apply = functools.partialmethod(_step, StepKind.APPLY)
    drop = functools.partialmethod(_step, StepKind.DROP)
    resolve = functools.partialmethod(_step, StepKind.RESOLVE)

    async def find_needed(self, access: Access, request: pb.FindNeededRequest) -> pb.FindNeededResponse:
        found = await self._api.find_needed(access, request.coordinator_partition, traces_of(request.traces))
        if isinstance(found, Refused):
            return with_error(pb.FindNeededResponse(), found)
        return pb.FindNeededResponse(traces=encode_traces(found), ended=encode_traces(Traces(found.ended)))


def _end_of(message: pb.TransactionEnd) -> tuple[TopicPartition, int]:
    return TopicPartition(message.topic, message.partition), message.last_sequence


def _encode_ended(answer: TransactionEnded) -> pb.EndTxnResponse:
    versions = [
        pb.TransactionVersion(
            topic=partition.topic, partition=partition.partition, version=rows.version, base_offset=rows.base_offset
        )
        for partition, rows in answer.versions.items()
    ]
    return pb.EndTxnResponse(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, versions=versions)
