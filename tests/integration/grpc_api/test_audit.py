"""The audit that a broker with `audit.enable` keeps of its callers, as SQL reads it when the broker has ended."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import bus.client.connection.cluster
import bus.sql
from bus import Admin, BusError, NewTopic, Producer
from bus.broker import Broker
from bus.broker_api.calls import CALLS
from bus.client.connection.retrying import first_answer
from bus.descriptions import QuotaEntity
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1.bus_pb2_grpc import BusStub, ClusterStub
from bus.model import AUDIT_TOPIC
from bus.security.acls import AclOperation
from bus.security.audit_trail import ALLOWED, DENIED, AuditEvent, AuditKind
from bus.settings.broker import BrokerConfig
from tests.integration.grpc_api.test_listeners import wait_for_all
from tests.support.broker_thread import run_on, running_broker

CONFIG = BrokerConfig(audit_enable=True, offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
COLUMNS = "kind, principal, client_id, call, operation, resource_type, resource, error, broker_id"


def rows(root: Path, query: str) -> list[tuple[Any, ...]]:
    with bus.sql.connect(str(root)) as connection:
        return connection.sql(query).fetchall()


async def wait_for_audit_topic(broker: Broker) -> None:
    metadata = broker.cluster.metadata
    while AUDIT_TOPIC not in metadata.cluster.topics:
        await metadata.wait_until_applied(metadata.applied_offset + 1)


def change(call: str, operation: str, kind: str, resource: str, error: str = "", broker_id: int = 0) -> tuple[Any, ...]:
    return ("CHANGE", "User:ANONYMOUS", "me", call, operation, kind, resource, error, broker_id)


def test_each_change_is_a_row_and_so_is_each_that_was_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root, config=CONFIG) as broker, Admin(f"127.0.0.1:{broker.port}", client_id="me") as admin:
        admin.create_topics([NewTopic("a", 1), NewTopic("b", 2)])
        with pytest.raises(BusError):
            admin.create_topics([NewTopic("no good", 1)])
        admin.create_topics([NewTopic("c", 1)], validate_only=True)
        admin.alter_configs("a", {"retention.ms": "1000"})
        admin.alter_client_quotas({QuotaEntity("alice"): {"request_rate": 5}})
        admin.describe_topics(["a"])
        list(admin.maintain_log("a", "roll"))
        admin.delete_topics(["b"])
    (refused,) = rows(root, "SELECT error FROM audit WHERE resource = 'no good'")
    assert refused[0].startswith("INVALID_TOPIC_EXCEPTION: ")
    assert rows(root, f"SELECT {COLUMNS} FROM audit WHERE resource != 'no good'") == [
        change("CreateTopics", "Create", "Topic", "a"),
        change("CreateTopics", "Create", "Topic", "b"),
        change("AlterConfigs", "AlterConfigs", "Topic", "a"),
        change("AlterClientQuotas", "AlterConfigs", "ClientQuota", "user=alice"),
        change("MaintainLog", "Alter", "Topic", "a-0"),
        change("DeleteTopics", "Delete", "Topic", "b"),
    ]
    places = rows(root, "SELECT DISTINCT host, listener, count, year(time) > 2020, length(request_id) FROM audit")
    assert places == [("/127.0.0.1", "PLAINTEXT", 1, True, 8)]
    assert rows(root, "SELECT count(*) FROM __audit WHERE value.call = 'DeleteTopics'") == [(1,)]


def test_rows_go_when_the_retention_of_the_topic_says_so(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root, config=CONFIG) as broker, Admin(f"127.0.0.1:{broker.port}", client_id="me") as admin:
        admin.create_topics([NewTopic("a", 1)])
        run_on(broker, wait_for_audit_topic(broker))
        admin.alter_configs(AUDIT_TOPIC, {"retention.ms": "1"})
        changes = "SELECT call FROM audit WHERE kind = 'CHANGE' ORDER BY time"
        while rows(root, changes) != [("CreateTopics",), ("AlterConfigs",)]:
            time.sleep(0.05)
        list(admin.maintain_log(AUDIT_TOPIC, "clean"))
    assert rows(root, changes) == [("MaintainLog",)]


def test_a_topic_that_is_created_by_the_way_is_a_row_of_the_caller_that_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller asks a broker that is not the controller."""
    patient = functools.partial(first_answer, patience_ms=60_000)  # no other broker is asked beside a slow one
    monkeypatch.setattr(bus.client.connection.cluster, "first_answer", patient)
    root = tmp_path / "root"
    configs = [replace(CONFIG, broker_id=one) for one in range(2)]
    with running_broker(root, config=configs[0]) as first, running_broker(root, config=configs[1]) as second:
        wait_for_all(first, second)
        for broker in (second, first):  # the second finds it there
            with Producer(f"127.0.0.1:{broker.port}", client_id="me") as producer:
                producer.send("a", b"v").result()
        for broker in (first, second):
            run_on(broker, wait_for_audit_topic(broker))
    (row,) = rows(root, f"SELECT {COLUMNS}, listener FROM audit WHERE call = 'Metadata'")
    assert row == (*change("Metadata", "Create", "Topic", "a"), "PLAINTEXT")


