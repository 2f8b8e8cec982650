"""Authorization of calls: what is named in the messages of each call, and how a refusal stands in its answer.

What a call needs is decided by broker_api/calls.py; here is where the names are. A request is checked before
its handler sees it: one that is refused as a whole is answered here, and of one whose items are refused the handler
gets the rest, so an answer has the refusals in the places of their items. What may not be seen is taken out of answers.

Produce, Fetch, GroupSession and the reflection check each of their requests by themselves, and what everybody may ask
needs nothing: their rows say so (`is_checked_by_handler`). The rights of other calls are checked where they are
answered, in broker_api; this module has those that are not checked there yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from bus.broker_api.authorization import Access, Authorizer
from bus.broker_api.calls import CALLS, Call, Need
from bus.broker_api.requests import Caller
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.conversions import with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import OPERATIONS
from bus.security.acls import CLUSTER_NAME, AclResourceType

Handle = Callable[[Any], Awaitable[Any]]
Names = tuple[Sequence[str], ...]  # for each need in turn; none: it does not apply


@dataclass(frozen=True, slots=True)
class Items:
    """A repeated field of the request. Each of its items has one or more entries in a repeated field of the answer, in
    the same order. `refuse`: the entries of an item that is refused, as many as it would have."""

    asked: str
    answered: str
    names: Callable[[Any], Names]
    refuse: Callable[[Any, Refused], Sequence[Message]]


@dataclass(frozen=True, slots=True)
class Shown:
    """A repeated field of the answer, whose items are left out unless they may be seen."""

    answered: str
    name: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Form:
    """The places of the names in the messages of one call. `names`: of the resources that the request is about as a
    whole; None: in the fields that most requests have for them. `refuse`: its answer if it is refused as a whole; None:
    `response` with the error, or each item with it where that has none. `response`: the answer's type in the contract.
    """

    response: type[Message] = Message
    names: Callable[[Any, Authorizer], Names] | None = None
    items: Items | None = None
    shown: Shown | None = None
    refuse: Callable[[Any, Refused], Message] | None = None

    def refuse_whole(self, request: Any, refused: Refused) -> Any:
        if self.refuse is not None:
            return self.refuse(request, refused)
        answer = self.response()
        if "error_code" in self.response.DESCRIPTOR.fields_by_name:
            return with_error(answer, refused)
        assert self.items is not None, f"expected a place for an error in {self.response.DESCRIPTOR.name}"
        for item in getattr(request, self.items.asked):
            getattr(answer, self.items.answered).extend(self.items.refuse(item, refused))
        return answer


class CallAuthorization:
    """Checks every call that its handler does not check."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def around(self, method: str, handle: Handle, caller: Callable[[], Caller]) -> Handle:
        """The same handler, for what the caller may do."""
        is_checked = self._authorizer.is_enabled or method in _WITH_OPERATIONS
        if not is_checked or method not in FORMS:
            return handle

        async def answer(request: Any) -> Any:
            return await self.answer(method, handle, request, caller())

        return answer

    async def answer(self, method: str, handle: Handle, request: Any, caller: Caller) -> Any:
        access = self._authorizer.access(caller, method)
        if access.allows_all:
            response = await handle(request)
        elif method == "OffsetFetch":
            response = await self._offset_fetch(handle, request, access)
        else:
            response = await self._answer(method, handle, request, access)
        await self._add_operations(method, request, response, caller)
        return response

    async def _answer(self, method: str, handle: Handle, request: Any, access: Access) -> Any:
        form, call = FORMS[method], CALLS[method]
        refused = await self._check_request(method, form, request, access)
        if refused is not None:
            return form.refuse_whole(request, refused)
        response = await self._answer_items(form, call, handle, request, access)
        if form.shown is not None:
            await self._filter(form.shown, call.view_needs[0], response, access)
        elif method == "DescribeTransactions":
            of_topics, of_groups = call.view_needs
            for described in response.transactions:
                await self._filter(Shown("topics", _topic), of_topics, described, access)
                await self._filter(Shown("group_ids", str), of_groups, described, access)
        return response

    async def _check_request(self, method: str, form: Form, request: Any, access: Access) -> Refused | None:
        """The first need that is not met decides."""
        if form.names is None:
            return None
        for need, names in zip(CALLS[method].needs, form.names(request, self._authorizer), strict=True):
            if names:
                refused = await access.refusals(need, names)
                for refusal in refused.values():
                    return refusal
        return None

    # ------------------------------------------------------------------ items

    async def _answer_items(self, form: Form, call: Call, handle: Handle, request: Any, access: Access) -> Any:
        if form.items is None:
            return await handle(request)
        items = list(getattr(request, form.items.asked))
        refused = await self._check_items(form.items, call, items, access)
        if not refused:
            return await handle(request)
        left = [item for place, item in enumerate(items) if place not in refused]
        response = await handle(_with_items(request, form.items.asked, left)) if left else form.response()
        return await self._merge(form.items, items, refused, response)

    async def _check_items(
        self, form: Items, call: Call, items: Sequence[Any], access: Access
    ) -> Mapping[int, Refused]:
        """By the place of the item."""
        share = self._authorizer.shares.begin()
        named: list[list[str]] = [[] for _ in call.item_needs]
        places: list[list[int]] = [[] for _ in call.item_needs]
        for place, item in enumerate(items):
            if share.is_used_up:
                await share.wait()
            for which, names in enumerate(form.names(item)):
                named[which] += names
                places[which] += [place] * len(names)
        found: dict[int, Refused] = {}
        for need, names, where in zip(call.item_needs, named, places, strict=True):
            refused = await access.refusals(need, names)
            if refused:
                of_need = {place: refused[name] for name, place in zip(names, where, strict=True) if name in refused}
                found = {**of_need, **found}
        return found

    async def _merge(self, form: Items, items: Sequence[Any], refused: Mapping[int, Refused], response: Any) -> Any:
        """The answer to the items that were left, with the others in their places."""
        share, answered = self._authorizer.shares.begin(), iter(list(getattr(response, form.answered)))
        counts = [len(form.refuse(item, _ANY_REFUSAL)) for item in items]
        expected = sum(count for place, count in enumerate(counts) if place not in refused)
        if expected != len(getattr(response, form.answered)):
            return response  # it is refused as a whole, for another reason
        merged: list[Message] = []
        for place, item in enumerate(items):
            if share.is_used_up:
                await share.wait()
            if place in refused:
                merged += form.refuse(item, refused[place])
            else:
                merged += [next(answered) for _ in range(counts[place])]
        return _with_items(response, form.answered, merged)

    async def _filter(self, shown: Shown, need: Need, response: Any, access: Access) -> None:
        field = getattr(response, shown.answered)
        items = list(field)
        visible = await access.visible(need, map(shown.name, items))
        kept = [item for item in items if shown.name(item) in visible]
        if len(kept) < len(items):
            del field[:]
            field.extend(kept)

    # ------------------------------------------------------------------ calls that are like no other

    async def _offset_fetch(
        self, handle: Handle, request: pb.OffsetFetchRequest, access: Access
    ) -> pb.OffsetFetchResponse:
        """Of all partitions of a group those of topics that may be described; of partitions that are named, the others
        are refused one by one, behind them."""
        call, form = CALLS["OffsetFetch"], FORMS["OffsetFetch"]
        named = [item.topic for group in request.groups for item in group.topics]
        refused = await access.refusals(call.view_needs[0], named) if named else {}
        asked = pb.OffsetFetchRequest()
        asked.CopyFrom(request)
        for group in asked.groups:
            kept = [item for item in group.topics if item.topic not in refused]
            del group.topics[:]
            group.topics.extend(kept)
        response = await self._answer_items(form, call, handle, asked, access)
        for group, answer in zip(request.groups, response.groups, strict=True):
            if answer.error_code:
                continue
            if group.all_partitions:
                await self._filter(Shown("offsets", _topic), call.view_needs[0], answer, access)
                continue
            for item in group.topics:
                if item.topic in refused:
                    answer.offsets.extend(
                        with_error(
                            pb.CommittedOffset(topic=item.topic, partition=number, offset=-1, leader_epoch=-1),
                            refused[item.topic],
                        )
                        for number in item.partitions
                    )
        return response  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ operations (KIP-430)

    async def _add_operations(self, method: str, request: Any, response: Any, caller: Caller) -> None:
        wish = _WITH_OPERATIONS.get(method)
        if wish is None or not getattr(request, wish.field):
            return
        share = self._authorizer.shares.begin()
        for item in wish.items(response):
            if share.is_used_up:
                await share.wait()
            if not item.error_code:
                found = self._authorizer.allowed_operations(caller, wish.resource_type, wish.name(item))
                item.authorized_operations.extend(map(OPERATIONS.number, found))


