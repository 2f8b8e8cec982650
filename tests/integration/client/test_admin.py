from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus import AclBindingFilter, Admin, BusError, ErrorCode, NewTopic, TopicPartition
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.settings.keys import config_text
from tests.support.broker_thread import running_broker
from tests.support.fake_broker import BreakStream, FakeBroker


def test_topics_are_created_described_and_deleted(broker: FakeBroker) -> None:
    broker.cluster.create("__internal")
    with Admin(broker.address) as admin:
        ids = admin.create_topics([NewTopic("a", 2), NewTopic("b")])
        assert admin.list_topics() == ["a", "b"]
        assert admin.list_topics(include_internal=True) == ["__internal", "a", "b"]
        described = admin.describe_topics(["a"])["a"]
        assert (described.topic_id, [p.partition for p in described.partitions]) == (ids["a"], [0, 1])
        assert sorted(admin.describe_topics()) == ["__internal", "a", "b"]
        assert admin.describe_topics([]) == {}
        admin.delete_topics(["a"])
        assert admin.list_topics() == ["b"]


def test_one_failure_is_raised_after_the_others_were_done(broker: FakeBroker) -> None:
    broker.cluster.create("taken")
    with Admin(broker.address) as admin:
        with pytest.raises(BusError, match="topic 'taken' exists") as caught:
            admin.create_topics([NewTopic("taken"), NewTopic("new")])
        assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert admin.list_topics() == ["new", "taken"]


def test_several_failures_are_all_told(broker: FakeBroker) -> None:
    with (
        Admin(broker.address) as admin,
        pytest.raises(BusError, match=r"2 of 2 failed: 'x', 'y': UNKNOWN_TOPIC_OR_PARTITION: ") as caught,
    ):
        admin.delete_topics(["x", "y"])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_validating_only_creates_nothing(broker: FakeBroker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic("a")], validate_only=True)
        assert admin.list_topics() == []


def test_unknown_topic_is_refused_by_name(broker: FakeBroker) -> None:
    with Admin(broker.address) as admin, pytest.raises(BusError, match="'nowhere'"):
        admin.describe_topics(["nowhere"])


def test_questions_are_asked_again_after_a_broken_connection(broker: FakeBroker) -> None:
    with Admin(broker.address, retry_backoff_ms=1) as admin:
        admin.list_topics()
        broker.control_script.extend([BreakStream(is_appended=False)] * 2)
        assert admin.describe_cluster().cluster_id == "fake"


def test_replicas_that_are_no_broker_ids_are_refused_before_anything_is_sent(broker: FakeBroker) -> None:
    with Admin(broker.address) as admin:
        for replicas in ("01", [1, "2"], 1):
            with pytest.raises(BusError, match="assignments"):
                admin.alter_partition_reassignments({TopicPartition("t", 0): replicas})  # type: ignore[dict-item]
        with pytest.raises(BusError, match="partitions"):
            admin.elect_leaders(["t"])  # type: ignore[list-item]
    assert broker.calls == []


def test_call_that_the_server_does_not_know_is_named(broker: FakeBroker) -> None:
    with Admin(broker.address) as admin, pytest.raises(BusError, match="DescribeConfigs") as caught:
        admin.describe_configs("t")
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_offsets_of_many_partitions_come_in_one_call(broker: FakeBroker) -> None:
    broker.cluster.create("t", 3)
    with Admin(broker.address) as admin:
        found = admin.list_offsets({TopicPartition("t", number): -1 for number in range(3)})
    assert [listed.offset for listed in found.values()] == [0, 0, 0]
    assert broker.calls.count("ListOffsets") == 1


def test_resource_kind_is_checked(broker: FakeBroker) -> None:
    with Admin(broker.address) as admin, pytest.raises(BusError, match="found 'group'"):
        admin.alter_configs("g", {}, kind="group")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, "true"), (False, "false"), (86_400_000, "86400000"), (0.5, "0.5"), (["a", "b"], "a,b"), ("zstd", "zstd")],
)
def test_config_values_are_written_as_kafka_writes_them(value: object, expected: str) -> None:
    assert config_text(value) == expected


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    with running_broker(tmp_path / "root") as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        yield admin


def test_added_partitions_are_placed_on_the_brokers_that_are_named(admin: Admin) -> None:
    admin.create_topics([NewTopic("placed", partitions=1)])
    with pytest.raises(BusError) as raised:
        admin.create_partitions({"placed": 3}, replica_assignment={"placed": [[0]]})
    assert raised.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    admin.create_partitions({"placed": 3}, replica_assignment={"placed": [[0], [0]]})
    partitions = admin.describe_topics(["placed"])["placed"].partitions
    assert [list(one.replicas) for one in partitions] == [[0], [0], [0]]
    with pytest.raises(BusError, match="replica_assignment of topics that totals names, placed"):
        admin.create_partitions({"placed": 4}, replica_assignment={"other": [[0]]})


class OfLaterVersion(FakeBroker):
    """Has an ACL with an operation that there is not yet."""

    ACL = pb.AclBinding(
        resource_type=pb.ACL_RESOURCE_TYPE_TOPIC,
        resource_name="t",
        pattern_type=pb.ACL_PATTERN_TYPE_LITERAL,
        principal="User:bob",
        host="*",
        operation=99,  # type: ignore[arg-type]  # a number of later
        permission=pb.ACL_PERMISSION_ALLOW,
    )

    def DescribeAcls(self, request: pb.DescribeAclsRequest, context: Any) -> pb.DescribeAclsResponse:
        return pb.DescribeAclsResponse(acls=[self.ACL])

    def DeleteAcls(self, request: pb.DeleteAclsRequest, context: Any) -> pb.DeleteAclsResponse:
        return pb.DeleteAclsResponse(results=[pb.DeletedAcls(acls=[self.ACL])])


def test_word_of_a_later_version_in_an_answer_is_an_error_by_name() -> None:
    with OfLaterVersion() as broker, Admin(broker.address) as admin:
        with pytest.raises(
            BusError, match=r"later version than this client: expected AclOperation of .*, found 99"
        ) as one:
            admin.describe_acls()
        with pytest.raises(BusError, match="what the filters find was removed, and an ACL is of a later") as other:
            admin.delete_acls([AclBindingFilter()])
    assert {one.value.code, other.value.code} == {ErrorCode.UNSUPPORTED_VERSION}
