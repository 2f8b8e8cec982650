"""Decides whether the callers of this broker may do what they ask for, by the ACLs of the cluster, and changes these
for administrators (`AclApi`).

Guards two promises: an ACL that this broker has applied acts on the next request of every stream; and a request that is
allowed again costs one look-up for each resource that it names.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bus.broker_api.audit import AccessDecided, AccessLog, ChangeAudit, Reporter, Stated, StatementProbe
from bus.broker_api.calls import CALLS, Call, Need
from bus.broker_api.requests import ANONYMOUS, Caller, Items
from bus.client_texts import shown
from bus.cluster_metadata.cluster_state import ClusterState
from bus.errors import ErrorCode, NotController, Refused
from bus.runtime.audit_log import AuditLog
from bus.runtime.cluster import Cluster
from bus.runtime.tasks import LoopShares, run_in_slices
from bus.security.acl_decisions import (
    AclPolicy,
    Decision,
    Requester,
    allowed_operations,
    decide_access,
    decide_access_to_any,
)
from bus.security.acl_index import AclIndex
from bus.security.acls import CLUSTER, CLUSTER_NAME, OPERATIONS, AclBinding, AclBindingFilter, AclOperation, AclResource
from bus.settings.listeners import Listener

_log = logging.getLogger(__name__)

OF_CLUSTER = (CLUSTER_NAME,)  # the names of a request that is about the cluster
_KNOWN_MAX = 10_000  # names that one stream keeps for each need
_KNOWN_LENGTH_MAX = 1_024  # longer names are not kept: a caller may name any, and a prefix may allow it
_NONE: Mapping[str, Refused] = {}

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class Authorizer:
    """The decisions about the callers of this broker. `policy` None: everyone may do everything, and nothing is decided
    or reported. `audit`: of what calls change."""

    def __init__(
        self,
        state: Callable[[], ClusterState],
        policy: AclPolicy | None,
        shares: LoopShares,
        log: AccessLog | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._state = state
        self.policy = policy
        self.shares = shares
        self.log = log or AccessLog()
        self._audit = audit

    @property
    def is_enabled(self) -> bool:
        return self.policy is not None

    @property
    def index(self) -> AclIndex:
        """Another object after each change of the ACLs."""
        return self._state().acls

    def access(self, caller: Caller, call: str) -> Access:
        """Return what the requests of one call, or of one stream, may do."""
        return Access(self, caller, CALLS[call], ChangeAudit(self._audit, CALLS[call].audited, Reporter(caller, call)))

    def access_sent_on(self, caller: Caller, call: str, sender: Access) -> Access:
        """Return what a call that another broker sends on may do: what the caller may whom that broker names. A change
        is audited as one of the broker's, since whoever sends a call on chooses the name in it."""
        rule = f"for {caller.principal} from {caller.host} by {call}"
        reporter = Reporter(sender.caller, sender.call.name, rule)
        return Access(self, caller, CALLS[call], ChangeAudit(self._audit, CALLS[call].audited, reporter))

    def access_of_broker(self, caller: Caller, call: str) -> Access:
        """Return what a broker may do for itself, which is everything."""
        everyone = Authorizer(self._state, None, self.shares)
        return everyone.access(caller, call)


def requester_of(caller: Caller) -> Requester:
    return Requester(caller.principal, caller.host.removeprefix("/"))


