"""Callers that learn the contract by gRPC's reflection, and those that do not."""

from __future__ import annotations

import base64
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bus import (
    AclBindingFilter,
    AclOperation,
    AclResourceType,
    Admin,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from bus.broker import Broker
from bus.security.scram import SCRAM_SHA_256
from bus.settings.broker import BrokerConfig
from tests.support.acls import allow
from tests.support.broker_thread import running_broker

PASSWORD = "pencil-and-paper"
DESCRIBE = allow(AclOperation.DESCRIBE, "kafka-cluster", AclResourceType.CLUSTER)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = BrokerConfig(
        listeners=("SASL_PLAINTEXT://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        inter_broker_listener_name="PLAINTEXT",
        sasl_enabled_mechanisms=("PLAIN",),
        authorizer_class_name="acl",
        super_users="User:ANONYMOUS",
    )
    with running_broker(tmp_path / "root", config=config) as broker:
        yield broker


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    """Yield an administrator who may do everything, by the other listener; there is a user alice."""
    with Admin(f"127.0.0.1:{broker.ports['PLAINTEXT']}") as admin:
        credential = ScramCredentialInfo(SCRAM_SHA_256.name, 4096)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", credential, PASSWORD)])
        yield admin


class Reflection:
    """A stream of questions about the contract."""

    def __init__(self, broker: Broker, listener: str, password: str | None = None) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{broker.ports[listener]}")
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        shown = base64.b64encode(f"alice:{password}".encode()).decode()
        self.answers = reflection_pb2_grpc.ServerReflectionStub(self._channel).ServerReflectionInfo(
            iter(self._requests.get, None),
            metadata=() if password is None else (("authorization", f"Basic {shown}"),),
            timeout=40,
        )

    def services(self) -> list[str]:
        self._requests.put(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = next(self.answers)
        return [one.name for one in answer.list_services_response.service]

    def refusal(self) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.services()
        return caught.value.code(), caught.value.details()

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()


def test_who_has_not_logged_in_is_told_nothing(broker: Broker, admin: Admin) -> None:
    for password in (None, "wrong-password"):
        reflection = Reflection(broker, "SASL_PLAINTEXT", password)
        code, _ = reflection.refusal()
        assert code is grpc.StatusCode.UNAUTHENTICATED
        reflection.close()


def test_who_may_not_describe_the_cluster_is_told_nothing(broker: Broker, admin: Admin) -> None:
    refused = (grpc.StatusCode.PERMISSION_DENIED, "User:alice may not Describe the cluster")
    reflection = Reflection(broker, "SASL_PLAINTEXT", PASSWORD)
    assert reflection.refusal() == refused
    reflection.close()
    admin.create_acls([DESCRIBE])
    reflection = Reflection(broker, "SASL_PLAINTEXT", PASSWORD)
    assert "bus.v1.Bus" in reflection.services()
    admin.delete_acls([AclBindingFilter(principal=DESCRIBE.principal)])
    assert reflection.refusal() == refused  # on the stream that was allowed before
    reflection.close()


def test_what_is_told_ends_with_the_login(broker: Broker, admin: Admin) -> None:
    admin.create_acls([DESCRIBE])
    reflection = Reflection(broker, "SASL_PLAINTEXT", PASSWORD)
    assert "bus.v1.Bus" in reflection.services()
    admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", SCRAM_SHA_256.name)])
    with pytest.raises(grpc.RpcError) as caught:  # without another question
        next(reflection.answers)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    reflection.close()


def test_a_broker_that_stops_waits_for_no_reflection(tmp_path: Path) -> None:
    config = BrokerConfig(controlled_shutdown_timeout_ms=600_000)
    with running_broker(tmp_path / "root", config=config) as broker:
        reflection = Reflection(broker, "PLAINTEXT")
        assert "grpc.reflection.v1alpha.ServerReflection" in reflection.services()
    with pytest.raises(grpc.RpcError) as caught:
        next(reflection.answers)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    reflection.close()
