"""A broker that acts by access control lists, asked as gRPC asks it, by callers with principals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from bus.broker_api.requests import Caller, InvalidArgument
from bus.grpc_api.server.cluster import ClusterHandler
from bus.grpc_api.server.records.produce_decoding import begin_parse
from bus.grpc_api.server.servicers import forwarded_handlers
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.logs import principal
from bus.settings.broker import BrokerConfig
from tests.support.cancelled_calls import QuietBroker, ReadContext
from tests.support.memory_store import MemoryStore

ACLS = BrokerConfig(authorizer_class_name="acl", super_users="User:root")


def on_broker(do: Callable[[QuietBroker], Awaitable[None]], config: BrokerConfig = ACLS) -> None:
    """Run `do` on a broker with a topic `orders` and a topic `secret`."""

    async def live() -> None:
        broker = QuietBroker(MemoryStore(), config)
        await broker.start()
        try:
            principal.set("User:root")
            topics = [pb.NewTopic(name=name, partitions=1) for name in ("orders", "secret")]
            await broker.call("CreateTopics", pb.CreateTopicsRequest(topics=topics))
            await do(broker)
        finally:
            await broker.stop()

    asyncio.run(live())


async def ask(broker: QuietBroker, who: str, method: str, request: Any) -> Any:
    before = principal.set(f"User:{who}")
    try:
        return await broker.call(method, as_read(request))
    finally:
        principal.reset(before)


def acl(
    operation: int,
    name: str = "orders",
    *,
    who: str = "alice",
    of: int = pb.ACL_RESOURCE_TYPE_TOPIC,
    permission: int = pb.ACL_PERMISSION_ALLOW,
    pattern_type: int = pb.ACL_PATTERN_TYPE_LITERAL,
) -> pb.AclBinding:
    return pb.AclBinding(
        resource_type=of,
        resource_name=name,
        pattern_type=pattern_type,
        principal=f"User:{who}",
        host="*",
        operation=operation,
        permission=permission,
    )


async def add(broker: QuietBroker, *acls: pb.AclBinding) -> None:
    response = await ask(broker, "root", "CreateAcls", pb.CreateAclsRequest(acls=acls))
    assert [one.error_code for one in response.results] == [0] * len(acls), response


async def remove(broker: QuietBroker, one: pb.AclBinding) -> None:
    wanted = pb.AclBindingFilter(
        resource_type=one.resource_type,
        resource_name=one.resource_name,
        pattern_type=one.pattern_type,
        principal=one.principal,
        host=one.host,
        operation=one.operation,
        permission=one.permission,
    )
    response = await ask(broker, "root", "DeleteAcls", pb.DeleteAclsRequest(filters=[wanted]))
    assert [list(found.acls) for found in response.results] == [[one]], response


def produce(number: int, *topics: str) -> pb.ProduceRequest:
    partitions = [
        pb.PartitionProduceData(topic=topic, records=pb.RecordList(records=[pb.Record(value=b"%d" % number)]))
        for topic in topics
    ]
    return pb.ProduceRequest(correlation_id=number, partitions=partitions)


def as_read(request: Any) -> Any:
    """Return the request as the server reads it."""
    return begin_parse(request.SerializeToString()) if isinstance(request, pb.ProduceRequest) else request


def fetch(*topics: str) -> pb.FetchRequest:
    return pb.FetchRequest(
        partitions=[pb.FetchPartition(topic=topic) for topic in topics], format=pb.RECORD_FORMAT_RECORDS
    )


class Dialogue:
    """One stream of a caller's: each request is sent when the one before is answered."""

    def __init__(self, broker: QuietBroker, who: str, method: str) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._context = ReadContext()
        before = principal.set(f"User:{who}")
        call = getattr(broker.calls_of, method)
        self._running = asyncio.create_task(call(self._each(), self._context))
        principal.reset(before)

    async def _each(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def ask(self, request: Any) -> Any:
        count = len(self._context.answers)
        self._requests.put_nowait(as_read(request))
        while len(self._context.answers) == count:
            await asyncio.sleep(0.001)
            assert not self._running.done()
        return self._context.answers[count]

    async def end(self) -> None:
        self._requests.put_nowait(None)
        await self._running


def codes(items: Iterable[Any]) -> list[int]:
    return [item.error_code for item in items]


def test_acls_act_on_the_next_request_of_a_produce_stream_and_on_each_partition_by_itself() -> None:
    async def do(broker: QuietBroker) -> None:
        stream = Dialogue(broker, "alice", "Produce")
        assert codes((await stream.ask(produce(1, "orders"))).partitions) == [29]
        write = acl(pb.ACL_OPERATION_WRITE)
        await add(broker, write)
        (appended,) = (await stream.ask(produce(2, "orders"))).partitions
        assert (appended.error_code, appended.base_offset) == (0, 0)
        mixed = (await stream.ask(produce(3, "secret", "orders", "none"))).partitions
        assert codes(mixed) == [29, 0, 29]
        assert mixed[0].error_message == "User:alice may not Write topic secret"
        await remove(broker, write)
        assert codes((await stream.ask(produce(4, "orders"))).partitions) == [29]
        await stream.end()
        whole = await ask(broker, "root", "ListOffsets", latest("orders", "secret"))
        assert [one.offset for one in whole.partitions] == [2, 0]

    on_broker(do)


def latest(*topics: str) -> pb.ListOffsetsRequest:
    return pb.ListOffsetsRequest(partitions=[pb.ListOffsetsPartition(topic=topic, timestamp_ms=-1) for topic in topics])


def test_acls_act_on_the_next_request_of_a_fetch_stream() -> None:
    async def do(broker: QuietBroker) -> None:
        await ask(broker, "root", "ProduceOnce", produce(1, "orders", "secret"))
        stream = Dialogue(broker, "alice", "Fetch")
        read = acl(pb.ACL_OPERATION_READ)

        async def fetched() -> dict[str, tuple[int, int]]:
            answer = pb.FetchResponse.FromString(await stream.ask(fetch("orders", "secret")))
            return {one.topic: (one.error_code, len(one.records.records)) for one in answer.partitions}

        assert await fetched() == {"orders": (29, 0), "secret": (29, 0)}
        await add(broker, read)
        assert await fetched() == {"orders": (0, 1), "secret": (29, 0)}
        await add(broker, acl(pb.ACL_OPERATION_ALL, "or", permission=2, pattern_type=pb.ACL_PATTERN_TYPE_PREFIXED))
        assert await fetched() == {"orders": (29, 0), "secret": (29, 0)}
        await stream.end()

    on_broker(do)


@pytest.mark.parametrize("is_in_session", [False, True])
def test_what_comes_in_while_a_fetch_waits_is_not_given_to_who_may_not_read_it_any_more(is_in_session: bool) -> None:
    async def do(broker: QuietBroker) -> None:
        read = acl(pb.ACL_OPERATION_READ)
        await add(broker, read)
        stream, asked = Dialogue(broker, "alice", "Fetch"), fetch("orders")
        if is_in_session:
            asked.session = pb.FETCH_SESSION_BEGIN
        asked.min_bytes, asked.max_wait_ms = 1, 2**31 - 1
        waiting = asyncio.create_task(stream.ask(asked))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await remove(broker, read)
        await ask(broker, "root", "ProduceOnce", produce(1, "orders"))
        answer = pb.FetchResponse.FromString(await waiting)
        assert [(one.error_code, len(one.records.records)) for one in answer.partitions] == [(29, 0)]
        assert not answer.in_session
        await stream.end()

    on_broker(do)


def test_single_produce_and_fetch_requests_are_checked_too() -> None:
    async def do(broker: QuietBroker) -> None:
        await ask(broker, "root", "ProduceOnce", produce(1, "orders", "secret"))
        assert codes((await ask(broker, "alice", "ProduceOnce", produce(2, "orders", "secret"))).partitions) == [29, 29]
        await add(broker, acl(pb.ACL_OPERATION_READ), acl(pb.ACL_OPERATION_WRITE, "secret"))
        assert codes((await ask(broker, "alice", "ProduceOnce", produce(3, "orders", "secret"))).partitions) == [29, 0]
        answer = pb.FetchResponse.FromString(await ask(broker, "alice", "FetchOnce", fetch("orders", "secret")))
        fetched = {one.topic: (one.error_code, len(one.records.records)) for one in answer.partitions}
        assert fetched == {"orders": (0, 1), "secret": (29, 0)}
        whole = await ask(broker, "root", "ListOffsets", latest("orders", "secret"))
        assert [one.offset for one in whole.partitions] == [1, 2]

    on_broker(do)


def test_acls_act_on_the_next_request_of_a_group_session() -> None:
    async def do(broker: QuietBroker) -> None:
        stream = Dialogue(broker, "alice", "GroupSession")

        async def beat() -> int:
            heartbeat = pb.HeartbeatRequest(group_id="g", generation=1, member_id="m")
            answer = await stream.ask(pb.GroupSessionRequest(correlation_id=1, heartbeat=heartbeat))
            return int(answer.heartbeat.error_code)

        async def commit(*topics: str) -> list[int]:
            asked = pb.OffsetCommitRequest(
                group_id="g",
                generation=-1,
                partitions=[pb.OffsetCommitPartition(topic=topic, offset=1) for topic in topics],
            )
            answer = await stream.ask(pb.GroupSessionRequest(correlation_id=2, offset_commit=asked))
            assert [one.topic for one in answer.offset_commit.partitions] == list(topics)
            return codes(answer.offset_commit.partitions)

        await ask(broker, "root", "FindCoordinator", pb.FindCoordinatorRequest(key="g"))
        assert (await beat(), await commit("orders")) == (30, [30])
        group = acl(pb.ACL_OPERATION_READ, "g", of=pb.ACL_RESOURCE_TYPE_GROUP)
        await add(broker, group)
        assert await beat() not in (0, 30)  # there is no such member
        assert await commit("orders") == [29]
        await add(broker, acl(pb.ACL_OPERATION_READ))
        assert await commit("secret", "orders", "secret") == [29, 0, 29]
        await remove(broker, group)
        assert (await beat(), await commit("orders")) == (30, [30])
        await stream.end()

    on_broker(do)


def test_a_producer_in_transactions_needs_its_id_first() -> None:
    async def do(broker: QuietBroker) -> None:
        await add(broker, acl(pb.ACL_OPERATION_WRITE))
        request = produce(1, "orders")
        request.transactional_id = "loader"
        assert codes((await ask(broker, "alice", "ProduceOnce", request)).partitions) == [53]

    on_broker(do)


def test_a_call_that_another_broker_sends_on_is_that_of_its_first_caller() -> None:
    """The broker that sends it is a super user, as brokers are."""

    async def do(broker: QuietBroker) -> None:
        api = broker.api
        handler = ClusterHandler(api.cluster, api.authorizer, lambda listener: forwarded_handlers(api, listener))
        root = Caller("connection", "/10.0.0.9", "request", "User:root")

        async def create(name: str, **caller: Any) -> int:
            request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name)])
            envelope = pb.EnvelopeRequest(
                method="CreateTopics", request=request.SerializeToString(), client="/10.0.0.1", **caller
            )
            answer = await handler.envelope(api.authorizer.access(root, "Envelope"), envelope)
            return codes(pb.CreateTopicsResponse.FromString(answer.response).topics)[0]

        await add(broker, acl(pb.ACL_OPERATION_CREATE, "mine"))
        assert await create("mine", principal="User:bob") == 29
        assert await create("mine") == 29  # User:ANONYMOUS
        assert await create("mine", principal="User:alice") == 0
        assert await create("other", principal="User:alice") == 29
        with pytest.raises(InvalidArgument, match="expected a broker's own call, InitProducerId, found 'CreateTopics'"):
            await create("other", is_own=True)

    on_broker(do)