class Access:
    """The caller of a method of an API, which takes it first: who asks, by which call, and what it may.

    The names of resources are given for the needs of the call's row in `CALLS`, in their order. Remembers what was
    allowed, for as long as the ACLs are the same. `changes`: the audit of what the call changes.
    """

    def __init__(self, authorizer: Authorizer, caller: Caller, call: Call, changes: ChangeAudit) -> None:
        self._authorizer = authorizer
        self._policy = authorizer.policy
        self._requester = requester_of(caller)
        self._index: AclIndex | None = None
        self._allowed: dict[Need, set[str]] = {}
        self._deferred: list[AccessDecided] | None = None
        self.caller = caller
        self.call = call
        self.changes = changes

    @property
    def allows_all(self) -> bool:
        """True if nothing is asked, for want of an authorizer."""
        return self._policy is None

    @property
    def is_current(self) -> bool:
        """True if the ACLs are those by which it has decided last."""
        return self._policy is None or self._authorizer.index is self._index

    # ------------------------------------------------------------------ requests

    async def refusal_of_request(
        self, *names: Sequence[str], reported_name: Callable[[str], str] | None = None
    ) -> Refused | None:
        """Check the needs of the request as a whole: the first that is not met decides. `names`: of the resources for
        each need in turn; none where the request names no resource of the type. `reported_name`: the name that a
        refusal shows, where the caller may not learn the real one."""
        for need, of_need in zip(self.call.needs, names, strict=True):
            for name, refusal in (await self.refusals(need, of_need)).items():
                return refusal if reported_name is None else self.refused(need, reported_name(name))
        self.changes.permit()
        return None

    async def answer_items(
        self,
        items: Items[ItemT],
        name_of: Callable[[ItemT], str],
        answer: Callable[[Sequence[ItemT]], Awaitable[Sequence[AnswerT]]],
        need_of: Callable[[ItemT], Need] | None = None,
    ) -> list[AnswerT | Refused]:
        """Have `answer` answer the items that the caller is permitted to name; the refusals of the others are in their
        places. `need_of` chooses the need of an item; without it each item needs all of the row."""
        share = self._authorizer.shares.begin()
        listed: list[ItemT] = await share.extend([], items)
        refused = await self.refused_places(listed, name_of, need_of)
        if not refused:
            return list(await answer(listed))
        permitted = [item for place, item in enumerate(listed) if place not in refused]
        if not permitted:
            self.changes.permit(tuple)
        answers = iter(await answer(permitted) if permitted else ())
        share.renew()
        merged = (refused[place] if place in refused else next(answers) for place in range(len(listed)))
        return await share.extend([], merged)

    async def refused_places(
        self,
        items: Sequence[ItemT],
        name_of: Callable[[ItemT], str],
        need_of: Callable[[ItemT], Need] | None = None,
    ) -> Mapping[int, Refused]:
        """Return the refusals by the places of their items: of each item for the first need that is not met."""
        if self._policy is None:
            return {}
        share = self._authorizer.shares.begin()
        names: dict[Need, list[str]] = {need: [] for need in self.call.item_needs}
        places: dict[Need, list[int]] = {need: [] for need in self.call.item_needs}
        for place, item in enumerate(items):
            if share.is_used_up:
                await share.wait()
            for need in self.call.item_needs if need_of is None else (need_of(item),):
                names[need].append(name_of(item))
                places[need].append(place)
        found: dict[int, Refused] = {}
        for need, of_need in names.items():
            refused = await self.refusals(need, of_need)
            if refused:
                pairs = zip(places[need], of_need, strict=True)
                found = {place: refused[name] for place, name in pairs if name in refused} | found
        return found

    async def change_items(
        self,
        items: Items[ItemT],
        name_of: Callable[[ItemT], str],
        answer: Callable[[Sequence[ItemT]], Awaitable[Sequence[AnswerT]]],
        need_of: Callable[[ItemT], Need] | None = None,
        *,
        changed_name: Callable[[ItemT], str] | None = None,
        is_change: bool = True,
    ) -> list[AnswerT | Refused]:
        """The same where each item is something to be changed, which is audited. `changed_name`: of what an item
        changes, if that is not the resource."""
        stated = changed_name or name_of

        async def change(permitted: Sequence[ItemT]) -> Sequence[AnswerT]:
            self.changes.permit(lambda: map(stated, permitted))
            return await answer(permitted)

        self.changes.begin(lambda: map(stated, items), is_change=is_change)
        answers = await self.answer_items(items, name_of, change, need_of)
        self.changes.report_in_order(answers)
        return answers

    async def change(
        self,
        name: str,
        carry_out: Callable[[], Awaitable[AnswerT | Refused]],
        *names: Sequence[str],
        reported_name: Callable[[str], str] | None = None,
        is_change: bool = True,
    ) -> AnswerT | Refused:
        """Have `carry_out` change one thing if the caller is permitted to, and audit it under its name. `names` and
        `reported_name`: as `refusal_of_request` has them."""
        self.changes.begin(lambda: [name], is_change=is_change)
        answer = await self.refusal_of_request(*names, reported_name=reported_name) or await carry_out()
        self.changes.report_all(answer)
        return answer

    def state_changes(self, call: Callable[[Access], Any]) -> None:
        """Have the audit know what a call would change that has not begun: `call`, a coroutine or an async generator,
        is run up to where it states that, which is before its first `await`."""
        if self.changes.has_begun or not self.changes.is_kept:
            return
        begun = call(Access(self._authorizer, self.caller, self.call, StatementProbe()))
        step = begun.__anext__() if inspect.isasyncgen(begun) else begun
        try:
            step.send(None)
        except Stated as stated:
            names = stated.names
            self.changes.begin(lambda: names)
        except Exception as error:  # its request is none that could change anything
            _log.debug("call %s changes nothing: %s", self.call.name, error)
        else:
            step.close()
            _log.error("call %s states what it changes after its first await: it has no row", self.call.name)

    # ------------------------------------------------------------------ answers

    async def filter_visible(
        self, items: Sequence[ItemT], name_of: Callable[[ItemT], str], need: Need | None = None
    ) -> Sequence[ItemT]:
        """Return the items of an answer that the caller may see. `need`: of those in the row; None: the only one."""
        if self._policy is None:
            return items
        visible = await self.visible(need or self.call.view_needs[0], map(name_of, items))
        return [item for item in items if name_of(item) in visible]

    def operations(self, resource: AclResource) -> Sequence[AclOperation]:
        """Return what the caller may do with the resource; everything that there is if nothing is asked (KIP-430)."""
        if self._policy is None:
            return OPERATIONS[resource.resource_type]
        return allowed_operations(self._authorizer.index, self._requester, resource, self._policy)

    # ------------------------------------------------------------------ names

    async def refusals(self, need: Need, names: Sequence[str]) -> Mapping[str, Refused]:
        """Return a refusal for each of these names of resources on which the caller is not allowed what it needs."""
        if self._policy is None:
            return _NONE
        if self._authorizer.index is self._index and not self._authorizer.log.has_grants:
            allowed = self._allowed.get(need)
            if allowed is not None and allowed.issuperset(names):
                return _NONE
        return await self._decide_all(need, names, is_filter=False)

    async def refusal(self, need: Need, name: str = CLUSTER_NAME) -> Refused | None:
        return (await self.refusals(need, (name,))).get(name)

    async def visible(self, need: Need, names: Iterable[str]) -> frozenset[str]:
        """Return those of these names on which the caller is allowed what it needs."""
        distinct = frozenset(names)
        if self._policy is None:
            return distinct
        return distinct - (await self._decide_all(need, distinct, is_filter=True)).keys()

    async def _decide_all(self, need: Need, names: Iterable[str], *, is_filter: bool) -> Mapping[str, Refused]:
        authorizer, index = self._authorizer, self._authorizer.index
        if index is not self._index:
            self._index, self._allowed = index, {}
        allowed = self._allowed.setdefault(need, set())
        if len(allowed) > _KNOWN_MAX:
            allowed.clear()
        refused, share = dict[str, Refused](), authorizer.shares.begin()
        for name, count in Counter(names).items():
            if share.is_used_up:
                await share.wait()
            decision = self._decide(index, need, name)
            if decision.is_allowed:
                if len(name) <= _KNOWN_LENGTH_MAX:
                    allowed.add(name)
            else:
                refused[name] = self.refused(need, name)
            if not decision.is_allowed or authorizer.log.has_grants:
                resource = AclResource(need.resource_type, name)
                self._report(
                    AccessDecided(
                        self._requester,
                        need.operation,
                        resource,
                        self.call.name,
                        count,
                        decision,
                        is_filter,
                        self.caller,
                    )
                )
        return refused

    def _report(self, decided: AccessDecided) -> None:
        if self._deferred is None:
            self._authorizer.log.report(decided)
        else:
            self._deferred.append(decided)

    @contextlib.asynccontextmanager
    async def deferring_reports(self) -> AsyncIterator[None]:
        """Report the decisions at the end of this block, or not at all if it raises `NotController`: then the
        controller decides again, and reports that."""
        deferred: list[AccessDecided] = []
        self._deferred = deferred
        try:
            yield
        except NotController:
            deferred.clear()
            raise
        finally:
            self._deferred = None
            await self._report_all(iter(deferred))

    async def _report_all(self, decided: Iterator[AccessDecided]) -> None:
        share = self._authorizer.shares.begin()
        try:
            for one in decided:
                self._authorizer.log.report(one)
                if share.is_used_up:
                    await share.wait()
        finally:
            run_in_slices(map(self._authorizer.log.report, decided))  # of a caller that does not wait for its answer

    def _decide(self, index: AclIndex, need: Need, name: str) -> Decision:
        requester, policy = self._requester, self._policy
        assert policy is not None, "expected an authorizer, found none"
        if need.instead is not None:
            decision = decide_access(index, requester, need.instead.operation, CLUSTER, policy)
            if decision.is_allowed:
                return decision
        decision = decide_access(index, requester, need.operation, AclResource(need.resource_type, name), policy)
        other = need.or_on_any
        if decision.is_allowed or other is None:
            return decision
        on_any = decide_access_to_any(index, requester, other.operation, other.resource_type, policy)
        return on_any if on_any.is_allowed else decision

    def refused(self, need: Need, name: str) -> Refused:
        """The refusal on a resource of this name. Which rule decided is reported to the log only."""
        resource = AclResource(need.resource_type, name)
        return Refused(need.code, f"{shown(self._requester.principal)} may not {need.operation.value} {resource}")


