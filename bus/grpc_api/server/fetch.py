"""Fetch: long polls over a stream, answered in order; the client may ask again before it has read the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from bus.errors import Refused
from bus.grpc_api.server.codec import DEFAULT_FETCH_COLUMNS, check_columns, encode_batches, encode_records
from bus.grpc_api.server.requests import StreamRegistry, new_request_id
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import encode_field, tag_of
from bus.model import TopicPartition
from bus.runtime.cluster import Cluster
from bus.runtime.fetches import DEFAULT_PARTITION_BYTES_MAX, FetchPosition, FetchResult, FetchWish, fetch
from bus.runtime.logs import request_id

# Requests that wait on one stream for the answers before them.
STREAM_REQUESTS_MAX = 16

_PARTITIONS = tag_of(pb.FetchResponse, "partitions")
_BATCHES = tag_of(pb.PartitionFetchResponse, "batches")


class FetchHandler:
    def __init__(self, cluster: Cluster, streams: StreamRegistry, fetch_bytes_max: int) -> None:
        self._cluster = cluster
        self._streams = streams
        self._fetch_bytes_max = fetch_bytes_max

    async def once(self, request: pb.FetchRequest) -> bytes:
        request_id.set(new_request_id())
        return await self._fetch(request)

    async def stream(self, requests: AsyncIterator[pb.FetchRequest], context: grpc.aio.ServicerContext) -> None:
        stream_id = new_request_id()
        queue: _Queue = asyncio.Queue(STREAM_REQUESTS_MAX)
        reader = self._streams.start(_read(requests, queue), f"fetch/{stream_id}")
        reader.add_done_callback(lambda _: _end(queue))
        try:
            while (request := await queue.get()) is not None:
                if isinstance(request, Exception):
                    raise request
                request_id.set(f"{stream_id}/{request.correlation_id}")
                await context.write(await self._fetch(request))
        finally:
            reader.cancel()

    async def _fetch(self, request: pb.FetchRequest) -> bytes:
        """A serialized `pb.FetchResponse`: the generated code would copy the records half a dozen times."""
        response: list[Any] = [pb.FetchResponse(correlation_id=request.correlation_id).SerializeToString()]
        columns = tuple(request.columns) or DEFAULT_FETCH_COLUMNS
        refusal = check_columns(columns)
        if refusal is not None:
            for asked in request.partitions:
                answer = _encode(TopicPartition(asked.topic, asked.partition), refusal)
                response += encode_field(_PARTITIONS, [answer.SerializeToString()])
            return b"".join(response)
        wish = self._wish(request)
        results = await fetch(wish, self._cluster.find_partition, self._streams.draining)
        has_news = any(isinstance(result, Refused) or result.batches for _, result in results)
        for position, (partition, result) in zip(wish.positions, results, strict=True):
            if has_news and not isinstance(result, Refused) and not result.batches:
                continue
            answer = _encode(partition, result)
            pieces: list[Any] = []
            if not isinstance(result, Refused):
                if request.format == pb.RECORD_FORMAT_RECORDS:
                    answer.records.records.extend(encode_records(result.batches, position.offset))
                else:
                    for batch in encode_batches(result.batches, columns):
                        pieces += encode_field(_BATCHES, batch)
            response += encode_field(_PARTITIONS, [answer.SerializeToString(), *pieces])
        return b"".join(response)

    def _wish(self, request: pb.FetchRequest) -> FetchWish:
        """The partitions in turn: the one that was first last time is last now, so none is starved by `max_bytes`."""
        asked = list(request.partitions)
        first = request.correlation_id % len(asked) if asked else 0
        positions = [
            FetchPosition(
                TopicPartition(partition.topic, partition.partition),
                partition.topic_id,
                partition.fetch_offset,
                partition.partition_max_bytes or DEFAULT_PARTITION_BYTES_MAX,
                partition.current_leader_epoch if partition.HasField("current_leader_epoch") else None,
            )
            for partition in asked[first:] + asked[:first]
        ]
        bytes_max = min(request.max_bytes or self._fetch_bytes_max, self._fetch_bytes_max)
        return FetchWish(positions, max(0, request.max_wait_ms), max(0, request.min_bytes), bytes_max)


_Queue = asyncio.Queue[pb.FetchRequest | Exception | None]


async def _read(requests: AsyncIterator[pb.FetchRequest], queue: _Queue) -> None:
    """A request that cannot be read is raised where its answer would be."""
    try:
        async for request in requests:
            await queue.put(request)
    except Exception as error:
        await queue.put(error)


def _end(queue: _Queue) -> None:
    """Whatever still waits is dropped, if need be: a fetch that is not answered loses nothing."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(None)


def _encode(partition: TopicPartition, result: FetchResult) -> pb.PartitionFetchResponse:
    if isinstance(result, Refused):
        return pb.PartitionFetchResponse(
            topic=partition.topic,
            partition=partition.partition,
            error_code=int(result.code),  # type: ignore[arg-type]
            error_message=result.message,
            high_watermark=-1,
            log_start_offset=-1,
            version=-1,
        )
    return pb.PartitionFetchResponse(
        topic=partition.topic,
        partition=partition.partition,
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start,
        version=result.version,
    )
