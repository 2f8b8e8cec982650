from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from bus.broker_api.metadata import ConfigResource, MetadataApi, ResourceKind
from bus.cluster_metadata.cluster_decisions import AlterTopicConfigs
from bus.cluster_metadata.configs import AlterOperation, ConfigOperation
from bus.errors import ErrorCode, Refused
from bus.grpc_api import value_messages
from bus.grpc_api.server.metadata import MetadataHandler
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.json_views import JsonView
from bus.runtime import tasks
from bus.runtime.metadata.controller import AutoCreation
from bus.runtime.tasks import LoopShares, TaskScope
from bus.security.audit_trail import AuditEvent
from bus.settings.broker import BrokerConfig
from tests.support.api_bench import open_access

UNKNOWN_KIND = Refused(ErrorCode.INVALID_REQUEST, "expected a type that there is, found 7")
READ_ONLY = "broker configs are read at start"


class FakeController:
    """Refuses to alter topic `bad`."""

    async def alter_topic_configs(self, commands: Sequence[AlterTopicConfigs]) -> list[Any]:
        return [Refused(ErrorCode.INVALID_CONFIG, "bad") if c.name == "bad" else object() for c in commands]


def test_views_are_encoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0)
    events: list[str] = []
    views = {name: JsonView(name, "t", "a INT", ()) for name in ("v0", "v1", "v2")}
    encode = value_messages.VIEW.encode
    monkeypatch.setattr(value_messages.VIEW, "encode", lambda one: events.append("view") or encode(one))
    unused: Any = None
    cluster: Any = SimpleNamespace(state=SimpleNamespace(views=views))
    handler = MetadataHandler(MetadataApi(cluster, unused, unused, LoopShares()), LoopShares(), "PLAINTEXT")

    async def scenario() -> pb.ListViewsResponse:
        async def others() -> None:
            while True:
                events.append("other")
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        response = await handler.list_views(open_access("ListViews"), pb.ListViewsRequest())
        other.cancel()
        return response

    assert [one.name for one in asyncio.run(scenario()).views] == ["v0", "v1", "v2"]
    places = [number for number, event in enumerate(events) if event == "view"]
    assert all("other" in events[begin:end] for begin, end in pairwise(places))


def test_topic_that_is_created_for_a_call_that_has_ended_meanwhile_is_a_row_of_the_audit() -> None:
    rows: list[AuditEvent] = []

    async def play() -> None:
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        async def auto_create_topics(names: Sequence[str]) -> AutoCreation:
            is_asked.set()
            await may_answer.wait()
            return AutoCreation(names, {})

        tasks = TaskScope("metadata")
        cluster: Any = SimpleNamespace(
            config=BrokerConfig(),
            state=SimpleNamespace(topics={}),
            metadata=SimpleNamespace(tasks=tasks),
            controller=SimpleNamespace(auto_create_topics=auto_create_topics),
        )
        audit: Any = SimpleNamespace(add=rows.append, now_ms=lambda: 7)
        quotas: Any = SimpleNamespace(within_mutation_quota=lambda _, names, cost_of, do: do(names))
        api = MetadataApi(cluster, quotas, audit, LoopShares())
        call = asyncio.create_task(api.describe(open_access("Metadata"), ["a"], may_create=True))
        await is_asked.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        may_answer.set()
        await tasks.join()

    asyncio.run(play())
    assert [(row.principal, row.call, row.resource) for row in rows] == [("User:alice", "Metadata", "a")]


def test_each_resource_is_altered_or_refused_for_a_reason_of_its_own() -> None:
    operations = [ConfigOperation("retention.ms", AlterOperation.SET, "1")]
    resources = [
        ConfigResource(ResourceKind.BROKER, "0"),
        ConfigResource(ResourceKind.TOPIC, "bad"),
        ConfigResource(UNKNOWN_KIND, "orders"),
        ConfigResource(ResourceKind.TOPIC, "orders"),
    ]
    cluster: Any = SimpleNamespace(controller=FakeController())
    unused: Any = None
    api = MetadataApi(cluster, unused, unused, LoopShares())
    changes = [(resource, operations) for resource in resources]
    broker, bad, unknown, orders = asyncio.run(
        api.alter_configs(open_access("AlterConfigs"), changes, validate_only=False)
    )
    assert broker is not None
    assert broker.message.startswith(READ_ONLY)
    assert bad == Refused(ErrorCode.INVALID_CONFIG, "bad")
    assert unknown == UNKNOWN_KIND
    assert orders is None