def warnings_of_access(policy: AclPolicy | None, open_listeners: Iterable[Listener], *, has_acls: bool) -> list[str]:
    """About an authorizer whose settings are probably a mistake; empty without an authorizer. `open_listeners`: those
    without authentication."""
    if policy is None:
        return []
    found = []
    if not policy.super_users and not has_acls:
        found.append("there are neither ACLs nor super.users: with authorizer.class.name every call is refused")
    is_super = ", a super user" if ANONYMOUS in policy.super_users else ""
    for listener in open_listeners:
        if listener.is_beyond_loopback:
            found.append(
                f"listener {listener.name} at {listener.bind} is without authentication: to ACLs, everyone who comes "
                f"there from other machines is {ANONYMOUS}{is_super}"
            )
    return found


def show_acl(acl: AclBinding) -> str:
    """The binding in a row of the audit, on one line."""
    resource = f"{acl.resource_type.name} {acl.pattern_type.name} {acl.resource_name}"
    return f"{acl.permission.name} {acl.principal} {acl.operation.name} {resource} from {acl.host}"


class AclApi:
    """Adds, lists and removes ACLs for administrators. Each call is refused with SECURITY_DISABLED where no authorizer
    would act by them, as in Kafka."""

    def __init__(self, cluster: Cluster, authorizer: Authorizer, shares: LoopShares) -> None:
        self._cluster = cluster
        self._authorizer = authorizer
        self._shares = shares

    async def create(self, access: Access, acls: Items[AclBinding]) -> list[Refused | None] | Refused:
        """Create the bindings. Return for each of them None once every broker that is not fenced acts by it, or why it
        was refused."""
        access.changes.begin(lambda: map(show_acl, acls))
        refused = await access.refusal_of_request(OF_CLUSTER) or self._check_enabled()
        answers = refused or await self._cluster.controller.create_acls(list(acls))
        if isinstance(answers, Refused):
            access.changes.report_all(answers)
        else:
            access.changes.report_in_order(answers)
        return answers

    async def describe(self, access: Access, wanted: AclBindingFilter) -> list[AclBinding] | Refused:
        refused = await access.refusal_of_request(OF_CLUSTER) or self._check_enabled()
        if refused is not None:
            return refused
        found: list[AclBinding] = []
        share = self._shares.begin()
        for acl in self._authorizer.index:
            if share.is_used_up:
                await share.wait()
            if wanted.matches(acl):
                found.append(acl)
        return found

    async def delete(self, access: Access, filters: Items[AclBindingFilter]) -> list[list[AclBinding]] | Refused:
        """Delete what the filters match. Return the bindings of each filter once only fenced brokers act by them."""
        access.changes.begin(lambda: [""])
        refused = await access.refusal_of_request(OF_CLUSTER) or self._check_enabled()
        answers = refused or await self._cluster.controller.delete_acls(list(filters))
        if isinstance(answers, Refused):
            access.changes.report_all(answers)
        else:
            access.changes.report(lambda: ((show_acl(acl), None) for found in answers for acl in found))
        return answers

    def _check_enabled(self) -> Refused | None:
        if self._authorizer.is_enabled:
            return None
        message = "this broker has no authorizer: set authorizer.class.name=acl, and super.users, and restart it"
        return Refused(ErrorCode.SECURITY_DISABLED, message)
