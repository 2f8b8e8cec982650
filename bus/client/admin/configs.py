"""The administrator's calls about configs of topics and brokers: messages to values and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bus.client.admin.broker_calls import BrokerCalls, raise_failures
from bus.client.arguments import check_text
from bus.client.values import ConfigDescription
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb

_RESOURCE_TYPES = {"topic": pb.RESOURCE_TYPE_TOPIC, "broker": pb.RESOURCE_TYPE_BROKER}


class ConfigAdmin:
    """Every method blocks until the broker's answer and raises `BusError`. `kind` is topic or broker."""

    def __init__(self, calls: BrokerCalls) -> None:
        self._calls = calls

    def describe(self, name: str, kind: str, keys: Sequence[str]) -> list[ConfigDescription]:
        request = pb.DescribeConfigsRequest(resources=[_resource(name, kind)], keys=keys)
        response = self._calls.ask("DescribeConfigs", request)
        raise_failures([(r.resource.name, r.error_code, r.error_message) for r in response.resources])
        return [_description(entry) for result in response.resources for entry in result.entries]

    def alter(
        self,
        name: str,
        kind: str,
        *,
        changes: Mapping[str, str],
        delete: Iterable[str],
        append: Mapping[str, str],
        subtract: Mapping[str, str],
        validate_only: bool,
    ) -> None:
        operations = [
            *(_operation(pb.ALTER_OPERATION_SET, key, value) for key, value in changes.items()),
            *(_operation(pb.ALTER_OPERATION_DELETE, key, "") for key in delete),
            *(_operation(pb.ALTER_OPERATION_APPEND, key, value) for key, value in append.items()),
            *(_operation(pb.ALTER_OPERATION_SUBTRACT, key, value) for key, value in subtract.items()),
        ]
        request = pb.AlterConfigsRequest(
            resources=[pb.AlterConfigsResource(resource=_resource(name, kind), operations=operations)],
            validate_only=validate_only,
        )
        response = self._calls.on_controller("AlterConfigs", request)
        raise_failures([(r.resource.name, r.error_code, r.error_message) for r in response.resources])


def _resource(name: str, kind: str) -> pb.ConfigResource:
    if not isinstance(kind, str) or kind not in _RESOURCE_TYPES:
        raise BusError(ErrorCode.INVALID_REQUEST, f"expected a resource kind topic or broker, found {kind!r}")
    check_text("name", name)
    return pb.ConfigResource(type=_RESOURCE_TYPES[kind], name=name)


def _operation(operation: pb.AlterOperation, name: str, value: str) -> pb.AlterConfigOp:
    return pb.AlterConfigOp(name=name, operation=operation, value=value)


def _description(entry: pb.ConfigEntry) -> ConfigDescription:
    return ConfigDescription(
        name=entry.name,
        value=entry.value,
        default_value=entry.default_value,
        is_default=entry.is_default,
        is_read_only=entry.is_read_only,
        type=entry.type,
        valid_values=entry.valid_values,
        documentation=entry.documentation,
    )
