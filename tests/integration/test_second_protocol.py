"""A protocol whose messages are values: what broker_api does for the adapter of any protocol, rights and audit too.

A call is a method of an API and its arguments, and its answer is what the method returns: nothing here knows gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from bus.broker_api.authorization import Access
from bus.broker_api.broker_api import BrokerApi
from bus.broker_api.client_quotas import CallerPace
from bus.broker_api.groups import GroupMember, PartitionOffset
from bus.broker_api.pipeline import Stage, assemble, auditing_end, before, within
from bus.broker_api.requests import Caller
from bus.cluster_metadata.cluster_decisions import CreateTopic
from bus.errors import Refused
from bus.model import TopicPartition
from bus.security.acls import AclBinding, AclOperation, AclResourceType
from bus.security.audit_trail import AuditEvent
from bus.settings.broker import BrokerConfig
from tests.support.acls import allow
from tests.support.cancelled_calls import QuietBroker
from tests.support.memory_store import MemoryStore

AnswerT = TypeVar("AnswerT")
Row = tuple[str, str, str, str]
BY_ACLS = BrokerConfig(authorizer_class_name="acl", super_users="User:root", audit_enable=True)


class InProcess:
    """The adapter. `wait`: for the turn of a caller."""

    def __init__(self, api: BrokerApi) -> None:
        self._api = api
        self.wait = self._wait

    async def _wait(self, caller: Caller) -> None:
        await CallerPace(self._api.quotas, caller).wait_or_refuse(None)

    async def call(
        self, who: str, name: str, method: Callable[..., Awaitable[AnswerT]], *what: Any, **more: Any
    ) -> AnswerT:
        """Make a call. `name`: of its row in CALLS."""
        access = self._api.authorizer.access(Caller("me", "/in-process", "request", f"User:{who}", "me"), name)

        def handle(access: Access) -> Awaitable[AnswerT]:
            return method(access, *what, **more)

        @contextlib.contextmanager
        def held(access: Access) -> Iterator[Sequence[Any]]:
            with self._api.control_memory.holding(access.caller.connection, 100):
                yield (access,)

        @contextlib.contextmanager
        def audited(access: Access) -> Iterator[Sequence[Any]]:
            with auditing_end(access, handle, repr):
                yield (access,)

        async def pace(access: Access) -> None:
            await self.wait(access.caller)

        stages = {Stage.PACE: before(pace), Stage.AUDIT: within(audited), Stage.HOLD_MEMORY: within(held)}
        return await assemble(stages, handle)(access)  # type: ignore[no-any-return]


def play(do: Callable[[InProcess, BrokerApi], Awaitable[None]]) -> list[Row]:
    """Return what the audit keeps of a broker with the topics `orders` and `secret` that `do` calls: who, by which
    call, of what, and the decision about a right, or why nothing was changed."""
    rows: list[Row] = []

    def keep(event: AuditEvent, *, is_refused: bool = False) -> None:
        rows.append((event.principal, event.call, event.resource, event.decision or event.error))

    async def live() -> None:
        broker = QuietBroker(MemoryStore(), BY_ACLS)
        await broker.start()
        try:
            api, adapter = broker.api, InProcess(broker.api)
            topics = [CreateTopic(name, 1, {}) for name in ("orders", "secret")]
            await adapter.call("root", "CreateTopics", api.metadata.create_topics, topics)
            audit: Any = api.audit
            audit.add = audit.add_denial = keep
            await do(adapter, api)
        finally:
            await broker.stop()

    asyncio.run(live())
    return rows


async def grant(adapter: InProcess, api: BrokerApi, *acls: AclBinding) -> None:
    assert await adapter.call("root", "CreateAcls", api.acls.create, list(acls)) == [None] * len(acls)


def texts(answers: Any) -> list[str]:
    return [answer.message if isinstance(answer, Refused) else "done" for answer in answers]


def test_topic_that_may_not_be_created_is_refused_in_its_place_and_both_are_audited() -> None:
    async def do(adapter: InProcess, api: BrokerApi) -> None:
        await grant(adapter, api, allow(AclOperation.CREATE, "mine"))
        commands = [CreateTopic(name, 1, {}) for name in ("other", "mine")]
        answers = await adapter.call("alice", "CreateTopics", api.metadata.create_topics, commands)
        assert texts(answers) == ["User:alice may not Create topic other", "done"]
        assert "other" not in api.authorizer._state().topics

    assert play(do) == [
        ("User:root", "CreateAcls", "ALLOW User:alice CREATE TOPIC LITERAL mine from *", ""),
        ("User:alice", "CreateTopics", "other", "DENIED"),
        ("User:alice", "CreateTopics", "mine", ""),
    ]


def test_offsets_are_committed_of_the_topics_that_the_caller_may_read() -> None:
    async def do(adapter: InProcess, api: BrokerApi) -> None:
        group = allow(AclOperation.READ, "g", AclResourceType.GROUP)
        await grant(adapter, api, group, allow(AclOperation.READ, "orders"))
        await adapter.call("alice", "FindCoordinator", api.groups.find_coordinator, "g")
        offsets = [PartitionOffset(TopicPartition(topic, 0), 0, -1, "") for topic in ("secret", "orders")]
        member = GroupMember("g", -1, "", None)
        answers = await adapter.call("alice", "OffsetCommit", api.groups.commit, member, offsets)
        assert [why and why.message for why in answers] == ["User:alice may not Read topic secret", None]
        answers = await adapter.call("bob", "OffsetCommit", api.groups.commit, member, offsets)
        assert [why and why.message for why in answers] == ["User:bob may not Read group g"] * 2

    assert play(do)[2:] == [
        ("User:alice", "OffsetCommit", "secret", "DENIED"),
        ("User:bob", "OffsetCommit", "g", "DENIED"),
    ]


def test_abort_of_a_transaction_is_for_those_who_may_alter_the_cluster() -> None:
    async def do(adapter: InProcess, api: BrokerApi) -> None:
        transactions = api.transactions
        await adapter.call("root", "FindCoordinator", transactions.find_coordinator, "t")
        identity = await adapter.call(
            "root", "InitProducerId", transactions.init_producer, "t", 60_000, producer_id=None, producer_epoch=0
        )
        assert not isinstance(identity, Refused), identity
        refused = await adapter.call("alice", "AbortTransaction", transactions.abort, "t", None)
        assert refused is not None
        assert refused.message == "User:alice may not Alter the cluster"
        await adapter.call("root", "AbortTransaction", transactions.abort, "t", None)

    denied, done = play(do)
    assert denied == ("User:alice", "AbortTransaction", "kafka-cluster", "DENIED")
    assert done[:3] == ("User:root", "AbortTransaction", "t")


def test_caller_that_goes_away_while_it_waits_for_its_turn_has_a_row_for_each_thing_and_nothing_is_done() -> None:
    async def do(adapter: InProcess, api: BrokerApi) -> None:
        async def wait(_: Caller) -> None:
            await asyncio.Event().wait()

        adapter.wait = wait  # type: ignore[method-assign]
        commands = [CreateTopic(name, 1, {}) for name in ("a", "b")]
        waiting = asyncio.ensure_future(adapter.call("root", "CreateTopics", api.metadata.create_topics, commands))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not {"a", "b"} & api.authorizer._state().topics.keys()

    error = "the call ended without an answer: it may be done"
    assert play(do) == [("User:root", "CreateTopics", name, error) for name in ("a", "b")]