def test_a_change_whose_call_ends_with_unavailable_is_a_row(tmp_path: Path) -> None:
    """It waits for its quota when the broker stops."""
    root = tmp_path / "root"
    slow = (("client-id", "slow"),)
    with running_broker(root, config=CONFIG) as broker:
        channel = grpc.insecure_channel(f"127.0.0.1:{broker.port}")
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.alter_client_quotas({QuotaEntity("ANONYMOUS", "slow"): {"request_rate": 0.01}})
        calls = BusStub(channel)
        calls.ListViews(pb.ListViewsRequest(), metadata=slow, timeout=20)
        request = pb.DeleteTopicsRequest(topics=["gone"])
        call = calls.DeleteTopics.future(request, metadata=slow, timeout=600)
        calls.ListViews(pb.ListViewsRequest(), timeout=20)
    assert call.exception(timeout=20).code() is grpc.StatusCode.UNAVAILABLE
    channel.close()
    ((resource, error),) = rows(root, "SELECT resource, error FROM audit WHERE call = 'DeleteTopics'")
    assert (resource, "UNAVAILABLE" in error, error.endswith("it may be done")) == ("gone", True, True)


def test_decisions_and_logins_are_rows_and_grants_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    read = {"operation": "Read", "resource_type": "Topic", "resource": "t"}
    with running_broker(root, config=CONFIG) as broker:

        async def tell() -> None:
            audit = broker.audit
            for _ in range(3):
                audit.add_grant(AuditEvent(audit.now_ms(), AuditKind.DECISION, "User:a", decision=ALLOWED, **read))
            audit.add_denial(
                AuditEvent(audit.now_ms(), AuditKind.DECISION, "User:b", decision=DENIED, rule="none", **read)
            )
            audit.add(AuditEvent(audit.now_ms(), AuditKind.LOGIN, "User:c", mechanism="SCRAM-SHA-256", error="wrong"))

        run_on(broker, tell())
    assert rows(root, "SELECT kind, principal, decision, count, error FROM audit ORDER BY principal") == [
        ("DECISION", "User:a", "ALLOWED", 3, ""),
        ("DECISION", "User:b", "DENIED", 1, ""),
        ("LOGIN", "User:c", "", 1, "wrong"),
    ]


def test_denials_are_rows_and_no_changes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    config = replace(CONFIG, authorizer_class_name="acl")
    with (
        running_broker(root, config=config) as broker,
        Admin(f"127.0.0.1:{broker.port}", client_id="me") as admin,
        pytest.raises(BusError, match="AUTHORIZATION_FAILED"),
    ):
        admin.create_topics([NewTopic("a", 1)])
    found = rows(root, "SELECT kind, client_id, call, operation, resource_type, resource, decision, rule FROM audit")
    assert ("DECISION", "me", "CreateTopics", "Create", "Topic", "a", "DENIED", "DefaultDeny") in found
    assert {row[0] for row in found} == {"DECISION"}


