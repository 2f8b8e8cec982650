"""Fetch sessions as they go over the wire: when a broker keeps one, and what a request of one is answered."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bus import Admin, NewTopic, Producer
from bus.broker_api import fetch as fetch_api
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from tests.support.broker_thread import running_broker

BEGIN, CONTINUE = pb.FETCH_SESSION_BEGIN, pb.FETCH_SESSION_CONTINUE
PARTITIONS = 3
WAIT_S = 20


class Stream:
    """One Fetch stream, with a record in partition 0 of the topic."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address)
        self._requests: queue.SimpleQueue[pb.FetchRequest | None] = queue.SimpleQueue()
        self._answers = bus_pb2_grpc.BusStub(self.channel).Fetch(iter(self._requests.get, None))

    def ask(self, *offsets: int | None, session: int = CONTINUE, **more: Any) -> dict[int, int] | None:
        """`offsets` by partition, None: not named. High watermarks of the partitions in the answer, -1 of what is
        refused; None: it says that there is no session."""
        partitions = [
            pb.FetchPartition(topic="t", partition=number, fetch_offset=offset)
            for number, offset in enumerate(offsets)
            if offset is not None
        ]
        self._requests.put(pb.FetchRequest(partitions=partitions, session=session, **more))
        answer = next(self._answers)
        found = {one.partition: one.high_watermark for one in answer.partitions}
        return found if answer.in_session else None

    def close(self) -> None:
        self._requests.put(None)
        self.channel.close()


@contextmanager
def streaming(folder: Path) -> Iterator[Stream]:
    with running_broker(folder / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", partitions=PARTITIONS)])
        produce(address, 0)
        stream = Stream(address)
        try:
            yield stream
        finally:
            stream.close()


def produce(address: str, partition: int) -> None:
    with Producer(address) as producer:
        producer.send("t", b"v", partition=partition).result(WAIT_S)


def test_request_of_a_session_names_what_has_changed_and_so_does_its_answer(tmp_path: Path) -> None:
    with streaming(tmp_path) as stream:
        assert stream.ask(0, 0, 0, session=BEGIN) == {0: 1, 1: 0, 2: 0}
        assert stream.ask(1) == {}
        produce(stream.address, 2)
        assert stream.ask(max_wait_ms=20_000, min_bytes=1) == {2: 1}
        forgotten = [pb.TopicPartitions(topic="t", partitions=[0, 2])]
        assert stream.ask(None, 0, forgotten=forgotten) == {}
        produce(stream.address, 0)
        assert stream.ask() == {}, "it is not asked for any more"
        assert stream.ask(1) == {0: 2}
        assert stream.ask(0, session=BEGIN) == {0: 2}, "another session, of one partition"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, {"session": CONTINUE}),
        ({"session": pb.FETCH_SESSION_NONE}, {"session": CONTINUE}),
        ({"session": BEGIN, "rack_id": "a"}, {"session": CONTINUE}),
        ({"session": BEGIN, "format": 99}, {"session": CONTINUE}),
        ({"session": BEGIN}, {"session": BEGIN, "forgotten": [pb.TopicPartitions(topic="t", partitions=[0])]}),
    ],
    ids=["nothing before", "none begun", "a rack", "refused", "forgotten without one"],
)
def test_request_of_a_session_that_is_not_there_ends_the_stream(
    tmp_path: Path, first: dict[str, Any] | None, second: dict[str, Any]
) -> None:
    with streaming(tmp_path) as stream:
        requests = [pb.FetchRequest(**one) for one in (first, second) if one is not None]
        answers = bus_pb2_grpc.BusStub(stream.channel).Fetch(iter(requests))
        if first is not None:
            assert next(answers).in_session == (first == {"session": BEGIN})
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "FETCH_SESSION_CONTINUE" in (caught.value.details() or "")


def test_request_that_is_no_stream_has_no_session(tmp_path: Path) -> None:
    with streaming(tmp_path) as stream:
        request = pb.FetchRequest(partitions=[pb.FetchPartition(topic="t")], session=BEGIN)
        answer = bus_pb2_grpc.BusStub(stream.channel).FetchOnce(request)
        assert (len(answer.partitions), answer.in_session) == (1, False)


@pytest.mark.parametrize(
    "more",
    [
        {"max_bytes": -1},
        {"partitions": [pb.FetchPartition(topic="t", partition=1, partition_max_bytes=-1)]},
        {"partitions": [pb.FetchPartition(topic="t", partition=1)] * 2},
    ],
    ids=["size of the answer", "size of a partition", "named twice"],
)
def test_session_that_cannot_hold_what_a_request_names_ends(tmp_path: Path, more: dict[str, Any]) -> None:
    with streaming(tmp_path) as stream:
        requests = [
            pb.FetchRequest(session=BEGIN, partitions=[pb.FetchPartition(topic="t")]),
            pb.FetchRequest(session=CONTINUE, **more),
        ]
        answers = list(bus_pb2_grpc.BusStub(stream.channel).Fetch(iter(requests)))
        assert [answer.in_session for answer in answers] == [True, False]


def test_session_beyond_the_bound_is_answered_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_api, "SESSION_POSITIONS_MAX", 2)
    with streaming(tmp_path) as stream:
        assert stream.ask(0, 0, session=BEGIN) == {0: 1, 1: 0}
        assert stream.ask(None, None, 0) is None
        assert stream.ask(0, 0, session=BEGIN) == {0: 1, 1: 0}
