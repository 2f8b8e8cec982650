from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from bus.broker_api.metadata import ConfigResource, MetadataApi, ResourceKind
from bus.cluster_metadata.cluster_decisions import AlterTopicConfigs
from bus.cluster_metadata.configs import AlterOperation, ConfigOperation
from bus.errors import ErrorCode, Refused
from bus.runtime.loop_shares import LoopShares

UNKNOWN_KIND = Refused(ErrorCode.INVALID_REQUEST, "expected a type that there is, found 7")
READ_ONLY = "broker configs are read at start"


class FakeController:
    """Refuses to alter topic `bad`."""

    async def alter_topic_configs(self, commands: Sequence[AlterTopicConfigs]) -> list[Any]:
        return [Refused(ErrorCode.INVALID_CONFIG, "bad") if c.name == "bad" else object() for c in commands]


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
    broker, bad, unknown, orders = asyncio.run(api.alter_configs(changes, validate_only=False))
    assert broker is not None
    assert broker.message.startswith(READ_ONLY)
    assert bad == Refused(ErrorCode.INVALID_CONFIG, "bad")
    assert unknown == UNKNOWN_KIND
    assert orders is None