def test_what_may_be_written_is_counted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    config = replace(CONFIG, authorizer_class_name="acl", super_users="User:ANONYMOUS")
    with (
        running_broker(root, config=config) as broker,
        Producer(f"127.0.0.1:{broker.port}", client_id="me", batch_size=0) as producer,
    ):
        for _ in range(5):
            producer.send("a", b"v", partition=0).result()
    query = "SELECT operation, resource, decision, rule, count FROM audit WHERE operation = 'Write'"
    assert ("Write", "a", "ALLOWED", "SuperUser", 5) in rows(root, query)


def test_brokers_that_do_not_lead_the_partition_send_their_rows_to_the_leader(tmp_path: Path) -> None:
    root = tmp_path / "root"
    configs = [BrokerConfig(broker_id=one, audit_enable=True) for one in range(2)]

    async def tell(broker: Broker) -> None:
        audit = broker.audit
        audit.add(AuditEvent(audit.now_ms(), AuditKind.LOGIN, "User:a"))
        await wait_for_audit_topic(broker)

    with running_broker(root, config=configs[0]) as first, running_broker(root, config=configs[1]) as second:
        wait_for_all(first, second)
        for broker in (first, second):
            run_on(broker, tell(broker))
    assert rows(root, "SELECT principal, broker_id FROM audit ORDER BY ALL") == [("User:a", 0), ("User:a", 1)]


def test_nothing_is_kept_without_audit_enable(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("a", 1)])
        assert "__audit" not in admin.list_topics(include_internal=True)
    assert rows(root, "SELECT * FROM audit") == []


def test_every_call_that_needs_a_right_to_change_is_audited() -> None:
    changing = {AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS}
    needing = {
        call for call, row in CALLS.items() if any(need.operation in changing for need in row.needs + row.item_needs)
    }
    audited = {call for call, row in CALLS.items() if row.audited is not None}
    assert needing <= audited, "the row of a call that changes something says how it is audited"
    assert audited <= set(pb.DESCRIPTOR.services_by_name["Bus"].methods_by_name)


def envelope(**more: Any) -> pb.EnvelopeRequest:
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=f"t{len(more)}", partitions=1)])
    given = {"method": "CreateTopics", "client": "/10.0.0.1", "principal": "User:alice", **more}
    return pb.EnvelopeRequest(request=request.SerializeToString(), **given)


def test_changes_in_an_envelope_are_rows_with_both_names_and_come_by_the_listener_between_brokers_alone(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    config = replace(
        CONFIG,
        listeners=("CLIENTS://127.0.0.1:0", "INSIDE://127.0.0.1:0"),
        listener_security_protocol_map=("CLIENTS:PLAINTEXT", "INSIDE:PLAINTEXT"),
        inter_broker_listener_name="INSIDE",
    )
    with running_broker(root, config=config) as broker:
        with grpc.insecure_channel(f"127.0.0.1:{broker.ports['CLIENTS']}") as channel:
            for refused in (
                lambda: ClusterStub(channel).Envelope(envelope(), timeout=30),
                lambda: ClusterStub(channel).AppendAudit(pb.AppendAuditRequest(), timeout=30),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    refused()
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "inter.broker.listener.name" in caught.value.details()
            assert ClusterStub(channel).IdentifyBroker(pb.IdentifyBrokerRequest(), timeout=30).cluster_id
        with grpc.insecure_channel(f"127.0.0.1:{broker.ports['INSIDE']}") as channel:
            with pytest.raises(grpc.RpcError, match="expected a broker's own call"):
                ClusterStub(channel).Envelope(envelope(is_own=True), timeout=30)
            ClusterStub(channel).Envelope(envelope(), timeout=30)
    assert rows(root, "SELECT principal, host, listener, call, resource, rule, error FROM audit") == [
        (
            "User:ANONYMOUS",
            "/127.0.0.1",
            "INSIDE",
            "Envelope",
            "t0",
            "for User:alice from /10.0.0.1 by CreateTopics",
            "",
        )
    ]