@dataclass(frozen=True, slots=True)
class _OperationsWish:
    field: str  # of the request, by which they are asked for
    resource_type: AclResourceType
    items: Callable[[Any], Iterable[Any]]
    name: Callable[[Any], str]


_WITH_OPERATIONS = {
    "DescribeGroups": _OperationsWish(
        "include_authorized_operations",
        AclResourceType.GROUP,
        lambda response: response.groups,
        lambda one: one.group_id,
    ),
    "DescribeCluster": _OperationsWish(
        "include_authorized_operations", AclResourceType.CLUSTER, lambda response: (response,), lambda _: CLUSTER_NAME
    ),
}
_ANY_REFUSAL = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "")


def _with_items(message: Any, field: str, items: Iterable[Any]) -> Any:
    """The message with these in the repeated field."""
    changed = type(message)()
    changed.CopyFrom(message)
    changed.ClearField(field)
    getattr(changed, field).extend(items)
    return changed


# ---------------------------------------------------------------- where the names are


def _topic(message: Any) -> str:
    return message.topic  # type: ignore[no-any-return]


def _of_topic(message: Any) -> Names:
    return ([message.topic],)


def _itself(name: str) -> Names:
    return ([name],)


def _entry(entry: type[Message], *fields: str) -> Callable[[Any, Refused], Sequence[Message]]:
    """One entry, with these fields of the item."""

    def refuse(item: Any, refused: Refused) -> Sequence[Message]:
        return [with_error(entry(**{field: getattr(item, field) for field in fields}), refused)]

    return refuse


