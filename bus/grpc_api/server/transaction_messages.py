"""What brokers say to each other about transactions, as messages and as values, for both ends of a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.conversions import refusal_of, with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.transaction_calls import StepAnswer, StepKind, Stepped, StepRequest, Traces, TransactionAddition
from bus.transactions.requests import Added, AddOffsets, AddPartitions
from bus.transactions.state import ProducerIdentity, TransactionGroup, TransactionPartition

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
