from __future__ import annotations

import queue
from typing import Any

import pytest

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.cluster import Cluster
from bus.client.connection.metadata_cache import LeaderHint
from bus.client.connection.retrying import monotonic_ms
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb


class ScriptedCluster(Cluster):
    """Each call gets the next of `answers`."""

    def __init__(self, *answers: Any) -> None:
        configs = {"retry_backoff_ms": 1, "reconnect_backoff_ms": 1}
        super().__init__(["127.0.0.1:1"], parse_config(ProducerConfig, configs))
        self.answers = list(answers)

    def call(self, method: str, request: Any, **times: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BusError):
            raise answer
        return answer


def topic_of(partition_count: int) -> pb.MetadataResponse:
    partitions = [pb.PartitionMetadata(partition=number, leader_id=1) for number in range(partition_count)]
    return pb.MetadataResponse(topics=[pb.TopicMetadata(name="t", topic_id="id", partitions=partitions)])


AWAY = BusError(ErrorCode.NETWORK_EXCEPTION, "away")


def test_partition_that_is_not_known_yet_is_asked_for_until_a_broker_answers() -> None:
    cluster = ScriptedCluster(topic_of(1), AWAY, AWAY, topic_of(2))
    info = cluster.refresh(["t"])["t"]
    assert len(cluster.with_partition(info, 1, deadline_ms=monotonic_ms() + 60_000).partitions) == 2


def test_broker_that_does_not_know_the_partition_has_the_last_word() -> None:
    cluster = ScriptedCluster(topic_of(1), AWAY, topic_of(1))
    info = cluster.refresh(["t"])["t"]
    with pytest.raises(BusError, match="that is 0, found 1"):
        cluster.with_partition(info, 1, deadline_ms=monotonic_ms() + 60_000)
    assert cluster.answers == []


def led_by(leader_id: int, leader_epoch: int) -> pb.MetadataResponse:
    partitions = [
        pb.PartitionMetadata(partition=0, leader_id=leader_id, leader_epoch=leader_epoch, error_code=5),
        pb.PartitionMetadata(partition=1, leader_id=1, leader_epoch=4),
    ]
    return pb.MetadataResponse(
        topics=[pb.TopicMetadata(name="t", topic_id="id", partitions=partitions)],
        brokers=[pb.Broker(broker_id=number, host="h", port=number) for number in (1, 2)],
    )


@pytest.mark.parametrize(
    ("hint", "address"),
    [
        (LeaderHint(3, 8, "new:3"), "new:3"),
        (LeaderHint(2, 8, "moved:2"), "moved:2"),
        (LeaderHint(3, 7, "new:3"), "h:1"),
        (LeaderHint(3, 6, "new:3"), "h:1"),
    ],
)
def test_hint_counts_if_its_leader_epoch_is_newer_than_what_is_known(hint: LeaderHint, address: str) -> None:
    cluster = ScriptedCluster(led_by(1, 7))
    cluster.refresh(["t"])
    for topic, partition in (("t", 0), ("t", 2), ("unknown", 0)):
        cluster.metadata.take_hint(topic, partition, hint)
    info = cluster.metadata.topic("t")
    assert info is not None
    assert [cluster.metadata.leader_address(info, partition) for partition in (0, 1)] == [address, "h:1"]
    assert cluster.metadata.is_available(info, 0) == (address != "h:1")
    assert cluster.metadata.topic("unknown") is None


def test_metadata_of_an_older_leader_epoch_does_not_undo_a_hint() -> None:
    cluster = ScriptedCluster(led_by(1, 7), led_by(1, 7), led_by(1, 9))
    cluster.refresh(["t"])
    cluster.metadata.take_hint("t", 0, LeaderHint(2, 8, "h:2"))
    assert cluster.metadata.leader_address(cluster.refresh(["t"])["t"], 0) == "h:2"
    assert cluster.metadata.leader_address(cluster.refresh(["t"])["t"], 0) == "h:1"


def as_of(offset: int, leader_id: int = 1, *, cluster_id: str = "c") -> pb.MetadataResponse:
    response = led_by(leader_id, 7)
    response.cluster_id, response.metadata_offset, response.controller_id = cluster_id, offset, leader_id
    return response


def test_metadata_of_a_broker_that_is_behind_are_not_taken() -> None:
    cluster = ScriptedCluster(as_of(9, 2), as_of(8, 1), as_of(9, 2))
    cluster.refresh(["t"])
    with pytest.raises(BusError, match="up to offset 9, found a broker that has followed them up to 8") as raised:
        cluster.refresh(["t"])
    assert raised.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert cluster.metadata.controller_address == "h:2"
    cluster.refresh(["t"])
    assert cluster.answers == []


def test_topic_is_not_forgotten_because_a_broker_that_is_behind_does_not_know_it() -> None:
    unknown = pb.MetadataResponse(
        cluster_id="c",
        metadata_offset=8,
        topics=[pb.TopicMetadata(name="t", error_code=pb.ERROR_CODE_UNKNOWN_TOPIC_ID)],
    )
    cluster = ScriptedCluster(as_of(9), unknown)
    cluster.refresh(["t"])
    with pytest.raises(BusError) as raised:
        cluster.refresh(["t"])
    assert raised.value.retriable
    assert cluster.metadata.topic("t") is not None


def test_metadata_of_another_cluster_or_of_an_older_program_are_taken() -> None:
    cluster = ScriptedCluster(as_of(9, 1), as_of(2, 2, cluster_id="other"), as_of(0, 1, cluster_id="other"))
    for address in ("h:1", "h:2", "h:1"):
        cluster.refresh(["t"])
        assert cluster.metadata.controller_address == address


def test_metadata_offset_of_an_older_program_does_not_hide_what_came_before() -> None:
    cluster = ScriptedCluster(as_of(9), as_of(0), as_of(8))
    cluster.refresh(["t"])
    cluster.refresh(["t"])
    with pytest.raises(BusError, match="up to offset 9"):
        cluster.refresh(["t"])


def test_call_behind_a_login_that_fails_unexpectedly_is_answered() -> None:
    cluster = Cluster(["127.0.0.1:1"], parse_config(ProducerConfig, {}))

    def fail(*call: Any) -> Any:
        raise RuntimeError("no more memory")

    cluster.introduce = fail  # type: ignore[method-assign]
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    cluster.start_call("Metadata", None, address="a:1", timeout_ms=1_000, on_done=answers.put)
    answer = answers.get(timeout=20)
    assert isinstance(answer, BusError)
    assert "no more memory" in str(answer)
    cluster.close()
