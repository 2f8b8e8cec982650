"""A small honest broker for tests of the SDK: gRPC on a free loopback port, logs in lists, faults as scripted.

It keeps the wire contract of bus.proto (answers in order, dense offsets, long polls), but has no storage, no rules of
topics and no group commit. A version is the number of appends of a partition.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import pyarrow as pa

from bus.errors import ErrorCode, show_range
from bus.grpc_api.contract import CALLS, CONTRACT_VERSION
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.records.arrow_batches import decode_arrow, encode_arrow
from tests.support.fake_coordinator import FakeCoordinator


@dataclass
class FakePartition:
    batches: list[pb.LogBatch] = field(default_factory=list)
    log_start: int = 0
    leader_id: int = 0
    leader_epoch: int = 0
    # Of idempotent producers: producer id -> (epoch, last sequence), and where each batch is.
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    known: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)
    fences: dict[int, int] = field(default_factory=dict)  # producer id -> lowest epoch that may append

    @property
    def high_watermark(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.log_start

    def values(self) -> list[bytes | None]:
        """All values, in offset order."""
        return [value for batch in self.batches for value in decode_arrow(batch.arrow).column("value").to_pylist()]


@dataclass
class FakeTopic:
    topic_id: str
    partitions: list[FakePartition]


@dataclass(frozen=True)
class FakeIdentity:
    """The identity of a producer with a name. `last_epoch`: the one that this instance had before, -1 if there was
    none."""

    id: int
    epoch: int
    last_epoch: int


@dataclass(frozen=True)
class Refuse:
    """Answer this partition's share with an error; nothing is appended. `record_errors`: position -> what is wrong with
    this record alone."""

    code: ErrorCode
    message: str = "as the test wants it"
    record_errors: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BreakStream:
    """End the stream instead of answering; `is_appended`: the records are in the log, only the answer is lost."""

    is_appended: bool
    status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE


@dataclass(frozen=True)
class Append:
    """Append as if there were no script."""


@dataclass(frozen=True)
class AppendThenRefuse:
    """An unknown outcome: the records are in the log, the answer says otherwise."""

    code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT


@dataclass(frozen=True)
class Answer:
    """Answer a fetch of a partition with these very batches."""

    batches: tuple[pb.LogBatch, ...]


class Cluster:
    """The state that the brokers of one cluster share. The first broker, 0, leads every partition until a test moves
    it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.topics: dict[str, FakeTopic] = {}
        self.addresses: dict[int, str] = {}
        self.fenced: set[int] = set()
        self.read_replicas: dict[str, int] = {}  # by rack: the broker to which leaders send consumers of it
        self.controller_id = 0
        self.producer_ids = itertools.count(1_000)
        self.names: dict[str, FakeIdentity] = {}
        self.coordinator = FakeCoordinator(self.changed)
        self.coordinator_id = 0

    def create(self, name: str, partitions: int = 1) -> FakeTopic:
        with self.changed:
            topic = FakeTopic(str(uuid.uuid4()), [FakePartition() for _ in range(partitions)])
            self.topics[name] = topic
            return topic

    def move(self, name: str, partition: int, leader_id: int) -> None:
        with self.changed:
            moved = self.topics[name].partitions[partition]
            moved.leader_id = leader_id
            moved.leader_epoch += 1
            self.changed.notify_all()


FakeBrokerT = TypeVar("FakeBrokerT", bound="FakeBroker")


