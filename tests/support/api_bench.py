"""The handlers and APIs of a broker, with access control lists and an audit in force, over a runtime that does nothing.

Whatever an API asks of the runtime ends the call with `Reached`, or as the test says: so what is refused for want of a
right can be told from what is about to be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bus.broker_api.authorization import Access, Authorizer
from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.calls import CALLS
from bus.broker_api.requests import Caller
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.grpc_api.server.servicers import BusServicer, ClusterServicer
from bus.model import BrokerEndpoint
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.tasks import LoopShares
from bus.security.acl_index import index_of
from bus.security.acls import AclBinding
from bus.security.audit_trail import AuditEvent
from bus.settings.broker import BrokerConfig
from tests.support.cancelled_calls import QuietContext

ALICE = Caller("connection", "/127.0.0.1", "request", "User:alice")
FOR_ALL = BrokerConfig()
BY_ACLS = BrokerConfig(authorizer_class_name="acl")


def open_access(call: str, caller: Caller = ALICE) -> Access:
    """Return the access of a caller at a broker without an authorizer."""
    return Authorizer(lambda: EMPTY_CLUSTER, None, LoopShares()).access(caller, call)


class Reached(Exception):
    """An API has asked the runtime for something."""


class Runtime:
    """Any part of it. A test sets the parts that are to answer."""

    def __init__(self, path: str, on_call: Callable[[str], Any]) -> None:
        self._path = path
        self._on_call = on_call

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        part = Runtime(f"{self._path}.{name}", self._on_call)
        setattr(self, name, part)
        return part

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self._on_call(self._path)


def raise_reached(path: str) -> Any:
    raise Reached(path)


class KeptAudit:
    """An audit that keeps its events, in place of `AuditLog`."""

    is_enabled = True

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []  # of changes
        self.refused: list[str] = []  # the resources of changes of which nothing was done
        self.denials: list[AuditEvent] = []

    def add(self, event: AuditEvent, *, is_refused: bool = False) -> None:
        self.events.append(event)
        if is_refused:
            self.refused.append(event.resource)

    def add_denial(self, event: AuditEvent) -> None:
        self.denials.append(event)

    def add_grant(self, event: AuditEvent) -> None:
        """Grants are counted elsewhere."""

    def now_ms(self) -> int:
        return 1


class ApiBench:
    """`audit` None: without one. `super_users` may do everything."""

    def __init__(
        self,
        *acls: AclBinding,
        config: BrokerConfig = BY_ACLS,
        super_users: str = "",
        state: ClusterState = EMPTY_CLUSTER,
        audit: KeptAudit | None = None,
        on_call: Callable[[str], Any] = raise_reached,
    ) -> None:
        config = replace(config, super_users=super_users)
        self.cluster = Runtime("cluster", on_call)
        self.cluster.state = replace(state, acls=index_of(acls))
        self.cluster.config = config
        self.cluster.endpoint = BrokerEndpoint(0, "h", 1)
        self.cluster.storage.cluster_id, self.cluster.storage.root_url = "c", "memory://"
        self.cluster.storage.incarnation = "i"
        self.cluster.metadata.applied_offset = 0
        self.cluster.metadata.check_is_controller = lambda: None
        self.coordinator = Runtime("coordinator", on_call)
        self.transactions = Runtime("transactions", on_call)
        self.users = Runtime("users", on_call)
        self.users.on_change = lambda _: None
        unused: Any = Runtime("unused", on_call)
        clock: Any = Runtime("clock", on_call)
        clock.now_ms = lambda: 1
        kept: Any = audit or _NoAudit()
        self.api = BrokerApi(
            self.cluster,
            self.coordinator,
            self.transactions,
            self.users,
            kept,
            config,
            tokens={},
            clock=clock,
            calls=unused,
            stopping=Stopping(),
            shares=LoopShares(),
        )
        self.calls_of = BusServicer(self.api, unused, config, unused)
        self.cluster_calls_of = ClusterServicer(self.api, self.calls_of)

    def access(self, call: str, caller: Caller = ALICE) -> Access:
        return self.api.authorizer.access(caller, call)

    async def ask(self, method: str, request: Any, caller: Caller = ALICE) -> Any:
        """Alice's call, as its handler answers it."""
        handlers: Any = self.calls_of.handlers
        for part in CALLS[method].handler.split("."):
            handlers = getattr(handlers, part) if hasattr(handlers, part) else getattr(self.cluster_calls_of, part)
        return await handlers(self.access(method, caller), request)

    def answer(self, method: str, request: Any) -> Any:
        return asyncio.run(self.ask(method, request))

    async def call(self, method: str, request: Any, context: QuietContext | None = None) -> Any:
        """Call a method as gRPC does for an unauthenticated caller."""
        return await getattr(self.calls_of, method)(request, context or QuietContext())


class _NoAudit(KeptAudit):
    async def append_rows(self, _: bytes) -> None:
        raise Reached("the audit")

    is_enabled = False


def answering(answer: Callable[..., Any], asked: list[Any]) -> Callable[..., Any]:
    """Return a function that answers `answer` of its arguments, and notes the first of them."""

    async def answer_one(*what: Any, **more: Any) -> Any:
        asked.append(what[0] if what else more)
        return answer(*what, **more)

    return answer_one


def names_of(items: Iterable[Any]) -> list[str]:
    return [item.name for item in items]
