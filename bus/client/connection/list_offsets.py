"""Offsets by timestamp, asked of the leaders, with retries: what Consumer and Admin share.

Guards the pairing of question and answer: the result has exactly the partitions that were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.portions import portions
from bus.client.values import ListedOffset
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class AtVersion:
    """Asks for the high watermark that this Delta version of the partition's table left."""

    version: int


OffsetQuestion = int | AtVersion


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, OffsetQuestion], *, deadline_ms: float
) -> dict[TopicPartition, ListedOffset]:
    """`wanted`: a timestamp in milliseconds for each partition, or -1 latest, -2 earliest, -3 largest timestamp; or
    `AtVersion`.

    Raises `BusError`; what may succeed later is tried again until `deadline_ms`.
    """
    found: dict[TopicPartition, ListedOffset] = {}

    def ask() -> dict[TopicPartition, ListedOffset]:
        missing = {partition: at for partition, at in wanted.items() if partition not in found}
        error = _ask_leaders(cluster, missing, found, deadline_ms)
        if error is not None:
            cluster.forget({partition.topic for partition in missing if partition not in found})
            raise error
        return found

    return cluster.retry(ask, deadline_ms=deadline_ms)


def list_offsets_once(
    cluster: Cluster, wanted: Mapping[TopicPartition, OffsetQuestion], *, deadline_ms: float
) -> tuple[dict[TopicPartition, ListedOffset], BusError | None]:
    """What was found by asking each leader once, and why the others were not: of those the next call asks for the
    leader again."""
    found: dict[TopicPartition, ListedOffset] = {}
    try:
        error = _ask_leaders(cluster, wanted, found, deadline_ms)
    except BusError as failure:
        error = failure
    if error is not None:
        cluster.forget({partition.topic for partition in wanted if partition not in found})
    return found, error


def _ask_leaders(
    cluster: Cluster,
    missing: Mapping[TopicPartition, OffsetQuestion],
    found: dict[TopicPartition, ListedOffset],
    deadline_ms: float,
) -> BusError | None:
    by_address: dict[str, list[TopicPartition]] = {}
    error: BusError | None = None
    for partition in missing:
        address = leader_of(cluster, partition, deadline_ms=deadline_ms)
        if address is None:
            error = BusError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
        else:
            by_address.setdefault(address, []).append(partition)
    asked = [(address, portion) for address, partitions in by_address.items() for portion in portions(partitions)]
    for address, partitions in asked:
        request = pb.ListOffsetsRequest(partitions=[_question(p, missing[p]) for p in partitions])
        try:
            response = cluster.call("ListOffsets", request, address=address, deadline_ms=deadline_ms)
        except BusError as failure:
            error = failure
            continue
        error = _take(response, found) or error
    return error


def _question(partition: TopicPartition, wanted: OffsetQuestion) -> pb.ListOffsetsPartition:
    question = pb.ListOffsetsPartition(topic=partition.topic, partition=partition.partition)
    if isinstance(wanted, AtVersion):
        question.version = wanted.version
    else:
        question.timestamp_ms = wanted
    return question


def _take(response: pb.ListOffsetsResponse, found: dict[TopicPartition, ListedOffset]) -> BusError | None:
    error: BusError | None = None
    for answer in response.partitions:
        partition = TopicPartition(answer.topic, answer.partition)
        if answer.error_code:
            error = error_of(answer.error_code, answer.error_message or str(partition))
        else:
            found[partition] = ListedOffset(answer.offset, answer.timestamp_ms, answer.leader_epoch, answer.version)
    return error


def leader_of(cluster: Cluster, partition: TopicPartition, *, deadline_ms: float) -> str | None:
    """The leader's address, None while there is none. Raises `BusError` if there is no such partition."""
    info = cluster.wait_partition(partition.topic, partition.partition, deadline_ms=deadline_ms)
    return cluster.leader_address(info, partition.partition)
