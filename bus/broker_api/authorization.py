"""Whether the callers of this broker may do what they ask for, by the ACLs of the cluster.

Guards two promises: an ACL that this broker has applied acts on the next request of every stream; and a request that is
allowed again costs one look-up for each resource that it names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from bus.broker_api.access_log import AccessDecided, AccessLog
from bus.broker_api.calls import Need
from bus.broker_api.requests import ANONYMOUS, Caller
from bus.client_texts import shown
from bus.cluster_metadata.cluster_state import ClusterState
from bus.errors import ErrorCode, Refused
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShares
from bus.security.acl_decisions import (
    AclPolicy,
    Decision,
    Requester,
    allowed_operations,
    decide_access,
    decide_access_to_any,
)
from bus.security.acl_index import AclIndex
from bus.security.acls import (
    CLUSTER,
    CLUSTER_NAME,
    OPERATIONS,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclResource,
    AclResourceType,
)
from bus.settings.listeners import Listener

_KNOWN_MAX = 10_000  # names that one stream keeps for each need
_KNOWN_LENGTH_MAX = 1_024  # of such a name: a caller may ask for any, a prefix allows longer ones than there can be
_NONE: Mapping[str, Refused] = {}


class Authorizer:
    """`policy` None: everyone may do everything, and nothing is asked or reported."""

    def __init__(
        self,
        state: Callable[[], ClusterState],
        policy: AclPolicy | None,
        shares: LoopShares,
        log: AccessLog | None = None,
    ) -> None:
        self._state = state
        self._policy = policy
        self.shares = shares
        self.log = log or AccessLog()

    @property
    def is_enabled(self) -> bool:
        return self._policy is not None

    @property
    def policy(self) -> AclPolicy:
        assert self._policy is not None, "expected an authorizer, found none"
        return self._policy

    @property
    def index(self) -> AclIndex:
        """Another object after each change of the ACLs."""
        return self._state().acls

    def access(self, caller: Caller, call: str) -> Access | None:
        """For the requests of one call, or of one stream; None if nothing is asked."""
        return None if self._policy is None else Access(self, caller, call)

    def has_topic(self, name: str) -> bool:
        return name in self._state().topics

    def topic_of_view(self, name: str) -> str | None:
        view = self._state().views.get(name.casefold())
        return None if view is None else view.topic

    def allowed_operations(self, caller: Caller, resource_type: AclResourceType, name: str) -> Sequence[AclOperation]:
        """Of those that there are on a resource of the type; all of them if nothing is asked (KIP-430)."""
        if self._policy is None:
            return OPERATIONS[resource_type]
        return allowed_operations(self.index, requester_of(caller), AclResource(resource_type, name), self._policy)


def requester_of(caller: Caller) -> Requester:
    return Requester(caller.principal, caller.host.removeprefix("/"))


class Access:
    """What one caller may do. Remembers what was allowed, for as long as the ACLs are the same."""

    def __init__(self, authorizer: Authorizer, caller: Caller, call: str) -> None:
        self._authorizer = authorizer
        self._caller = caller
        self._requester = requester_of(caller)
        self._call = call
        self._index: AclIndex | None = None
        self._allowed: dict[Need, set[str]] = {}

    @property
    def is_current(self) -> bool:
        """Whether the ACLs are those by which it has decided last."""
        return self._authorizer.index is self._index

    async def refusals(self, need: Need, names: Sequence[str]) -> Mapping[str, Refused]:
        """Of these names, which are those of resources, the ones on which the caller is not allowed what it needs."""
        if self._authorizer.index is self._index and not self._authorizer.log.has_grants:
            allowed = self._allowed.get(need)
            if allowed is not None and allowed.issuperset(names):
                return _NONE
        return await self._decide_all(need, names, is_filter=False)

    async def refusal(self, need: Need, name: str = CLUSTER_NAME) -> Refused | None:
        return (await self.refusals(need, (name,))).get(name)

    async def visible(self, need: Need, names: Iterable[str]) -> frozenset[str]:
        """Of these names those on which it is."""
        distinct = frozenset(names)
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
                authorizer.log.report(
                    AccessDecided(
                        self._requester, need.operation, resource, self._call, count, decision, is_filter, self._caller
                    )
                )
        return refused

    def _decide(self, index: AclIndex, need: Need, name: str) -> Decision:
        requester, policy = self._requester, self._authorizer.policy
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


# The access control lists for administrators: to add, to list and to remove bindings.


class AclApi:
    """Each call is refused with SECURITY_DISABLED where no authorizer would act by the lists, as in Kafka."""

    def __init__(self, cluster: Cluster, authorizer: Authorizer, shares: LoopShares) -> None:
        self._cluster = cluster
        self._authorizer = authorizer
        self._shares = shares

    async def create(self, acls: Sequence[AclBinding]) -> list[Refused | None] | Refused:
        """Create the bindings. Return for each of them None once every broker that is not fenced acts by it, or why it
        was refused."""
        return self._check_enabled() or await self._cluster.controller.create_acls(acls)

    async def describe(self, wanted: AclBindingFilter) -> list[AclBinding] | Refused:
        refused = self._check_enabled()
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

    async def delete(self, filters: Sequence[AclBindingFilter]) -> list[list[AclBinding]] | Refused:
        """Delete what the filters match. Return the bindings of each filter once only fenced brokers act by them."""
        return self._check_enabled() or await self._cluster.controller.delete_acls(filters)

    def _check_enabled(self) -> Refused | None:
        if self._authorizer.is_enabled:
            return None
        message = "this broker has no authorizer: set authorizer.class.name=acl, and super.users, and restart it"
        return Refused(ErrorCode.SECURITY_DISABLED, message)
