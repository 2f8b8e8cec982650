"""A hostile client's requests about groups are refused by name, and every group is there after a restart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import bus.sql
from bus.consumer_groups.bounds import Placement, coordinator_partition
from bus.consumer_groups.records import GroupStored, StoredMember, encode_record
from bus.consumer_groups.requests import Assignment
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.model import CONSUMER_OFFSETS_TOPIC, LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, KeyedRow
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import open_storage
from tests.support.broker_thread import running_broker
from tests.support.stores import led

CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=1)
NOW_MS = 1_700_000_000_000
MEMBER = StoredMember("m", None, "c", "/h", 30_000, 30_000, b"", ("t",), Assignment(b"", (TopicPartition("t", 1),)))
STABLE = GroupStored("stable", "consumer", "range", 6, "m", "Stable", NOW_MS, (MEMBER,))
SUBSCRIPTION = pb.ConsumerSubscription(topics=["t"], generation=-1).SerializeToString()


@contextmanager
def connected(root: Path, **config: Any) -> Iterator[bus_pb2_grpc.BusStub]:
    with (
        running_broker(root, config=replace(CONFIG, **config)) as broker,
        grpc.insecure_channel(f"127.0.0.1:{broker.port}", options=[("grpc.max_send_message_length", -1)]) as channel,
    ):
        yield bus_pb2_grpc.BusStub(channel)


def commit(stub: bus_pb2_grpc.BusStub, group: str, offset: int, **fields: Any) -> int:
    place = pb.OffsetCommitPartition(**{"topic": "t", "offset": offset, "leader_epoch": -1, **fields})
    request = pb.OffsetCommitRequest(group_id=group, generation=-1, partitions=[place])
    code: int = stub.OffsetCommit(request, timeout=30).partitions[0].error_code
    return code


def committed(stub: bus_pb2_grpc.BusStub, group: str) -> dict[int, int]:
    asked = pb.OffsetFetchGroup(group_id=group, all_partitions=True)
    answer = None
    while answer is None or answer.error_code == pb.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS:
        (answer,) = stub.OffsetFetch(pb.OffsetFetchRequest(groups=[asked]), timeout=30).groups
    assert answer.error_code == pb.ERROR_CODE_NONE, answer
    return {one.partition: one.offset for one in answer.offsets}


def join(stub: bus_pb2_grpc.BusStub, group: str, **fields: Any) -> pb.JoinGroupResponse:
    request = {
        "group_id": group,
        "group_instance_id": "i",
        "client_id": "c",
        "session_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [pb.GroupProtocol(name="range", metadata=SUBSCRIPTION)],
        **fields,
    }
    return stub.JoinGroup(pb.JoinGroupRequest(**request), timeout=30)  # type: ignore[no-any-return]


def sync(stub: bus_pb2_grpc.BusStub, group: str, joined: pb.JoinGroupResponse, partition: int) -> int:
    data = pb.ConsumerAssignment(partitions=[pb.TopicPartitions(topic="t", partitions=[partition])])
    request = pb.SyncGroupRequest(
        group_id=group,
        generation=joined.generation,
        member_id=joined.member_id,
        group_instance_id="i",
        assignments=[pb.MemberAssignment(member_id=joined.member_id, assignment=data.SerializeToString())],
    )
    code: int = stub.SyncGroup(request, timeout=30).error_code
    return code


def test_what_could_not_be_read_back_is_refused_and_every_group_is_there_after_a_restart(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with connected(root) as stub:
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=2)]), timeout=30)
        assert commit(stub, "innocent", 7) == pb.ERROR_CODE_NONE
        assert commit(stub, "bad", 1, leader_epoch=-5) == pb.ERROR_CODE_INVALID_REQUEST
        assert commit(stub, "bad", -1) == pb.ERROR_CODE_INVALID_REQUEST
        assert commit(stub, "two\nlines", 1) == pb.ERROR_CODE_INVALID_GROUP_ID
        assert commit(stub, "g" * 1_000_000, 1) == pb.ERROR_CODE_INVALID_GROUP_ID
        nameless = pb.GroupProtocol(name="", metadata=SUBSCRIPTION)
        assert join(stub, "bad", protocols=[nameless]).error_code == pb.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL
        assert join(stub, "bad", client_id="c" * 1_000_000).error_code == pb.ERROR_CODE_INVALID_REQUEST
        joined = join(stub, "member")
        assert joined.error_code == pb.ERROR_CODE_NONE
        assert sync(stub, "member", joined, -1) == pb.ERROR_CODE_INVALID_REQUEST
        assert sync(stub, "member", joined, 1) == pb.ERROR_CODE_NONE
    with connected(root) as stub:
        assert committed(stub, "innocent") == {0: 7}
        (described,) = stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=["member"]), timeout=30).groups
        assert (described.state, described.generation, len(described.members)) == ("Stable", 1, 1)
        listed = stub.ListGroups(pb.ListGroupsRequest(), timeout=30)
        assert (listed.error_code, {group.group_id for group in listed.groups}) == (0, {"innocent", "member"})


def stored(group: str, generation: int, **changed: Any) -> KeyedRow:
    row = encode_record(replace(STABLE, group_id=group, generation=generation))
    assert row.value is not None
    return KeyedRow(row.key, {**row.value, **changed})


@pytest.fixture
def root_with_bad_rows(tmp_path: Path) -> Path:
    """Return a root as versions left it that checked less; all groups are in one partition."""
    root = tmp_path / "root"
    with connected(root) as stub:
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=2)]), timeout=30)
        for group, partition, offset in (("innocent", 0, 7), ("epoch", 0, 8), ("epoch", 1, 9), ("nameless", 1, 11)):
            assert commit(stub, group, offset, partition=partition) == pb.ERROR_CODE_NONE
        (topic,) = stub.Metadata(pb.MetadataRequest(topics=[CONSUMER_OFFSETS_TOPIC]), timeout=30).topics
    storage = open_storage(str(root))
    log, rows = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0), storage.keyed_rows(CONSUMER_OFFSETS_TOPIC)
    table = led(storage.open_partition(log, topic_id=topic.topic_id))
    written = [row for batch in table.log.read(0, end_offset=4, max_bytes=1 << 20) for row in rows.decode(batch)]
    epoch = next(row for row in written if row.key == b'["offset","epoch","t",1]')
    assert epoch.value is not None
    (negative,) = stored("negative", 5).value["members"]  # type: ignore[index]  # it has one
    batch = rows.encode(
        [
            KeyedRow(epoch.key, {**epoch.value, "leader_epoch": -5}),
            stored("nameless", 4, protocol="", members=[]),
            stored("negative", 5, members=[{**negative, "partitions": [{"topic": "t", "partition": -1}]}]),
            stored("stable", 6),
            KeyedRow(b"of another writer", {"type": "what?"}),
        ],
        now_ms=NOW_MS,
    )
    placed = LogBatch(4, 9, 5, batch.size_bytes, 1, TimestampType.LOG_APPEND_TIME, NOW_MS, NOW_MS, batch.columns)
    assert isinstance(table.append([placed], leader_epoch=1, now_ms=NOW_MS), Committed)
    storage.close()
    return root


def test_root_that_has_rows_which_cannot_be_read_opens_and_loses_no_more_than_they_say(
    root_with_bad_rows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(root_with_bad_rows) as stub:
        assert committed(stub, "innocent") == {0: 7}
        assert committed(stub, "epoch") == {0: 8, 1: 9}
        assert committed(stub, "nameless") == {1: 11}
        ids = ["nameless", "negative", "stable"]
        described = stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=ids), timeout=30).groups
        assert [(one.state, one.generation) for one in described] == [("Empty", 4), ("Empty", 5), ("Stable", 6)]
        assert join(stub, "negative").generation == 6
        assert commit(stub, "epoch", 10, partition=1) == pb.ERROR_CODE_NONE
    named = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [name for name in ("'epoch'", "'nameless'", "'negative'") if any(name in line for line in named)] == [
        "'epoch'",
        "'nameless'",
        "'negative'",
    ]
    with bus.sql.connect(str(root_with_bad_rows)) as sql:
        rows = sql.sql("SELECT group_id, partition, committed_offset FROM group_offsets").fetchall()
    assert ("epoch", 1, 10) in rows
    assert ("innocent", 0, 7) in rows


# Written by a version that placed groups by the hash without its sign bit: three partitions.
BEFORE_PLACEMENT = Path(__file__).parents[2] / "golden" / "root_before_group_placement"
OFFSETS_BEFORE_PLACEMENT = {"a": 1, "billing": 2, "loader": 3, "analytics": 4}


def test_root_of_earlier_placement_finds_its_groups_and_keeps_that_placement(tmp_path: Path) -> None:
    assert any(
        coordinator_partition(group, 3, Placement.ABSOLUTE) != coordinator_partition(group, 3, Placement.MASKED)
        for group in OFFSETS_BEFORE_PLACEMENT
    )
    root = Path(shutil.copytree(BEFORE_PLACEMENT, tmp_path / "root"))
    for start in range(2):
        with connected(root) as stub:
            for group, offset in OFFSETS_BEFORE_PLACEMENT.items():
                assert committed(stub, group) == {0: offset + 10 * start}
                assert commit(stub, group, offset + 10 * start + 10) == pb.ERROR_CODE_NONE
    assert _placed(root) == {group: coordinator_partition(group, 3, Placement.MASKED) for group in _placed(root)}


def test_new_root_places_groups_as_kafka_does(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for start in range(2):
        with connected(root, offsets_topic_num_partitions=3) as stub:
            stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=1)]), timeout=30)
            for group, offset in OFFSETS_BEFORE_PLACEMENT.items():
                if start:
                    assert committed(stub, group) == {0: offset}
                assert commit(stub, group, offset) == pb.ERROR_CODE_NONE
    placed = _placed(root)
    assert placed == {group: coordinator_partition(group, 3, Placement.ABSOLUTE) for group in OFFSETS_BEFORE_PLACEMENT}


def _placed(root: Path) -> dict[str, int]:
    with bus.sql.connect(str(root)) as sql:
        return dict(sql.sql("SELECT group_id, coordinator_partition FROM groups").fetchall())


def test_what_names_too_much_in_one_request_is_refused_by_name(tmp_path: Path) -> None:
    with connected(tmp_path / "root") as stub:
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=1)]), timeout=30)
        assert commit(stub, "g", 1) == pb.ERROR_CODE_NONE
        place = pb.OffsetCommitPartition(topic="t", offset=1, leader_epoch=-1)
        topics = [pb.TopicPartitions(topic="t", partitions=range(10_001))]
        too_many_offsets = pb.OffsetCommitRequest(group_id="g", generation=-1, partitions=[place] * 10_001)
        with pytest.raises(grpc.RpcError, match="at most 10000 partitions"):
            stub.OffsetCommit(too_many_offsets, timeout=30)
        with pytest.raises(grpc.RpcError, match="at most 10000 partitions"):
            stub.OffsetFetch(
                pb.OffsetFetchRequest(groups=[pb.OffsetFetchGroup(group_id="g", topics=topics)]), timeout=30
            )
        with pytest.raises(grpc.RpcError, match="at most 1000 "):
            stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=["g"] * 1_001), timeout=30)
        with pytest.raises(grpc.RpcError, match="at most 1000 "):
            stub.DeleteGroups(pb.DeleteGroupsRequest(group_ids=["g"] * 1_001), timeout=30)
        with pytest.raises(grpc.RpcError, match="at most 10000 partitions"):
            list(stub.GroupSession(iter([pb.GroupSessionRequest(correlation_id=1, offset_commit=too_many_offsets)])))
        deleted = stub.OffsetDelete(pb.OffsetDeleteRequest(group_id="g", topics=topics), timeout=30)
        assert deleted.error_code == pb.ERROR_CODE_INVALID_REQUEST
        assert stub.ListGroups(pb.ListGroupsRequest(states=["x"] * 101), timeout=30).error_code
        left = stub.LeaveGroup(pb.LeaveGroupRequest(group_id="g", members=[pb.LeavingMember()] * 1_001), timeout=30)
        assert left.error_code == pb.ERROR_CODE_INVALID_REQUEST
        assert committed(stub, "g") == {0: 1}


def test_group_that_is_named_again_in_a_request_is_answered_once(tmp_path: Path) -> None:
    with connected(tmp_path / "root") as stub:
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=1)]), timeout=30)
        assert commit(stub, "g", 1) == pb.ERROR_CODE_NONE
        described = stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=["g", "h", "g"]), timeout=30).groups
        assert [one.error_code for one in described] == [
            pb.ERROR_CODE_NONE,
            pb.ERROR_CODE_GROUP_ID_NOT_FOUND,
            pb.ERROR_CODE_INVALID_REQUEST,
        ]
        assert "'g' more than once" in described[2].error_message
        asked = pb.OffsetFetchGroup(group_id="g", all_partitions=True)
        fetched = stub.OffsetFetch(pb.OffsetFetchRequest(groups=[asked, asked]), timeout=30).groups
        assert [(one.error_code, len(one.offsets)) for one in fetched] == [(0, 1), (pb.ERROR_CODE_INVALID_REQUEST, 0)]
