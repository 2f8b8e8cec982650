"""Requests of a producer to coordinators about its transactions, as messages, and their answers, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from bus.addresses import format_address
from bus.client.connection.cluster import error_of
from bus.client.connection.group_requests import commit_partitions
from bus.client.values import CommittedRows, GroupMetadata, OffsetAndMetadata
from bus.errors import BusError
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Coordinated:
    """The subject of a coordinator: a group, or a transactional id."""

    key: str
    is_group: bool = False


@dataclass(frozen=True, slots=True)
class TransactionRequest:
    """`method`: of the service. The same message goes again, however often."""

    method: str
    coordinated: Coordinated
    message: Message


def find_coordinator(coordinated: Coordinated) -> Message:
    kind = pb.COORDINATOR_TYPE_GROUP if coordinated.is_group else pb.COORDINATOR_TYPE_TRANSACTION
    return pb.FindCoordinatorRequest(key=coordinated.key, key_type=kind)


def decode_coordinator(answer: Any) -> str:
    """Its address. Raises `BusError`."""
    if answer.error_code:
        raise error_of(answer.error_code, answer.error_message or "FindCoordinator")
    return format_address(answer.coordinator.host, answer.coordinator.port)


def initialize(transactional_id: str, timeout_ms: int) -> TransactionRequest:
    message = pb.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    return TransactionRequest("InitProducerId", Coordinated(transactional_id), message)


def commit_offsets(
    transactional_id: str,
    identity: tuple[int, int],
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    sequence: int,
) -> TransactionRequest:
    producer_id, producer_epoch = identity
    message = pb.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        generation=group.generation,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        partitions=commit_partitions(offsets),
        sequence=sequence,
    )
    return TransactionRequest("TxnOffsetCommit", Coordinated(group.group_id, is_group=True), message)


def end(
    transactional_id: str, identity: tuple[int, int], last_sequences: Mapping[TopicPartition, int], *, is_commit: bool
) -> TransactionRequest:
    producer_id, producer_epoch = identity
    message = pb.EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_commit=is_commit,
        ends=[
            pb.TransactionEnd(topic=of.topic, partition=of.partition, last_sequence=last)
            for of, last in last_sequences.items()
        ],
    )
    return TransactionRequest("EndTxn", Coordinated(transactional_id), message)


def decode_error(request: TransactionRequest, answer: Any) -> BusError | None:
    """Return the error of an answer; for a commit of offsets, that of the first partition that has one."""
    if request.method == "TxnOffsetCommit":
        refused = next((one for one in answer.partitions if one.error_code), None)
        return None if refused is None else error_of(refused.error_code, refused.error_message or refused.topic)
    return error_of(answer.error_code, answer.error_message or request.method) if answer.error_code else None


def decode_versions(answer: Any) -> dict[TopicPartition, CommittedRows]:
    return {
        TopicPartition(rows.topic, rows.partition): CommittedRows(rows.version, rows.base_offset)
        for rows in answer.versions
    }