def test_what_brokers_ask_each_other_is_denied_to_clients() -> None:
    async def do(broker: QuietBroker) -> None:
        cluster = broker.cluster_calls_of
        principal.set("User:alice")
        context: Any = ReadContext()
        envelope = pb.EnvelopeRequest(method="Metadata", principal="User:root")
        assert (await cluster.Envelope(envelope, context)).error_code == 31
        assert (await cluster.BrokerHeartbeat(pb.BrokerHeartbeatRequest(), context)).error_code == 31
        step = pb.TransactionStepRequest(transactional_id="t", partitions=[pb.TransactionPartition(topic="orders")])
        assert codes((await cluster.DropTransaction(step, context)).partitions) == [31]
        principal.set("User:root")
        assert (await cluster.IdentifyBroker(pb.IdentifyBrokerRequest(), context)).error_code == 0

    on_broker(do)


def test_maintenance_of_a_log_is_refused_with_one_answer() -> None:
    async def do(broker: QuietBroker) -> None:
        request = pb.MaintainLogRequest(topic="orders", action=pb.MAINTENANCE_ACTION_CLEAN)
        (refused,) = await ask(broker, "alice", "MaintainLog", request)
        assert (refused.partition, refused.error_code) == (-1, 29)
        (done,) = await ask(broker, "root", "MaintainLog", request)
        assert (done.partition, done.error_code) == (0, 0)

    on_broker(do)


