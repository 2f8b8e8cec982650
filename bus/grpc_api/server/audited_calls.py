"""The audit of calls that change something for good: one row for each thing that was changed, or that a caller was
refused.

`broker_api/calls.py` says which calls these are; here is where the names of the things are in the messages of those
whose APIs do not report to the audit by themselves yet (broker_api/change_audit.py). What a request only asks to
validate is no change.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from bus.broker_api.calls import CALLS, Audited
from bus.broker_api.change_audit import change_event
from bus.broker_api.requests import ANONYMOUS
from bus.errors import ErrorCode
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.request_limits import Unreadable, control_reader
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.audit_log import AuditLog

_log = logging.getLogger(__name__)

_BUS = pb.DESCRIPTOR.services_by_name["Bus"]

# A thing that was to be changed: its name, and the part of the answer that has an error code if it was not.
_Items = Iterable[tuple[str, Any]]
Handle = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of a thing that was to be changed. `error`: why it was not, or may not be; empty: it was."""

    name: str
    error: str = ""
    is_refused: bool = False  # nothing was done


@dataclass(frozen=True, slots=True)
class _ChangedItems:
    """The places of the things that a call changes in its messages."""

    items: Callable[[Any, Any], _Items]  # of a request and its answer
    asked: Callable[[Any], Iterable[str]]  # the names of what a request is to change


def _named(field: str, name: str) -> Callable[[Any, Any], _Items]:
    def items(_: Any, response: Any) -> _Items:
        return ((str(getattr(part, name)), part) for part in getattr(response, field))

    return items


def _partitions(_: Any, response: Any) -> _Items:
    return ((f"{part.topic}-{part.partition}", part) for part in response.partitions)


def _one(name_of: Callable[[Any], str]) -> _ChangedItems:
    """Of a call about one thing, whose error code is the answer's own."""
    return _ChangedItems(
        lambda request, response: [(name_of(request), response)],
        lambda request: [name_of(request)],
    )


def _partitions_asked(request: Any) -> Iterable[str]:
    return (f"{part.topic}-{part.partition}" for part in request.partitions)


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
# What tells that a change may be done.
_MAY_BE_DONE = frozenset(
    (
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )
)
_NO_ANSWER = "the call ended without an answer: it may be done"
# The status of a call that was refused before its work began.
_NOTHING_DONE = frozenset(
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
    )
)
CHANGED_ITEMS: Mapping[str, _ChangedItems] = {
    "AlterPartitionReassignments": _ChangedItems(_partitions, _partitions_asked),
    "ElectLeaders": _ChangedItems(_partitions, lambda request: [one.topic for one in request.topics] or [""]),
    "UnregisterBroker": _one(lambda request: f"broker {request.broker_id}"),
    "UpdateFeatures": _one(lambda request: f"{request.feature} {request.level}"),
    "AlterClientQuotas": _ChangedItems(
        lambda _, answer: ((_entity(one), one) for one in answer.entries),
        lambda request: map(_entity, request.entries),
    ),
    "CreateAcls": _ChangedItems(_created_acls, lambda request: map(_acl, request.acls)),
    "DeleteAcls": _ChangedItems(_deleted_acls, lambda _: [""]),
    "AlterUserScramCredentials": _ChangedItems(
        _named("users", "user"),
        lambda request: dict.fromkeys(one.user for one in (*request.upsertions, *request.deletions)),
    ),
}