def _entry_of_text(entry: type[Message], field: str, **others: Any) -> Callable[[str, Refused], Sequence[Message]]:
    return lambda text, refused: [with_error(entry(**{field: text}, **others), refused)]


def _entry_for_each_partition(entry: type[Message]) -> Callable[[Any, Refused], Sequence[Message]]:
    return lambda item, refused: [
        with_error(entry(topic=item.topic, partition=number), refused) for number in item.partitions
    ]


def _init_producer_names(request: pb.InitProducerIdRequest, _: Authorizer) -> Names:
    names = [name for name in (request.transactional_id, request.name) if name]
    return (names, [] if names else [CLUSTER_NAME])


def _coordinator_names(request: pb.FindCoordinatorRequest, _: Authorizer) -> Names:
    return ([], [request.key]) if request.key_type == pb.COORDINATOR_TYPE_TRANSACTION else ([request.key], [])


def _refuse_step(request: pb.TransactionStepRequest, refused: Refused) -> Message:
    return pb.TransactionStepResponse(
        partitions=[with_error(pb.TransactionStepResult(), refused) for _ in request.partitions],
        groups=[with_error(pb.TransactionStepResult(), refused) for _ in request.groups],
    )


_step = Form(refuse=_refuse_step)
_committed = Items(
    "partitions", "partitions", _of_topic, _entry(pb.OffsetCommitPartitionResponse, "topic", "partition")
)

# Calls not here name what their needs are about in the usual fields, and have a place for an error in the answer.
_FORMS_OF_THEIR_OWN: Mapping[str, Form] = {
    "AlterUserScramCredentials": Form(
        refuse=lambda request, refused: pb.AlterUserScramCredentialsResponse(
            users=[
                with_error(pb.AlteredUser(user=user), refused)
                for user in dict.fromkeys(one.user for one in (*request.upsertions, *request.deletions))
            ]
        ),
    ),
    "AlterClientQuotas": Form(
        refuse=lambda request, refused: pb.AlterClientQuotasResponse(
            entries=[with_error(pb.AlteredQuotas(entity=one.entity), refused) for one in request.entries]
        ),
    ),
}


_NAME_IN: Mapping[AclResourceType, Callable[[Any], str]] = {
    AclResourceType.CLUSTER: lambda _: CLUSTER_NAME,
    AclResourceType.GROUP: lambda request: request.group_id,
    AclResourceType.TOPIC: _topic,
    AclResourceType.TRANSACTIONAL_ID: lambda request: request.transactional_id,
}


def _names_in(call: Call) -> Callable[[Any, Authorizer], Names] | None:
    """The names of the resources that the request is about, in the fields that most requests have for them."""
    places = [_NAME_IN[need.resource_type] for need in call.needs]
    return (lambda request, _: tuple([name_in(request)] for name_in in places)) if places else None


def _form_of(call: Call, method: MethodDescriptor) -> Form:
    form = _FORMS_OF_THEIR_OWN.get(call.name, Form())
    return replace(form, response=method.output_type._concrete_class, names=form.names or _names_in(call))


# Their rights are checked in broker_api, by the API that answers them.
_CHECKED_IN_API = frozenset(
    (
        "InitProducerId",
        "ResumeProducer",
        "FindCoordinator",
        "JoinGroup",
        "SyncGroup",
        "Heartbeat",
        "LeaveGroup",
        "OffsetCommit",
        "OffsetFetch",
        "OffsetDelete",
        "ListGroups",
        "DescribeGroups",
        "DeleteGroups",
        "TxnOffsetCommit",
        "EndTxn",
        "ListTransactions",
        "DescribeTransactions",
        "DescribeProducers",
        "AbortTransaction",
        "FenceProducers",
        "AddPartitionsToTxn",
        "VoteTransaction",
        "ApplyTransaction",
        "DropTransaction",
        "CommitTransaction",
        "ResolveTransaction",
        "FindNeeded",
        "ListOffsets",
        "DeleteRecords",
        "MaintainLog",
        "SwapFiles",
        "Metadata",
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "DescribeConfigs",
        "AlterConfigs",
        "CreateView",
        "DeleteView",
        "ListViews",
    )
)
FORMS: Mapping[str, Form] = {
    method.name: _form_of(CALLS[method.name], method)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not CALLS[method.name].is_checked_by_handler and method.name not in _CHECKED_IN_API
}