def test_views_are_those_of_topics_that_may_be_described() -> None:
    async def do(broker: QuietBroker) -> None:
        async def create(who: str, name: str, topic: str, *, replace: bool = False) -> int:
            view = pb.View(name=name, topic=topic, schema="a INT")
            request = pb.CreateViewRequest(view=view, has_usual_columns=True, replace=replace)
            return int((await ask(broker, who, "CreateView", request)).error_code)

        assert await create("root", "hidden", "secret") == 0
        await add(broker, acl(pb.ACL_OPERATION_ALTER_CONFIGS), acl(pb.ACL_OPERATION_DESCRIBE))
        assert await create("alice", "mine", "orders") == 0
        assert await create("alice", "other", "secret") == 29
        assert await create("alice", "hidden", "orders", replace=True) == 29  # it is of the topic secret
        listed = await ask(broker, "alice", "ListViews", pb.ListViewsRequest())
        assert [one.name for one in listed.views] == ["mine"]
        for name, code in (("hidden", 29), ("none", 29), ("mine", 0)):
            assert (await ask(broker, "alice", "DeleteView", pb.DeleteViewRequest(name=name))).error_code == code

    on_broker(do)


def test_a_refusal_about_a_view_does_not_tell_its_topic() -> None:
    async def do(broker: QuietBroker) -> None:
        hidden = pb.CreateViewRequest(view=pb.View(name="hidden", topic="secret", schema="a INT"))
        assert (await ask(broker, "root", "CreateView", hidden)).error_code == 0
        await add(broker, acl(pb.ACL_OPERATION_ALTER_CONFIGS))
        for name in ("hidden", "none"):
            refused = await ask(broker, "alice", "DeleteView", pb.DeleteViewRequest(name=name))
            assert refused.error_message == f"User:alice may not AlterConfigs topic of view {name}"
        none = await ask(broker, "alice", "DeleteView", pb.DeleteViewRequest(name="orders"))  # as her topic is named
        assert none.error_message == "expected a view, found none named 'orders'"
        hidden.view.topic, hidden.replace = "orders", True
        refused = await ask(broker, "alice", "CreateView", hidden)
        assert refused.error_message == "User:alice may not AlterConfigs topic of view hidden"
        hidden.view.topic = "other"
        refused = await ask(broker, "alice", "CreateView", hidden)
        assert refused.error_message == "User:alice may not AlterConfigs topic other"

    on_broker(do)


