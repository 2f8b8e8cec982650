"""Every call with every field of it wrong: each is answered by name, and what was accepted can be read afterwards."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

import bus.sql
from bus import Admin, Consumer
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.records.arrow_batches import encode_arrow
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.hostile_requests import CALLS, Change, plausible_request, random_request, single_changes

CONFIG = BrokerConfig(offsets_topic_num_partitions=2, group_initial_rebalance_delay_ms=0)
# More requests of several wrong fields each: BUS_HOSTILE_REQUESTS=16800 for a long run.
RANDOM_COUNT = int(os.environ.get("BUS_HOSTILE_REQUESTS", "300"))

# These wait for as long as their request asks for, or for other members: there a deadline is no fault.
WAITING = {"Fetch", "FetchOnce", "JoinGroup", "SyncGroup"}
NAMED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
PAYLOAD = encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"value"])], names=["value"]))
TEXTS = {"topic": "t", "name": "t", "group_id": "g", "member_id": "", "client_id": "c", "protocol_type": "consumer"}
NUMBERS = {"partition": 0, "partitions": 0, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "acks": -1,
           "generation": -1, "leader_epoch": -1, "offset": 0, "timeout_ms": 1_000,
           "max_wait_ms": 1, "max_bytes": 1_000_000, "partition_max_bytes": 1_000_000, "timestamp_ms": -1}  # fmt: skip


def usual(field: FieldDescriptor) -> object | None:
    """Return what a friendly client puts there; optional things are left out, records are Arrow."""
    if field.name == "arrow":
        return PAYLOAD
    if field.name == "records" or field.name.startswith("producer_") or field.name in ("version", "base_sequence"):
        return None
    if field.type == FieldDescriptor.TYPE_STRING:
        return "t" if field.is_repeated else TEXTS.get(field.name)
    if field.name == "partitions" and field.containing_type.name.startswith("New"):
        return 1
    if field.name == "timestamp_ms" and field.containing_type.name == "PartitionProduceData":
        return None
    return NUMBERS.get(field.name) if field.message_type is None else field


class Stranger:
    """Speaks to the broker without any of its classes, a request a call."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._calls = {call.name: self._stub(channel, call) for call in CALLS}

    def ask(self, call: MethodDescriptor, request: Any) -> tuple[grpc.StatusCode, str, list[Any]]:
        asked = iter([request]) if call.client_streaming else request
        answers: list[Any] = []
        try:
            found = self._calls[call.name](asked, timeout=0.1 if call.name in WAITING else 30)
            answers = list(found) if call.server_streaming else [found]
        except grpc.RpcError as error:
            return error.code(), error.details() or "", answers
        return grpc.StatusCode.OK, "", answers

    @staticmethod
    def _stub(channel: grpc.Channel, call: MethodDescriptor) -> Any:
        kind = f"{'stream' if call.client_streaming else 'unary'}_{'stream' if call.server_streaming else 'unary'}"
        return getattr(channel, kind)(
            f"/{call.containing_service.full_name}/{call.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(call.output_type).FromString,
        )


def faults_of(call: MethodDescriptor, status: grpc.StatusCode, details: str, answers: list[Any]) -> list[str]:
    """Return what is wrong with how a request was answered."""
    if call.name in WAITING and status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return []
    found = [] if status in NAMED else [f"{status.name}: {details}"]
    if status is grpc.StatusCode.OK and not answers and call.name != "GroupSession":
        found.append("OK without an answer")
    for answer in answers:
        found += _unnamed_errors(answer)
    return found


def _unnamed_errors(message: Any) -> list[str]:
    found = []
    for field, value in message.ListFields():
        if field.name == "error_code" and (
            value == pb.ERROR_CODE_UNKNOWN_SERVER_ERROR or value not in pb.ErrorCode.values()
        ):
            found.append(f"{message.DESCRIPTOR.name}: {value} {getattr(message, 'error_message', '')}")
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                found += _unnamed_errors(inner)
    return found


def everything_in(address: str, root: Path) -> dict[str, Any]:
    """All that was accepted, by every reader that needs no Spark. Each has to get through."""
    with Admin(address) as admin, Consumer(address, auto_offset_reset="earliest") as consumer:
        topics = admin.list_topics()
        partitions = [partition for topic in topics for partition in consumer.partitions_for(topic)]
        ends = consumer.end_offsets(partitions)
        starts = consumer.beginning_offsets(partitions)
        consumer.assign(partitions)
        records = 0
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            records += len(consumer.poll(timeout_ms=1_000))
        groups = [listing.group_id for listing in admin.list_groups()]
        described = admin.describe_groups(groups)
        offsets = {group: admin.list_group_offsets(group) for group in groups}
        views = admin.list_views()
    assert records == sum(ends[partition] - starts[partition] for partition in partitions)
    with bus.sql.connect(str(root)) as connection:
        for topic in topics:
            connection.sql(f'SELECT * FROM "{topic}"').fetchall()
        for view in ("groups", "group_members", "group_offsets", "lag", "topics", "partitions", "versions"):
            connection.sql(f"SELECT * FROM bus.{view}").fetchall()
    assert sorted(described) == groups
    committed = {
        group: found for group, found in offsets.items() if found
    }  # a group that only joined is not in the log
    return {"topics": topics, "ends": ends, "starts": starts, "offsets": committed, "views": views}


@pytest.mark.timeout(900)
def test_each_request_is_answered_by_name_and_what_was_accepted_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    faults: list[str] = []
    chance = random.Random(0)
    with running_broker(tmp_path, config=CONFIG) as broker:
        address = f"127.0.0.1:{broker.port}"
        with grpc.insecure_channel(address) as channel:
            stranger = Stranger(channel)
            create = next(call for call in CALLS if call.name == "CreateTopics")

            def ask(call: MethodDescriptor, where: str, request: Any) -> None:
                if "t" not in broker.cluster.state.topics:
                    stranger.ask(create, plausible_request(create, usual))
                faults.extend(f"{where}: {fault}" for fault in faults_of(call, *stranger.ask(call, request)))

            for call in CALLS:
                unchanged: list[tuple[str, Change]] = [(call.name, lambda message: None)]
                for where, change in [*unchanged, *single_changes(call)]:
                    request = plausible_request(call, usual)
                    change(request)
                    ask(call, where, request)
            for number in range(RANDOM_COUNT):
                call = chance.choice(CALLS)
                ask(call, f"random {number}, {call.name}", random_request(call, usual, chance))
        assert not faults, f"{len(faults)} faults, for example:\n" + "\n".join(faults[:40])
        before = everything_in(address, tmp_path)
    with running_broker(tmp_path, config=CONFIG) as broker:
        assert everything_in(f"127.0.0.1:{broker.port}", tmp_path) == before
    assert not [record.getMessage() for record in caplog.records]