@dataclass(frozen=True, slots=True)
class _Call:
    """One that may change something. `name`: by which it came, which of an envelope is not that of the change; `rule`:
    for whom it was sent on."""

    audit: AuditLog
    listener: str
    context: grpc.aio.ServicerContext
    name: str
    audited: Audited
    change: _ChangedItems
    request: Any
    rule: str = ""

    @contextlib.contextmanager
    def telling_unknown_outcome(self) -> Iterator[None]:
        """Audit a call that was begun and ends without an answer: what it began may go on."""
        try:
            yield
        except asyncio.CancelledError:
            self._tell(functools.partial(_unanswered, self.change, self.request, _NO_ANSWER))
            raise
        except grpc.aio.AbortError:
            status = self.context.code()
            if status not in _NOTHING_DONE:
                error = f"the call ended with {status.name}, {self.context.details()}: it may be done"
                self._tell(functools.partial(_unanswered, self.change, self.request, error))
            raise

    def tell(self, response: Any) -> None:
        self._tell(functools.partial(_outcomes, self.change, self.request, response))

    def _tell(self, outcomes: Callable[[], Iterable[_Outcome]]) -> None:
        if isinstance(self.request, Unreadable) or getattr(self.request, "validate_only", False):
            return
        try:
            caller, now_ms = caller_of(self.context, self.listener), self.audit.now_ms()
            for outcome in outcomes():
                event = change_event(
                    caller,
                    now_ms,
                    call=self.name,
                    operation=self.audited.operation,
                    resource_type=self.audited.resource_type,
                    resource=outcome.name,
                    error=outcome.error,
                    rule=self.rule,
                )
                self.audit.add(event, is_refused=outcome.is_refused)
        except Exception as error:  # what was changed is changed: its answer has to go out
            _log.error("the audit has no row of a call %s", self.name, exc_info=error)


class AuditedServicer:
    """The methods of `servicer`; those that change something tell `audit` what became of it."""

    def __init__(self, servicer: object, audit: AuditLog, listener: str) -> None:
        self._servicer = servicer
        self._audit = audit
        self._listener = listener

    def __getattr__(self, method: str) -> Any:
        handle, audited = getattr(self._servicer, method), CALLS[method].audited
        if audited is None or method not in CHANGED_ITEMS:
            return handle
        return self._audited(handle, method, audited)

    def _audited(self, handle: Handle, method: str, audited: Audited) -> Handle:
        change = CHANGED_ITEMS[method]

        async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
            call = _Call(self._audit, self._listener, context, method, audited, change, request)
            with call.telling_unknown_outcome():
                response = await handle(request, context)
            call.tell(response)
            return response

        return answer


class AuditedEnvelopes:
    """The methods of `servicer`, of the calls between brokers. A change that a broker sends on is told here as its own,
    too, with whom it names: the broker that the client has asked tells of the client, but whoever makes an envelope
    chooses the name in it."""

    def __init__(self, servicer: Any, audit: AuditLog, listener: str) -> None:
        self._servicer = servicer
        self._audit = audit
        self._listener = listener

    def __getattr__(self, method: str) -> Any:
        return getattr(self._servicer, method)

    async def Envelope(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        call = None if isinstance(request, Unreadable) else self._call(request, context)
        if call is None:
            return await self._servicer.Envelope(request, context)
        with call.telling_unknown_outcome():
            response = await self._servicer.Envelope(request, context)
        if not response.error_code:  # else it was not taken up
            call.tell(_BUS.methods_by_name[request.method].output_type._concrete_class.FromString(response.response))
        return response

    def _call(self, envelope: pb.EnvelopeRequest, context: grpc.aio.ServicerContext) -> _Call | None:
        """None: it changes nothing, or cannot be read, and then it is refused."""
        inside = CALLS.get(envelope.method)
        if inside is None or inside.audited is None or inside.name not in CHANGED_ITEMS:
            return None
        change = CHANGED_ITEMS[inside.name]
        inner = control_reader(_BUS.methods_by_name[envelope.method].input_type._concrete_class)(envelope.request)
        for_whom = f"for {envelope.principal or ANONYMOUS} from {envelope.client} by {envelope.method}"
        return _Call(self._audit, self._listener, context, "Envelope", inside.audited, change, inner, for_whom)


def _outcomes(change: _ChangedItems, request: Any, response: Any) -> Iterator[_Outcome]:
    for name, answer in change.items(request, response):
        code = getattr(answer, "error_code", 0)
        if code not in _TOLD:
            yield _Outcome(name, _error(answer), is_refused=code != 0 and code not in _MAY_BE_DONE)


def _unanswered(change: _ChangedItems, request: Any, error: str) -> Iterator[_Outcome]:
    return (_Outcome(name, error) for name in change.asked(request))


def _error(answer: Any) -> str:
    code = getattr(answer, "error_code", 0)
    if not code:
        return ""
    try:
        return f"{ErrorCode(code).name}: {answer.error_message}"
    except ValueError:
        return f"{code}: {answer.error_message}"
