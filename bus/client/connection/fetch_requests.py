"""Fetch requests and what they brought, as values for the consumer's machine and as messages.

Guards one promise: a message is taken apart once. Each access to its bytes copies them, and the message keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bus.client.config.clients import ConsumerConfig
from bus.client.connection.metadata_cache import LeaderHint, error_of, hint_of
from bus.errors import BusError
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import encode_partitions
from bus.model import TopicPartition
from bus.records.log_schema import LOG_COLUMNS


class FetchPosition(NamedTuple):
    """The position to read from in a partition. `leader_epoch` and `version` are the newest known ones, -1: not known.
    `replica_id`: the broker that is asked because the leader has named it; None: the leader is asked."""

    offset: int
    topic_id: str
    leader_epoch: int
    version: int = -1
    replica_id: int | None = None


class FetchedBatch(NamedTuple):
    """A `LogBatch` of bus.proto."""

    base_offset: int
    next_offset: int
    record_count: int
    leader_epoch: int
    timestamp_type: int
    timestamp_ms: int | None
    producer_id: int | None
    producer_epoch: int | None
    base_sequence: int | None
    payload: bytes


class FetchedPartition(NamedTuple):
    """The answer for one partition. With an `error` all other fields are empty, except `leader` if another broker
    leads. `read_replica`: the broker to ask from now on."""

    partition: TopicPartition
    error: BusError | None
    high_watermark: int
    log_start: int
    batches: list[FetchedBatch]
    size_bytes: int  # the size of the records
    leader: LeaderHint | None = None
    version: int = -1
    read_replica: int | None = None


class Fetched(NamedTuple):
    """The answer to one request. `in_session`: the broker keeps what it was asked for; the next one may say what has
    changed."""

    correlation_id: int
    throttle_time_ms: int
    partitions: list[FetchedPartition]
    in_session: bool = False


def encode_fetch(
    config: ConsumerConfig,
    correlation_id: int,
    wanted: Mapping[TopicPartition, FetchPosition],
    *,
    kept: Mapping[TopicPartition, FetchPosition] | None = None,
) -> bytes:
    """Encode a fetch. Partitions are in the order of `wanted`: an answer that is full leaves out the last ones. `kept`:
    the partitions that the broker remembers from the last request on this stream; None if it remembers none. A request
    with a rack gets no session."""
    session, forgotten = pb.FETCH_SESSION_NONE if config.client_rack else pb.FETCH_SESSION_BEGIN, list[TopicPartition]()
    if kept is not None:
        session, forgotten = pb.FETCH_SESSION_CONTINUE, [partition for partition in kept if partition not in wanted]
        wanted = {partition: position for partition, position in wanted.items() if kept.get(partition) != position}
    request = pb.FetchRequest(
        correlation_id=correlation_id,
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        columns=LOG_COLUMNS,
        rack_id=config.client_rack,
        session=session,
        forgotten=encode_partitions(forgotten),
        partitions=[
            pb.FetchPartition(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=position.topic_id,
                fetch_offset=position.offset,
                partition_max_bytes=config.max_partition_fetch_bytes,
                current_leader_epoch=position.leader_epoch if position.leader_epoch >= 0 else None,
                seen_version=position.version if position.version >= 0 else None,
            )
            for partition, position in wanted.items()
        ],
    )
    data: bytes = request.SerializeToString()
    return data


def decode_fetch(response: Any) -> Fetched:
    return Fetched(
        response.correlation_id,
        response.throttle_time_ms,
        list(map(_decode_partition, response.partitions)),
        response.in_session,
    )


def _decode_partition(answer: pb.PartitionFetchResponse) -> FetchedPartition:
    partition = TopicPartition(answer.topic, answer.partition)
    error = error_of(answer.error_code, answer.error_message or str(partition)) if answer.error_code else None
    batches = list(map(decode_batch, answer.batches))
    return FetchedPartition(
        partition,
        error,
        answer.high_watermark,
        answer.log_start_offset,
        batches,
        sum(len(batch.payload) for batch in batches),  # protobuf's ByteSize would encode them all again
        hint_of(answer),
        answer.version,
        answer.preferred_read_replica if answer.HasField("preferred_read_replica") else None,
    )


def decode_batch(message: pb.LogBatch) -> FetchedBatch:
    return FetchedBatch(
        base_offset=message.base_offset,
        next_offset=message.next_offset,
        record_count=message.record_count,
        leader_epoch=message.leader_epoch,
        timestamp_type=message.timestamp_type,
        timestamp_ms=message.timestamp_ms if message.HasField("timestamp_ms") else None,
        producer_id=message.producer_id if message.HasField("producer_id") else None,
        producer_epoch=message.producer_epoch if message.HasField("producer_epoch") else None,
        base_sequence=message.base_sequence if message.HasField("base_sequence") else None,
        payload=message.arrow,
    )
