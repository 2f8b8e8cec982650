from __future__ import annotations

from typing import Any

import pytest

from bus.client.config.parsing import ProducerConfig, parse_config
from bus.client.connection.cluster import Cluster
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
    with pytest.raises(BusError, match="from 0 to 0, found 1"):
        cluster.with_partition(info, 1, deadline_ms=monotonic_ms() + 60_000)
    assert cluster.answers == []
