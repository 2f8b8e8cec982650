"""Calls about more items than a broker takes in one request: clients send several, and merge the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bus import Admin, BusError, Consumer, ErrorCode, NewTopic, TopicPartition
from bus.client.connection.leader_calls import list_offsets
from bus.client.connection.retrying import monotonic_ms
from bus.client.values import OffsetAndMetadata
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.support.broker_thread import running_broker

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
# Each in a topic of its own, which makes the largest requests.
MANY = [TopicPartition(f"t{number}", 0) for number in range(12_000)]
NAMES = [partition.topic for partition in MANY]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("root") / "data") as broker:
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.create_topics([NewTopic("orders", 1)])
        yield f"127.0.0.1:{broker.port}"


# What each call answers for topics that do not exist, once it is taken.
REFUSED: dict[str, Callable[[Admin], object]] = {
    "describe_topics": lambda admin: admin.describe_topics([f"{name}-{n}" for name in NAMES[:3_000] for n in range(7)]),
    "delete_topics": lambda admin: admin.delete_topics(NAMES[:1_100]),
    "create_partitions": lambda admin: admin.create_partitions(dict.fromkeys(NAMES[:1_100], 2)),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", dict.fromkeys(MANY, 1)),
}


@pytest.mark.parametrize("call", REFUSED)
def test_every_item_is_asked_and_refused_by_name(call: str, address: str) -> None:
    with Admin(address) as admin, pytest.raises(BusError) as raised:
        REFUSED[call](admin)
    assert raised.value.code is UNKNOWN


def test_many_topics_are_checked_before_they_are_created(address: str) -> None:
    with Admin(address) as admin:
        topics = [NewTopic(name, 1, {"retention.ms": 1}) for name in NAMES[:2_100]]
        assert len(admin.create_topics(topics, validate_only=True)) == 2_100


def test_offsets_of_many_partitions_are_looked_up(address: str) -> None:
    with Admin(address) as admin, Consumer(address, group_id="g") as consumer:
        assert admin.list_group_offsets("g", MANY) == {}
        assert consumer.committed(MANY) == dict.fromkeys(MANY)


def test_consumer_commits_more_partitions_than_one_request_has(address: str) -> None:
    orders = TopicPartition("orders", 0)
    outcomes: list[BusError | None] = []
    with Consumer(address, group_id="g", enable_auto_commit=False) as consumer, Admin(address) as admin:
        offsets = {partition: OffsetAndMetadata(1) for partition in [*MANY, orders]}
        consumer.commit(offsets, asynchronous=True, callback=lambda _, error: outcomes.append(error))
        consumer.assign([orders])
        while not outcomes:
            consumer.poll(10)
        assert outcomes[0] is not None
        assert outcomes[0].code is UNKNOWN
        assert set(admin.list_group_offsets("g")) == {orders}


def test_leaders_are_asked_for_offsets_in_several_requests() -> None:
    asked: list[int] = []

    class Leaders:
        @property
        def metadata(self) -> Leaders:
            return self

        def retry(self, ask: Callable[[], object], *, deadline_ms: float) -> object:
            return ask()

        def wait_partition(self, topic: str, partition: int, *, deadline_ms: float) -> None: ...

        def leader_address(self, info: None, partition: int) -> str:
            return "b:1"

        def call(self, method: str, request: pb.ListOffsetsRequest, **_: object) -> pb.ListOffsetsResponse:
            asked.append(len(request.partitions))
            answers = [pb.ListOffsetsPartitionResponse(topic=one.topic, offset=7) for one in request.partitions]
            return pb.ListOffsetsResponse(partitions=answers)

    found = list_offsets(Leaders(), dict.fromkeys(MANY, -1), deadline_ms=monotonic_ms() + 5_000)  # type: ignore[arg-type]
    assert found.keys() == set(MANY)
    assert max(asked) <= 5_000