def test_acls_are_listed_and_removed_by_filters() -> None:
    async def do(broker: QuietBroker) -> None:
        acls = [acl(pb.ACL_OPERATION_READ), acl(pb.ACL_OPERATION_WRITE), acl(pb.ACL_OPERATION_READ, who="bob")]
        await add(broker, *acls)
        await add(broker, acls[0])  # it is there

        async def listed(wanted: pb.AclBindingFilter | None) -> list[pb.AclBinding]:
            return list((await ask(broker, "root", "DescribeAcls", pb.DescribeAclsRequest(filter=wanted))).acls)

        assert await listed(None) == acls
        assert await listed(pb.AclBindingFilter(principal="User:bob")) == acls[2:]
        assert await listed(pb.AclBindingFilter(resource_name="orders", pattern_type=3, operation=2)) == acls[::2]
        assert (await ask(broker, "alice", "DescribeAcls", pb.DescribeAclsRequest())).error_code == 31
        gone = await ask(
            broker, "root", "DeleteAcls", pb.DeleteAclsRequest(filters=[pb.AclBindingFilter(principal="User:alice")])
        )
        assert [list(one.acls) for one in gone.results] == [acls[:2]]
        assert await listed(None) == acls[2:]

    on_broker(do)


@pytest.mark.parametrize("method", ["CreateAcls", "DescribeAcls", "DeleteAcls"])
def test_acls_are_refused_where_nothing_would_act_by_them(method: str) -> None:
    async def do(broker: QuietBroker) -> None:
        answer = await broker.call(method, getattr(pb, f"{method}Request")())
        assert answer.error_code == 54
        assert "set authorizer.class.name=acl" in answer.error_message

    on_broker(do, BrokerConfig())


def test_a_binding_that_cannot_be_is_refused_by_itself() -> None:
    async def do(broker: QuietBroker) -> None:
        bad = acl(pb.ACL_OPERATION_CLUSTER_ACTION)
        request = pb.CreateAclsRequest(acls=[bad, acl(pb.ACL_OPERATION_READ)])
        answer = await ask(broker, "root", "CreateAcls", request)
        assert codes(answer.results) == [42, 0]
        with pytest.raises(AssertionError, match="expected AclPatternType of LITERAL, PREFIXED, found"):
            await ask(broker, "root", "CreateAcls", pb.CreateAclsRequest(acls=[acl(2, pattern_type=3)]))

    on_broker(do)
