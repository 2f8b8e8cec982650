"""Calls about partitions, each asked of its leader: grouped by leader, in portions, asked again while that may help.

Guards the pairing of question and answer: the result has exactly the partitions that were asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bus.client.connection.cluster import Cluster
from bus.client.connection.metadata_cache import error_of
from bus.client.connection.retrying import ITEMS_MAX, portions
from bus.descriptions import ListedOffset
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import LISTED_OFFSET
from bus.model import TopicPartition

AnswerT = TypeVar("AnswerT")
# To the leader at this address, about these partitions: the answer of each, or why it has none.
AskLeader = Callable[[str, Sequence[TopicPartition]], Iterable[tuple[TopicPartition, AnswerT | BusError]]]


def ask_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    ask: AskLeader[AnswerT],
    *,
    deadline_ms: float,
    count_max: int = ITEMS_MAX,
) -> dict[TopicPartition, AnswerT]:
    """The answer of each partition, in their order; `count_max`: of one request.

    Raises `BusError`; what may succeed later is asked again until `deadline_ms`, and only that.
    """
    wanted = list(dict.fromkeys(partitions))
    found: dict[TopicPartition, AnswerT] = {}

    def ask_missing() -> dict[TopicPartition, AnswerT]:
        missing = [partition for partition in wanted if partition not in found]
        error = _ask_each(cluster, missing, ask, found, deadline_ms, count_max)
        if error is not None:
            _forget_leaders(cluster, missing, found)
            raise error
        return {partition: found[partition] for partition in wanted}

    return cluster.retry(ask_missing, deadline_ms=deadline_ms)


def ask_leaders_once(
    cluster: Cluster, partitions: Sequence[TopicPartition], ask: AskLeader[AnswerT], *, deadline_ms: float
) -> tuple[dict[TopicPartition, AnswerT], BusError | None]:
    """Ask each leader once; return the answers, and the error of the other partitions: the next call looks up their
    leaders again."""
    found: dict[TopicPartition, AnswerT] = {}
    try:
        error = _ask_each(cluster, partitions, ask, found, deadline_ms, ITEMS_MAX)
    except BusError as failure:
        error = failure
    if error is not None:
        _forget_leaders(cluster, partitions, found)
    return found, error


def leader_of(cluster: Cluster, partition: TopicPartition, *, deadline_ms: float) -> str:
    """The leader's address. Raises `BusError`: LEADER_NOT_AVAILABLE while there is none, or that there is no such
    partition."""
    address = _find_leader(cluster, partition, deadline_ms)
    if address is None:
        raise _no_leader(partition)
    return address


def in_portions(
    by_leader: dict[str, list[TopicPartition]], count_max: int = ITEMS_MAX
) -> Iterator[tuple[str, list[TopicPartition]]]:
    """One request each: the leader's address, and what it is asked about."""
    for address, partitions in by_leader.items():
        for portion in portions(partitions, count_max):
            yield address, portion


def _ask_each(
    cluster: Cluster,
    missing: Iterable[TopicPartition],
    ask: AskLeader[AnswerT],
    found: dict[TopicPartition, AnswerT],
    deadline_ms: float,
    count_max: int,
) -> BusError | None:
    """Add to `found`; why that is not all. Raises `BusError` for a partition that there is not."""
    by_leader: dict[str, list[TopicPartition]] = {}
    error: BusError | None = None
    for partition in missing:
        address = _find_leader(cluster, partition, deadline_ms)
        if address is None:
            error = _no_leader(partition)
        else:
            by_leader.setdefault(address, []).append(partition)
    for address, portion in in_portions(by_leader, count_max):
        try:
            answers = dict(ask(address, portion))
        except BusError as failure:
            error = failure
            continue
        for partition in portion:
            answer = answers[partition] if partition in answers else _unanswered(address, partition)
            if isinstance(answer, BusError):
                error = answer
            else:
                found[partition] = answer
    return error


def _unanswered(address: str, partition: TopicPartition) -> BusError:
    return BusError(
        ErrorCode.UNKNOWN_SERVER_ERROR, f"expected an answer about {partition} from the broker at {address}, found none"
    )


def _find_leader(cluster: Cluster, partition: TopicPartition, deadline_ms: float) -> str | None:
    """None while there is none. Raises `BusError` if there is no such partition."""
    info = cluster.wait_partition(partition.topic, partition.partition, deadline_ms=deadline_ms)
    return cluster.metadata.leader_address(info, partition.partition)


def _no_leader(partition: TopicPartition) -> BusError:
    return BusError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")


def _forget_leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition], found: dict[TopicPartition, AnswerT]
) -> None:
    cluster.metadata.forget({partition.topic for partition in partitions if partition not in found})


@dataclass(frozen=True, slots=True)
class AtVersion:
    """Asks for the high watermark that this Delta version of the partition's table left."""

    version: int


OffsetQuestion = int | AtVersion


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, OffsetQuestion], *, deadline_ms: float
) -> dict[TopicPartition, ListedOffset]:
    """Look up offsets by timestamp. `wanted`: a timestamp in milliseconds for each partition, or -1 latest, -2
    earliest, -3 largest timestamp; or `AtVersion`.

    Raises `BusError`; what may succeed later is tried again until `deadline_ms`.
    """
    ask = functools.partial(_ask, cluster, wanted, deadline_ms)
    return ask_leaders(cluster, wanted, ask, deadline_ms=deadline_ms)


def list_offsets_once(
    cluster: Cluster, wanted: Mapping[TopicPartition, OffsetQuestion], *, deadline_ms: float
) -> tuple[dict[TopicPartition, ListedOffset], BusError | None]:
    """Ask each leader once; return the offsets, and the error of the other partitions: the next call looks up their
    leaders again."""
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
    return LISTED_OFFSET.decode(one)