class FakeBroker(bus_pb2_grpc.BusServicer):
    """`produce_script` and `fetch_script` hold what to do with the next shares of partitions, in order of arrival;
    `identity_script` is for InitProducerId and ResumeProducer.

    `gate`, while cleared, holds every answer to a produce request back (it is appended all the same).
    """

    def __init__(self, cluster: Cluster | None = None, broker_id: int = 0, *, address: str = "127.0.0.1:0") -> None:
        self.cluster = cluster or Cluster()
        self.broker_id = broker_id
        self.produce_script: deque[Append | Refuse | BreakStream | AppendThenRefuse] = deque()
        self.fetch_script: deque[Append | Refuse | BreakStream | Answer] = deque()
        self.control_script: deque[Refuse | BreakStream] = deque()
        self.identity_script: deque[Refuse | BreakStream] = deque()
        self.on_metadata: Callable[[], None] | None = None
        self.produce_requests: list[pb.ProduceRequest] = []
        self.fetch_requests: list[pb.FetchRequest] = []  # each with all partitions that its session is for
        self.fetch_messages: list[pb.FetchRequest] = []  # as they came on streams
        self.keeps_sessions = True
        self.resume_requests: list[pb.ResumeProducerRequest] = []
        self.calls: list[str] = []
        self.client_ids: set[str] = set()
        self.created: list[str] = []  # topics that a client wanted created; they are not
        self.gate = threading.Event()
        self.gate.set()
        self._is_stopping = False
        # A server's own option: a port that another server listens on is refused, not shared.
        self._server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0), *_NO_SIZE_LIMITS])
        bus_pb2_grpc.add_BusServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{self.port}"
        self.cluster.addresses[broker_id] = self.address
        self._server.start()

    def stop(self) -> None:
        with self.cluster.changed:
            self._is_stopping = True
            self.cluster.coordinator.is_stopping = True
            self.cluster.changed.notify_all()
        self.gate.set()
        self._server.stop(grace=0).wait()

    def __enter__(self: FakeBrokerT) -> FakeBrokerT:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # ------------------------------------------------------------ produce

    def Produce(self, requests: Iterator[pb.ProduceRequest], context: Any) -> Iterator[pb.ProduceResponse]:
        self.client_ids.add(dict(context.invocation_metadata()).get("client-id", ""))
        for request in requests:
            yield self._produce(request, context)

    def ProduceOnce(self, request: pb.ProduceRequest, context: Any) -> pb.ProduceResponse:
        return self._produce(request, context)

    def _produce(self, request: pb.ProduceRequest, context: Any) -> pb.ProduceResponse:
        with self.cluster.changed:
            self.produce_requests.append(request)
            answers = [self._produce_share(data, request, context) for data in request.partitions]
            self.cluster.changed.notify_all()
        self.gate.wait()
        return pb.ProduceResponse(correlation_id=request.correlation_id, partitions=answers)

    def _produce_share(
        self, data: pb.PartitionProduceData, request: pb.ProduceRequest, context: Any
    ) -> pb.PartitionProduceResponse:
        step = self.produce_script.popleft() if self.produce_script else Append()
        refusal = self._check(data.topic, data.partition, data.topic_id)
        if isinstance(step, Refuse):
            refusal = step
        if isinstance(step, BreakStream) and not step.is_appended:
            context.abort(step.status, "as the test wants it")
        if refusal is None:
            placed = self._append_in_order(data)
            if isinstance(placed, Refuse):
                refusal = placed
            else:
                base_offset, version = placed
        if isinstance(step, BreakStream):
            context.abort(step.status, "as the test wants it")
        if isinstance(step, AppendThenRefuse):
            refusal = Refuse(step.code)
        if refusal is not None:
            return pb.PartitionProduceResponse(
                topic=data.topic,
                partition=data.partition,
                error_code=int(refusal.code),
                error_message=refusal.message,
                base_offset=-1,
                log_append_time_ms=-1,
                version=-1,
                record_errors=[
                    pb.RecordError(index=index, message=message) for index, message in refusal.record_errors.items()
                ],
            )
        return pb.PartitionProduceResponse(
            topic=data.topic,
            partition=data.partition,
            base_offset=-1 if request.acks == 0 else base_offset,
            log_append_time_ms=-1,
            version=version if request.acks == -1 else -1,
        )

    def _append_in_order(self, data: pb.PartitionProduceData) -> tuple[int, int] | Refuse:
        """Once for each stamp, by the contract of bus.proto."""
        if not data.HasField("producer_id"):
            return self.append(data.topic, data.partition, _payload(data), data.timestamp_ms)
        log = self.cluster.topics[data.topic].partitions[data.partition]
        epoch, last = log.producers.get(data.producer_id, (-1, -1))
        least = max(epoch, log.fences.get(data.producer_id, -1))
        current = next((held.epoch for held in self.cluster.names.values() if held.id == data.producer_id), 0)
        if data.producer_epoch < current:
            return Refuse(ErrorCode.PRODUCER_FENCED, f"expected epoch {current}, found {data.producer_epoch}")
        if data.producer_epoch < least:
            return Refuse(ErrorCode.INVALID_PRODUCER_EPOCH, f"expected epoch {least}, found {data.producer_epoch}")
        stamp = (data.producer_id, data.producer_epoch, data.base_sequence)
        if stamp in log.known:
            return log.known[stamp]
        if data.base_sequence != last + 1 and not (data.producer_epoch > epoch and data.base_sequence == 0):
            return Refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"expected {last + 1}, found {data.base_sequence}")
        placed = self.append(data.topic, data.partition, _payload(data), data.timestamp_ms)
        count = log.batches[-1].record_count
        log.producers[data.producer_id] = (data.producer_epoch, data.base_sequence + count - 1)
        log.known[stamp] = placed
        return placed

    def InitProducerId(self, request: pb.InitProducerIdRequest, context: Any) -> pb.InitProducerIdResponse:
        self._note("InitProducerId", context)
        step = self._identity_step(context)
        if isinstance(step, Refuse):
            return pb.InitProducerIdResponse(error_code=int(step.code), error_message=step.message)
        with self.cluster.changed:
            answer = self._identity_for(request)
        if step is not None:
            context.abort(step.status, "as the test wants it")
        return answer

    def _identity_for(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        if not request.name:
            return pb.InitProducerIdResponse(producer_id=next(self.cluster.producer_ids))
        found = self.cluster.names.get(request.name)
        if found is None:
            found = FakeIdentity(next(self.cluster.producer_ids), 0, -1)
        elif request.keep_epoch:
            pass
        elif not request.HasField("producer_id"):
            found = FakeIdentity(found.id, found.epoch + 1, -1)
        elif request.producer_epoch == found.epoch:
            found = FakeIdentity(found.id, found.epoch + 1, found.epoch)
        elif request.producer_epoch != found.last_epoch:  # else it asks again, since the answer was lost
            return pb.InitProducerIdResponse(error_code=pb.ERROR_CODE_PRODUCER_FENCED, error_message="fenced")
        self.cluster.names[request.name] = found
        return pb.InitProducerIdResponse(producer_id=found.id, producer_epoch=found.epoch)

    def ResumeProducer(self, request: pb.ResumeProducerRequest, context: Any) -> pb.ResumeProducerResponse:
        self._note("ResumeProducer", context)
        step = self._identity_step(context)
        with self.cluster.changed:
            self.resume_requests.append(request)
            answers = [self._resume(request, asked, step) for asked in request.partitions]
        if isinstance(step, BreakStream):
            context.abort(step.status, "as the test wants it")
        return pb.ResumeProducerResponse(partitions=answers)

    def _identity_step(self, context: Any) -> Refuse | BreakStream | None:
        step = self.identity_script.popleft() if self.identity_script else None
        if isinstance(step, BreakStream) and not step.is_appended:
            context.abort(step.status, "as the test wants it")
        return step

    def _resume(
        self, request: pb.ResumeProducerRequest, asked: pb.ResumeProducerPartition, step: Refuse | BreakStream | None
    ) -> pb.ResumeProducerPartitionResponse:
        answer = pb.ResumeProducerPartitionResponse(topic=asked.topic, partition=asked.partition)
        refusal = step if isinstance(step, Refuse) else self._check(asked.topic, asked.partition, asked.topic_id)
        if refusal is not None:
            answer.error_code, answer.error_message = int(refusal.code), refusal.message
            return answer
        log = self.cluster.topics[asked.topic].partitions[asked.partition]
        log.fences[request.producer_id] = max(request.producer_epoch, log.fences.get(request.producer_id, -1))
        answer.last_epoch, answer.last_sequence = log.producers.get(request.producer_id, (-1, -1))
        answer.version = len(log.batches)
        return answer

    def append(self, topic: str, partition: int, arrow: bytes, timestamp_ms: int = 0) -> tuple[int, int]:
        """The Arrow bytes at the end of a log, as they are."""
        batch = decode_arrow(arrow)
        log = self.cluster.topics[topic].partitions[partition]
        base_offset = log.high_watermark
        has_timestamps = "timestamp" in batch.schema.names
        log.batches.append(
            pb.LogBatch(
                base_offset=base_offset,
                next_offset=base_offset + batch.num_rows,
                record_count=batch.num_rows,
                leader_epoch=log.leader_epoch,
                timestamp_ms=None if has_timestamps else timestamp_ms,
                arrow=encode_arrow(batch),
            )
        )
        return base_offset, len(log.batches)

    def _check(self, topic: str, partition: int, topic_id: str) -> Refuse | None:
        found = self.cluster.topics.get(topic)
        if found is None or partition >= len(found.partitions):
            return Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {topic}-{partition}")
        if topic_id and topic_id != found.topic_id:
            return Refuse(ErrorCode.INCONSISTENT_TOPIC_ID, f"expected id {found.topic_id}, found {topic_id}")
        if found.partitions[partition].leader_id != self.broker_id:
            return Refuse(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} does not lead {topic}-{partition}"
            )
        return None

    # ------------------------------------------------------------ fetch

    def Fetch(self, requests: Iterator[pb.FetchRequest], context: Any) -> Iterator[pb.FetchResponse]:
        """Keeps a session of each stream that asks for one, and still tells of all its partitions."""
        kept: dict[tuple[str, int], pb.FetchPartition] = {}
        is_kept = False
        for request in requests:
            self.fetch_messages.append(request)
            if request.session != pb.FETCH_SESSION_CONTINUE:
                kept = {}
            elif not is_kept:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no session")
            for topic in request.forgotten:
                for number in topic.partitions:
                    del kept[topic.topic, number]
            kept |= {(share.topic, share.partition): share for share in request.partitions}
            is_kept = self.keeps_sessions and request.session != pb.FETCH_SESSION_NONE
            whole = pb.FetchRequest()
            whole.CopyFrom(request)
            del whole.partitions[:]
            whole.partitions.extend(kept.values())
            answer = self._fetch(whole, context)
            answer.in_session = is_kept
            yield answer

    def FetchOnce(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:
        return self._fetch(request, context)

    def _fetch(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:
        changed = self.cluster.changed
        deadline = time.monotonic() + request.max_wait_ms / 1000

        def wake() -> None:
            with changed:
                changed.notify_all()

        context.add_callback(wake)
        with changed:
            self.fetch_requests.append(request)
            changed.notify_all()
            while True:
                answers = [self._fetch_share(share, request, context) for share in request.partitions]
                news = [answer for answer in answers if answer.batches or answer.error_code]
                remaining = deadline - time.monotonic()
                if news or remaining <= 0 or self._is_stopping or not context.is_active():
                    return pb.FetchResponse(correlation_id=request.correlation_id, partitions=news or answers)
                changed.wait(remaining)

    def _fetch_share(
        self, share: pb.FetchPartition, request: pb.FetchRequest, context: Any
    ) -> pb.PartitionFetchResponse:
        answer = pb.PartitionFetchResponse(topic=share.topic, partition=share.partition)
        step = self.fetch_script.popleft() if self.fetch_script else Append()
        if isinstance(step, BreakStream):
            context.abort(step.status, "as the test wants it")
        refusal = step if isinstance(step, Refuse) else self._check_fetch(share, request.rack_id)
        if refusal is not None:
            answer.error_code, answer.error_message = int(refusal.code), refusal.message
            return answer
        log = self.cluster.topics[share.topic].partitions[share.partition]
        answer.high_watermark, answer.log_start_offset = log.high_watermark, log.log_start
        answer.version = len(log.batches)
        replica_id = self.cluster.read_replicas.get(request.rack_id)
        if replica_id is not None and log.leader_id == self.broker_id != replica_id:
            answer.preferred_read_replica = replica_id
        answer.batches.extend(step.batches if isinstance(step, Answer) else _from_offset(log, share))
        return answer

    def _check_fetch(self, share: pb.FetchPartition, rack: str) -> Refuse | None:
        refusal = self._check(share.topic, share.partition, share.topic_id)
        is_replica = self.cluster.read_replicas.get(rack) == self.broker_id
        if refusal is not None and not (is_replica and refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER):
            return refusal
        log = self.cluster.topics[share.topic].partitions[share.partition]
        if share.HasField("current_leader_epoch") and share.current_leader_epoch != log.leader_epoch:
            stale = share.current_leader_epoch < log.leader_epoch
            return Refuse(ErrorCode.FENCED_LEADER_EPOCH if stale else ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not log.log_start <= share.fetch_offset <= log.high_watermark:
            return Refuse(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"expected an offset {show_range(log.log_start, log.high_watermark)}, found {share.fetch_offset}",
            )
        return None

    # ------------------------------------------------------------ groups

    def FindCoordinator(self, request: pb.FindCoordinatorRequest, context: Any) -> pb.FindCoordinatorResponse:
        self._note("FindCoordinator", context)
        with self.cluster.changed:
            code = self.cluster.coordinator.refusal("FindCoordinator")
            host, port = self.cluster.addresses[self.cluster.coordinator_id].rsplit(":", 1)
            broker = pb.Broker(broker_id=self.cluster.coordinator_id, host=host, port=int(port))
            return pb.FindCoordinatorResponse(error_code=code, coordinator=broker)

    def JoinGroup(self, request: pb.JoinGroupRequest, context: Any) -> pb.JoinGroupResponse:
        self._note("JoinGroup", context)
        with self.cluster.changed:
            return self.cluster.coordinator.join(request, context)

    def SyncGroup(self, request: pb.SyncGroupRequest, context: Any) -> pb.SyncGroupResponse:
        self._note("SyncGroup", context)
        with self.cluster.changed:
            return self.cluster.coordinator.sync(request, context)

    def LeaveGroup(self, request: pb.LeaveGroupRequest, context: Any) -> pb.LeaveGroupResponse:
        self._note("LeaveGroup", context)
        with self.cluster.changed:
            return self.cluster.coordinator.leave(request)

    def OffsetFetch(self, request: pb.OffsetFetchRequest, context: Any) -> pb.OffsetFetchResponse:
        self._note("OffsetFetch", context)
        with self.cluster.changed:
            return self.cluster.coordinator.fetch_offsets(request)

    def GroupSession(
        self, requests: Iterator[pb.GroupSessionRequest], context: Any
    ) -> Iterator[pb.GroupSessionResponse]:
        return self.cluster.coordinator.session(requests, context)

    # ------------------------------------------------------------ everything else

    def ListOffsets(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:
        self._note("ListOffsets", context)
        with self.cluster.changed:
            return pb.ListOffsetsResponse(partitions=[self._list_offset(wanted) for wanted in request.partitions])

    def _list_offset(self, wanted: pb.ListOffsetsPartition) -> pb.ListOffsetsPartitionResponse:
        refusal = self.control_script.popleft() if self.control_script else None
        if not isinstance(refusal, Refuse):
            refusal = self._check(wanted.topic, wanted.partition, "")
        answer = pb.ListOffsetsPartitionResponse(topic=wanted.topic, partition=wanted.partition, timestamp_ms=-1)
        if refusal is not None:
            answer.error_code, answer.error_message = int(refusal.code), refusal.message
            return answer
        log = self.cluster.topics[wanted.topic].partitions[wanted.partition]
        answer.version, answer.leader_epoch = len(log.batches), log.leader_epoch
        if wanted.timestamp_ms in (-1, -2):
            answer.offset = log.high_watermark if wanted.timestamp_ms == -1 else log.log_start
            return answer
        at = [batch for batch in log.batches if batch.timestamp_ms >= wanted.timestamp_ms]
        answer.offset = at[0].base_offset if at else -1
        answer.timestamp_ms = at[0].timestamp_ms if at else -1
        return answer

    def Metadata(self, request: pb.MetadataRequest, context: Any) -> pb.MetadataResponse:
        self._note("Metadata", context)
        if self.on_metadata is not None:
            self.on_metadata()
        if self.control_script and isinstance(self.control_script[0], BreakStream):
            context.abort(self.control_script.popleft().status, "as the test wants it")  # type: ignore[union-attr]
        with self.cluster.changed:
            names = list(request.topics) or sorted(self.cluster.topics)
            if request.allow_auto_topic_creation:
                self.created += [name for name in names if name not in self.cluster.topics]
            brokers = [
                (number, *address.rsplit(":", 1))
                for number, address in self.cluster.addresses.items()
                if number not in self.cluster.fenced
            ]
            return pb.MetadataResponse(
                cluster_id="fake",
                controller_id=self.cluster.controller_id,
                brokers=[pb.Broker(broker_id=number, host=host, port=int(port)) for number, host, port in brokers],
                topics=[self._describe(name) for name in names],
                root="memory:///fake",
            )

    def ApiVersions(self, request: pb.ApiVersionsRequest, context: Any) -> pb.ApiVersionsResponse:
        """It is no call of the tests, so it is not noted."""
        return pb.ApiVersionsResponse(contract_version=CONTRACT_VERSION, calls=CALLS)

    def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Any) -> pb.DescribeClusterResponse:
        self._note("DescribeCluster", context)
        if self.control_script and isinstance(self.control_script[0], BreakStream):
            context.abort(self.control_script.popleft().status, "as the test wants it")  # type: ignore[union-attr]
        with self.cluster.changed:
            brokers = [
                pb.ClusterBroker(
                    broker_id=number,
                    host=address.rpartition(":")[0],
                    port=int(address.rpartition(":")[2]),
                    is_fenced=number in self.cluster.fenced,
                )
                for number, address in self.cluster.addresses.items()
            ]
        return pb.DescribeClusterResponse(cluster_id="fake", root="memory:///fake", brokers=brokers)

    def _describe(self, name: str) -> pb.TopicMetadata:
        topic = self.cluster.topics.get(name)
        if topic is None:
            code = pb.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
            return pb.TopicMetadata(name=name, error_code=code, error_message=f"topic {name!r} does not exist")
        return pb.TopicMetadata(
            name=name,
            topic_id=topic.topic_id,
            is_internal=name.startswith("__"),
            partitions=[
                pb.PartitionMetadata(partition=number, leader_id=log.leader_id, leader_epoch=log.leader_epoch)
                for number, log in enumerate(topic.partitions)
            ],
        )

    def CreateTopics(self, request: pb.CreateTopicsRequest, context: Any) -> pb.CreateTopicsResponse:
        self._note("CreateTopics", context)
        return pb.CreateTopicsResponse(topics=[self._create(topic, request.validate_only) for topic in request.topics])

    def _create(self, topic: pb.NewTopic, validate_only: bool) -> pb.TopicResult:
        result = pb.TopicResult(name=topic.name, partitions=max(1, topic.partitions))
        if topic.name in self.cluster.topics:
            result.error_code = pb.ERROR_CODE_TOPIC_ALREADY_EXISTS
            result.error_message = f"topic {topic.name!r} exists"
        elif not validate_only:
            result.topic_id = self.cluster.create(topic.name, result.partitions).topic_id
        return result

    def DeleteTopics(self, request: pb.DeleteTopicsRequest, context: Any) -> pb.DeleteTopicsResponse:
        self._note("DeleteTopics", context)
        results = []
        for name in request.topics:
            found = self.cluster.topics.pop(name, None)
            code = pb.ERROR_CODE_NONE if found else pb.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
            results.append(pb.TopicResult(name=name, error_code=code, error_message="" if found else "no such topic"))
        return pb.DeleteTopicsResponse(topics=results)

    def _note(self, call: str, context: Any) -> None:
        self.calls.append(call)
        self.client_ids.add(dict(context.invocation_metadata()).get("client-id", ""))


def _payload(data: pb.PartitionProduceData) -> bytes:
    if data.codec == pb.PAYLOAD_CODEC_NONE:
        return data.arrow
    name = {pb.PAYLOAD_CODEC_GZIP: "gzip", pb.PAYLOAD_CODEC_SNAPPY: "snappy"}[data.codec]
    unpacked: bytes = pa.Codec(name).decompress(data.arrow, data.uncompressed_bytes, asbytes=True)
    return unpacked


_NO_SIZE_LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _from_offset(log: FakePartition, share: pb.FetchPartition) -> list[pb.LogBatch]:
    """Whole batches up to partition_max_bytes, at least one; the first may begin below the offset."""
    found: list[pb.LogBatch] = []
    size = 0
    for batch in log.batches:
        if batch.next_offset <= share.fetch_offset:
            continue
        size += len(batch.arrow)
        if found and size > share.partition_max_bytes:
            break
        found.append(batch)
    return found
