"""Which calls change something for good, and what the audit tells of each: one row for each thing that was changed, or
that a caller was refused.

A call is here by its name in the contract. What its request only asks to validate is no change.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from bus.auditing.events import AuditEvent
from bus.broker_api.change_audit import change_event
from bus.errors import ErrorCode
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.audit_log import AuditLog

_log = logging.getLogger(__name__)

# A thing that was to be changed: its name, and the part of the answer that has an error code if it was not.
_Items = Iterable[tuple[str, Any]]
Handle = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Change:
    operation: str
    resource_type: str
    items: Callable[[Any, Any], _Items]  # of a request and its answer


def _named(field: str, name: str) -> Callable[[Any, Any], _Items]:
    def items(_: Any, response: Any) -> _Items:
        return ((str(getattr(part, name)), part) for part in getattr(response, field))

    return items


def _partitions(_: Any, response: Any) -> _Items:
    return ((f"{part.topic}-{part.partition}", part) for part in response.partitions)


def _whole(name_of: Callable[[Any], str]) -> Callable[[Any, Any], _Items]:
    """Of a call about one thing, whose error code is the answer's own."""
    return lambda request, response: [(name_of(request), response)]


def _maintained(request: Any, answer: Any) -> _Items:
    return [(f"{request.topic}-{answer.partition}", answer)]


def _entity(part: Any) -> str:
    return ", ".join(f"{one.type}={one.name if one.HasField('name') else '<default>'}" for one in part.entity)


def _acl(binding: pb.AclBinding) -> str:
    """In one line; a number stands for what has no name."""
    may = _word(pb.AclPermission, binding.permission, "ACL_PERMISSION_")
    what = _word(pb.AclOperation, binding.operation, "ACL_OPERATION_")
    kind = _word(pb.AclResourceType, binding.resource_type, "ACL_RESOURCE_TYPE_")
    pattern = _word(pb.AclPatternType, binding.pattern_type, "ACL_PATTERN_TYPE_")
    return f"{may} {binding.principal} {what} {kind} {pattern} {binding.resource_name} from {binding.host}"


def _word(kind: Any, number: int, prefix: str) -> str:
    return str(kind.Name(number)).removeprefix(prefix) if number in kind.values() else str(number)


def _created_acls(request: Any, response: Any) -> _Items:
    parts = response.results or [response] * len(request.acls)
    return ((_acl(acl), part) for acl, part in zip(request.acls, parts, strict=False))


def _deleted_acls(_: Any, response: Any) -> _Items:
    if response.error_code:
        return [("", response)]
    return ((_acl(acl), None) for result in response.results for acl in result.acls)


# What the decision about access has told already.
_TOLD = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
CHANGES: Mapping[str, _Change] = {
    "CreateTopics": _Change("Create", "Topic", _named("topics", "name")),
    "DeleteTopics": _Change("Delete", "Topic", _named("topics", "name")),
    "CreatePartitions": _Change("Alter", "Topic", _named("topics", "name")),
    "AlterConfigs": _Change(
        "AlterConfigs", "Topic", lambda _, answer: ((one.resource.name, one) for one in answer.resources)
    ),
    "MaintainLog": _Change("Alter", "Topic", _maintained),  # of each of its answers
    "DeleteRecords": _Change("Delete", "Topic", _partitions),
    "SwapFiles": _Change("Alter", "Topic", _whole(lambda request: f"{request.topic}-{request.partition}")),
    "CreateView": _Change("AlterConfigs", "View", _whole(lambda request: str(request.view.name))),
    "DeleteView": _Change("AlterConfigs", "View", _whole(lambda request: str(request.name))),
    "DeleteGroups": _Change("Delete", "Group", _named("groups", "group_id")),
    "OffsetDelete": _Change("Delete", "Group", _whole(lambda request: str(request.group_id))),
    "AlterPartitionReassignments": _Change("Alter", "Topic", _partitions),
    "ElectLeaders": _Change("Alter", "Topic", _partitions),
    "UnregisterBroker": _Change("Alter", "Cluster", _whole(lambda request: f"broker {request.broker_id}")),
    "UpdateFeatures": _Change("Alter", "Cluster", _whole(lambda request: f"{request.feature} {request.level}")),
    "AlterClientQuotas": _Change(
        "AlterConfigs", "ClientQuota", lambda _, answer: ((_entity(one), one) for one in answer.entries)
    ),
    "CreateAcls": _Change("Alter", "Acl", _created_acls),
    "DeleteAcls": _Change("Alter", "Acl", _deleted_acls),
    "AlterUserScramCredentials": _Change("Alter", "User", _named("users", "user")),
    "AbortTransaction": _Change("Alter", "TransactionalId", _whole(lambda request: str(request.transactional_id))),
    "FenceProducers": _Change("Alter", "TransactionalId", _named("producers", "transactional_id")),
}


class AuditedServicer:
    """The methods of `servicer`; those that change something tell `audit` what became of it."""

    def __init__(self, servicer: object, audit: AuditLog, listener: str) -> None:
        self._servicer = servicer
        self._audit = audit
        self._listener = listener

    def __getattr__(self, method: str) -> Any:
        handle, change = getattr(self._servicer, method), CHANGES.get(method)
        return handle if change is None else self._audited(handle, method, change)

    def _audited(self, handle: Handle, method: str, change: _Change) -> Handle:
        if inspect.isasyncgenfunction(handle):

            async def answers(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
                async for response in handle(request, context):
                    self._tell(method, change, request, response, context)
                    yield response

            return answers

        async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
            response = await handle(request, context)
            self._tell(method, change, request, response, context)
            return response

        return answer

    def _tell(
        self, method: str, change: _Change, request: Any, response: Any, context: grpc.aio.ServicerContext
    ) -> None:
        if getattr(request, "validate_only", False):
            return
        try:
            for event in self._events(method, change, change.items(request, response), context):
                self._audit.add(event)
        except Exception as error:  # what was changed is changed: its answer has to go out
            _log.error("the audit has no row of a call %s", method, exc_info=error)

    def _events(
        self, method: str, change: _Change, items: _Items, context: grpc.aio.ServicerContext
    ) -> Iterator[AuditEvent]:
        caller, now_ms = caller_of(context, self._listener), self._audit.now_ms()
        for name, answer in items:
            if getattr(answer, "error_code", 0) not in _TOLD:
                yield change_event(
                    caller,
                    now_ms,
                    call=method,
                    operation=change.operation,
                    resource_type=change.resource_type,
                    resource=name,
                    error=_error(answer),
                )


def _error(answer: Any) -> str:
    code = getattr(answer, "error_code", 0)
    if not code:
        return ""
    try:
        return f"{ErrorCode(code).name}: {answer.error_message}"
    except ValueError:
        return f"{code}: {answer.error_message}"
