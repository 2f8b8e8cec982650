"""Offsets by timestamp, asked of the leaders, with retries: what Consumer and Admin share."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.leader_calls import ask_leaders, ask_leaders_once
from bus.client.values import ListedOffset
from bus.errors import BusError
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
    ask = functools.partial(_ask, cluster, wanted, deadline_ms)
    return ask_leaders(cluster, wanted, ask, deadline_ms=deadline_ms)


def list_offsets_once(
    cluster: Cluster, wanted: Mapping[TopicPartition, OffsetQuestion], *, deadline_ms: float
) -> tuple[dict[TopicPartition, ListedOffset], BusError | None]:
    """What was found by asking each leader once, and why the others were not: of those the next call asks for the
    leader again."""
    ask = functools.partial(_ask, cluster, wanted, deadline_ms)
    return ask_leaders_once(cluster, [*wanted], ask, deadline_ms=deadline_ms)


def _ask(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, OffsetQuestion],
    deadline_ms: float,
    address: str,
    partitions: Sequence[TopicPartition],
) -> Iterator[tuple[TopicPartition, ListedOffset | BusError]]:
    request = pb.ListOffsetsRequest(partitions=[_question(one, wanted[one]) for one in partitions])
    response = cluster.call("ListOffsets", request, address=address, deadline_ms=deadline_ms)
    for answer in response.partitions:
        yield TopicPartition(answer.topic, answer.partition), _answer(answer)


def _question(partition: TopicPartition, wanted: OffsetQuestion) -> pb.ListOffsetsPartition:
    question = pb.ListOffsetsPartition(topic=partition.topic, partition=partition.partition)
    if isinstance(wanted, AtVersion):
        question.version = wanted.version
    else:
        question.timestamp_ms = wanted
    return question


def _answer(one: pb.ListOffsetsPartitionResponse) -> ListedOffset | BusError:
    if one.error_code:
        return error_of(one.error_code, one.error_message or str(TopicPartition(one.topic, one.partition)))
    return ListedOffset(one.offset, one.timestamp_ms, one.leader_epoch, one.version)
