"""Each owner of a request stream, with a stream that ends at each point of what the owner does: what was handed to the
stream is answered once."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from bus.client.config.clients import ConsumerConfig, ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection import request_stream
from bus.client.connection.group_requests import Heartbeat, OffsetCommit
from bus.client.connection.metadata_cache import PartitionLeader, TopicInfo
from bus.client.consumer import fetcher as fetcher_module
from bus.client.consumer.fetcher import Fetcher
from bus.client.group import link as link_module
from bus.client.group.link import GroupLink, GroupRequest
from bus.client.producer import engine as engine_module
from bus.client.producer.batch import RECORD_OVERHEAD_BYTES
from bus.client.producer.connections import Errand, Resume
from bus.client.producer.engine import Engine
from bus.client.producer.threads import PartEncoder, ProduceStream
from bus.client.values import GroupMetadata
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.spark.sink import stamped_writer
from tests.support.ending_streams import FakeCluster, Scenario, StreamBroke, play_ends_at_each_line, wait_until

ENDS: dict[str, type[BaseException] | None] = {"broken": StreamBroke, "finished": None}
ADDRESS = "a:1"
TOPIC = TopicInfo("t", "id", (PartitionLeader(0, 0, 0, 0, ""),), 0.0)


class LinkScenario:
    """A member sends a heartbeat and two commits."""

    modules = (request_stream, link_module)

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        cluster.answer = _answer_of_coordinator
        lock = cluster.readers.new_lock()
        self.changed = threading.Condition(lock)
        self.link = GroupLink(cluster, self.changed, lock, self)  # type: ignore[arg-type]
        member = GroupMetadata("g")
        calls = [Heartbeat(member), OffsetCommit(member, {}), OffsetCommit(member, {})]
        self.requests = [GroupRequest(call, ADDRESS, 30_000) for call in calls]
        self.answers: Counter[GroupRequest] = Counter()

    def take_answer(self, request: GroupRequest, answer: Any, now_ms: float) -> None:
        self.answers[request] += 1

    def take_notice(self) -> None: ...

    def tick(self, now_ms: float) -> float:
        return now_ms + 1_000_000

    def step(self) -> None:
        for together in (self.requests[:2], self.requests[2:]):
            with self.changed:
                for request in together:
                    self.link.send(request)
            self.link.deliver()

    def check(self) -> None:
        wait_until(lambda: self.answers.keys() >= set(self.requests))
        self.link.close()
        self.cluster.readers.settle()
        assert self.answers == dict.fromkeys(self.requests, 1)


class FetchScenario:
    """A consumer asks for one partition."""

    modules = (request_stream, fetcher_module)

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        cluster.answer = _answer_of_leader
        cluster.metadata.topic = lambda name: TOPIC
        cluster.metadata.leader_address = lambda info, partition: ADDRESS
        self.fetcher = Fetcher(cluster, parse_config(ConsumerConfig, {}))  # type: ignore[arg-type]
        self.fetcher.reassign([TopicPartition("t", 0)], has_committed=False)
        (self.partition,) = self.fetcher.assigned.values()
        self.partition.seek(0)

    def step(self) -> None:
        with self.fetcher.lock:
            self.fetcher.fetch(0.0)

    def check(self) -> None:
        assert self.partition.failures == 1, "the request that was lost is known to be lost"
        self.partition.is_leader_doubtful = False
        with self.fetcher.lock:
            self.fetcher.fetch(self.partition.retry_at_ms + 1)
        wait_until(lambda: self.partition.high_watermark == 5)
        self.fetcher.close()


class ProduceScenario:
    """A producer sends one record."""

    modules = (request_stream, engine_module)

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        cluster.answer = _answer_to_produce
        self.now_ms = 0.0
        self.errands: list[Errand] = []
        self.results: list[Any] = []
        config = parse_config(ProducerConfig, {"linger_ms": 0})
        encoder = PartEncoder(config)
        self.engine = Engine(
            self,
            config,
            clock=lambda: self.now_ms,
            backoff_ms=lambda failures: 100.0,
            open_stream=lambda address: ProduceStream(cluster, address, self.engine, encoder),  # type: ignore[arg-type]
            run_errand=self.errands.append,
            wake=lambda: None,
        )
        self.engine.tick()
        self.engine.on_identity(7, 0)

    def topic(self, name: str) -> TopicInfo:
        return TOPIC

    def leader_address(self, info: TopicInfo, partition: int) -> str:
        return ADDRESS

    def is_stale(self, info: TopicInfo) -> bool:
        return False

    def take_hint(self, *hint: Any) -> None: ...

    def _note(self, future: Any) -> None:
        self.results.append(future.exception())

    def step(self) -> None:
        size_bytes = RECORD_OVERHEAD_BYTES + 1
        with self.engine.lock:
            future = self.engine.add("t", (b"v", None, None, 0, 0, size_bytes), 1, deadline_ms=0)
        assert future is not None
        future.add_done_callback(self._note)
        self.engine.announce()

    def check(self) -> None:
        for _ in range(3):  # the pause, the question where the log ends, and the record once more
            self.now_ms += 1_000
            self.engine.tick()
            for errand in self.errands:
                if isinstance(errand, Resume):
                    self.engine.on_resumed(errand, last_epoch=-1, last_sequence=-1, version=0)
                else:
                    self.engine.on_refreshed({"t": None})
            self.errands.clear()
        wait_until(lambda: bool(self.results))
        self.engine.close(BusError(ErrorCode.INVALID_REQUEST, "closed"))
        self.cluster.readers.settle()
        assert self.results == [None]


class SinkScenario:
    """A task of the Spark sink sends two batches, and waits until they are in the log."""

    modules = (request_stream, stamped_writer)

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        cluster.answer = _answer_to_produce
        cluster.is_first_answered = True  # `flush` waits for nothing else
        cluster.backoff.ms = lambda attempt: 0.0
        asked: Any = cluster
        asked.metadata.topic = lambda name: TOPIC
        asked.metadata.leader_address = lambda info, partition: ADDRESS
        asked.metadata.is_stale = lambda info: False
        asked.metadata.forget = lambda names: None
        asked.metadata.take_hint = lambda *hint: False
        asked.refresh = lambda names: None
        config = parse_config(ProducerConfig, {})
        self.writer = stamped_writer.StampedWriter(asked, config, producer_id=7, producer_epoch=0)

    def step(self) -> None:
        for _ in range(2):
            self.writer.send(TopicPartition("t", 0), pa.record_batch({"value": [b"v"]}))
        self.writer.flush()
        self.is_flushed = True

    def check(self) -> None:
        assert self.is_flushed
        self.writer.close()


def _answer_of_coordinator(request: bytes) -> pb.GroupSessionResponse:
    number = pb.GroupSessionRequest.FromString(request).correlation_id
    return pb.GroupSessionResponse(correlation_id=number)


def _answer_of_leader(request: bytes) -> pb.FetchResponse | None:
    """The first request of a stream; the next one waits for records."""
    number = pb.FetchRequest.FromString(request).correlation_id
    share = pb.PartitionFetchResponse(topic="t", partition=0, high_watermark=5)
    return pb.FetchResponse(correlation_id=number, partitions=[share]) if number == 1 else None


def _answer_to_produce(request: bytes) -> pb.ProduceResponse:
    number = pb.ProduceRequest.FromString(request).correlation_id
    share = pb.PartitionProduceResponse(topic="t", partition=0, base_offset=0, version=1)
    return pb.ProduceResponse(correlation_id=number, partitions=[share])


SCENARIOS: dict[str, Any] = {
    "group session": LinkScenario,
    "fetch": FetchScenario,
    "produce": ProduceScenario,
    "sink": SinkScenario,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("has_login", [False, True], ids=["opened at once", "opened by its reader"])
@pytest.mark.parametrize("owner", SCENARIOS)
def test_what_is_handed_to_a_stream_that_ends_at_any_point_is_answered_once(
    owner: str, has_login: bool, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = SCENARIOS[owner]

    def scenario() -> Scenario:
        made: Scenario = make(FakeCluster(monkeypatch, make.modules, has_login=has_login))
        return made

    points = play_ends_at_each_line(scenario, make.modules, ENDS[end])
    assert points > 20, "the lines of the step were watched"


@pytest.mark.parametrize(
    "failure",
    [RuntimeError("can't start new thread"), BusError(ErrorCode.NETWORK_EXCEPTION, "no")],
    ids=["fault", "no"],
)
@pytest.mark.parametrize("has_login", [False, True], ids=["opened at once", "opened by its reader"])
@pytest.mark.parametrize("owner", SCENARIOS)
def test_what_is_handed_to_a_stream_that_cannot_be_opened_is_answered_once(
    owner: str, has_login: bool, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(monkeypatch, SCENARIOS[owner].modules, has_login=has_login)
    cluster.open_failure = failure
    one = SCENARIOS[owner](cluster)
    one.step()
    cluster.readers.settle()
    one.check()
