"""The administrator's calls about quotas of users and client ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bus.addresses import format_address
from bus.client.admin.failures import raise_failures
from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.portions import CHANGES_MAX, portions
from bus.client.values import ANY_NAME, DEFAULT_NAME, QuotaEntity, QuotaUsage
from bus.grpc_api.v1 import bus_pb2 as pb


class QuotaAdmin:
    """`on_controller` and `retrying` call the broker, once or until it answers; both raise `BusError`."""

    def __init__(
        self, cluster: Cluster, on_controller: Callable[[str, Any], Any], retrying: Callable[[str, Any], Any]
    ) -> None:
        self._cluster = cluster
        self._on_controller = on_controller
        self._retrying = retrying

    def describe(self, wanted: QuotaEntity, *, is_strict: bool) -> dict[QuotaEntity, dict[str, float]]:
        parts = [pb.QuotaFilterPart(part=part, any_name=part.name == ANY_NAME) for part in _encode(wanted)]
        response = self._retrying("DescribeClientQuotas", pb.DescribeClientQuotasRequest(parts=parts, strict=is_strict))
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        return {_decode(one.entity): dict(one.quotas) for one in response.entries}

    def alter(self, alterations: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool) -> None:
        asked = [
            pb.QuotaAlteration(entity=_encode(entity), changes=[_change(*one) for one in changes.items()])
            for entity, changes in alterations.items()
        ]
        failures = []
        for portion in portions(asked, CHANGES_MAX, lambda one: 2 + len(one.changes)):
            request = pb.AlterClientQuotasRequest(entries=portion, validate_only=validate_only)
            for one in self._on_controller("AlterClientQuotas", request).entries:
                failures.append((show_entity(_decode(one.entity)), one.error_code, one.error_message))
        raise_failures(failures)

    def usage_on(self, broker: pb.Broker, deadline_ms: float) -> Iterable[QuotaUsage]:
        request, address = pb.DescribeQuotaUsageRequest(), format_address(broker.host, broker.port)
        response = self._cluster.call("DescribeQuotaUsage", request, address=address, deadline_ms=deadline_ms)
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        return [
            QuotaUsage(broker.broker_id, _decode(one.entity), one.quota, one.limit, one.rate, one.throttle_time_ms)
            for one in response.entries
        ]


def show_entity(entity: QuotaEntity) -> str:
    """As Kafka's command prints it."""
    parts = (("user-principal", entity.user), ("client-id", entity.client_id))
    return ", ".join(
        f"the default {what}" if name == DEFAULT_NAME else f"{what} '{name}'"
        for what, name in parts
        if name is not None
    )


def _encode(entity: QuotaEntity) -> list[pb.QuotaEntityPart]:
    parts = (("user", entity.user), ("client-id", entity.client_id))
    return [
        pb.QuotaEntityPart(type=kind, name=None if name == DEFAULT_NAME else name)
        for kind, name in parts
        if name is not None
    ]


def _decode(parts: Iterable[pb.QuotaEntityPart]) -> QuotaEntity:
    names = {part.type: part.name if part.HasField("name") else DEFAULT_NAME for part in parts}
    return QuotaEntity(names.get("user"), names.get("client-id"))


def _change(name: str, limit: float | None) -> pb.QuotaChange:
    return pb.QuotaChange(name=name, remove=True) if limit is None else pb.QuotaChange(name=name, value=limit)
