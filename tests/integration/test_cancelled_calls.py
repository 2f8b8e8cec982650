"""A caller goes away at each await of each call that changes something: memory and log agree, and the root starts."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.broker_api import calls
from bus.broker_api.requests import ANONYMOUS
from bus.cluster_metadata.broker_decisions import RegisterBroker, decide_register_broker
from bus.cluster_metadata.cluster_decisions import CreatePartitions, CreateTopic, DeleteTopic
from bus.cluster_metadata.cluster_records import replay_cluster
from bus.cluster_metadata.cluster_state import ClusterState
from bus.cluster_metadata.configs import is_internal_topic
from bus.errors import Refused, StorageFault
from bus.grpc_api.server.records.produce_decoding import parse_call
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint, TopicPartition
from bus.records.arrow_batches import encode_arrow
from bus.records.log_schema import LOG_SCHEMA
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.partition import Partition
from bus.settings.broker import BrokerConfig
from bus.storage_delta.root import DeltaStorage
from bus.storage_delta.stores.local import LocalStore
from tests.support.cancelled_calls import QuietBroker, cancel_at, run_on_broker
from tests.support.cluster_states import partitions_led_by
from tests.support.memory_store import MemoryStore
from tests.support.stores import led

Call = Callable[[QuietBroker, int], Coroutine[Any, Any, Any]]

CALLS: dict[str, Call] = {}
METHODS: dict[str, frozenset[str]] = {}  # of bus.proto, by the call that is to make them
UNIQUE = itertools.count()
IDENTITIES: WeakKeyDictionary[QuietBroker, dict[int, pb.InitProducerIdResponse]] = WeakKeyDictionary()

# Callers are asked what they may do, and may do everything.
AUTHORIZED = BrokerConfig(authorizer_class_name="acl", super_users=ANONYMOUS)


def call(*methods: str) -> Callable[[Call], Call]:
    """Register a call of a client, which makes calls of `methods`, among others."""

    def add(make: Call) -> Call:
        CALLS[make.__name__] = make
        METHODS[make.__name__] = frozenset(methods)
        return make

    return add


async def make_topic(broker: QuietBroker, name: str, partitions: int = 2) -> None:
    await broker.cluster.controller.create_topics([CreateTopic(name, partitions)])


async def produce(broker: QuietBroker, topic: str, who: tuple[int, int] | None = None) -> pb.PartitionProduceResponse:
    arrow = encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"v"] * 3)], names=["value"]))
    data = pb.PartitionProduceData(topic=topic, arrow=arrow)
    if who is not None:
        data.producer_id, data.producer_epoch, data.base_sequence = *who, 0
    request = pb.ProduceRequest(partitions=[data])
    return (await broker.call("ProduceOnce", parse_call(request.SerializeToString()))).partitions[0]


async def join(broker: QuietBroker, group: str) -> pb.JoinGroupResponse:
    request = pb.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        protocol_type="any",
        protocols=[pb.GroupProtocol(name="p", metadata=b"m")],
    )
    answer = await broker.call("JoinGroup", request)
    request.member_id = answer.member_id
    return await broker.call("JoinGroup", request)


@call("CreateTopics")
async def create_topics(broker: QuietBroker, n: int) -> None:
    topics = [
        pb.NewTopic(name=f"new{n}{letter}", partitions=2, configs={"retention.ms": "77"})  # both at once
        for letter in "ab"
    ]
    await broker.call("CreateTopics", pb.CreateTopicsRequest(topics=topics))


@call("Metadata")
async def ask_for_a_topic_that_is_created(broker: QuietBroker, n: int) -> None:
    await broker.call("Metadata", pb.MetadataRequest(topics=[f"asked{n}"], allow_auto_topic_creation=True))


@call("DeleteTopics")
async def delete_topics(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"gone{n}")
    await broker.call("DeleteTopics", pb.DeleteTopicsRequest(topics=[f"gone{n}"]))
    await make_topic(broker, f"gone{n}")


@call("CreatePartitions")
async def create_partitions(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"more{n}")
    request = pb.CreatePartitionsRequest(topics=[pb.NewPartitions(name=f"more{n}", partitions=4)])
    await broker.call("CreatePartitions", request)


@call("AlterConfigs")
async def alter_configs(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"set{n}")
    await broker.call(
        "AlterConfigs",
        pb.AlterConfigsRequest(
            resources=[
                pb.AlterConfigsResource(
                    resource=pb.ConfigResource(type=pb.RESOURCE_TYPE_TOPIC, name=f"set{n}"),
                    operations=[pb.AlterConfigOp(name="retention.ms", value="99")],
                )
            ]
        ),
    )


@call("InitProducerId")
async def init_unnamed_producer(broker: QuietBroker, n: int) -> None:
    await broker.call("InitProducerId", pb.InitProducerIdRequest())


@call("InitProducerId")
async def init_named_producer(broker: QuietBroker, n: int) -> None:
    await broker.call("InitProducerId", pb.InitProducerIdRequest(name=f"named{n}"))


@call("InitProducerId")
async def init_known_producer(broker: QuietBroker, n: int) -> None:
    await broker.call("InitProducerId", pb.InitProducerIdRequest(name="known"))


@call("CreateView", "DeleteView")
async def create_and_delete_view(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, "viewed")
    view = pb.View(name=f"view{n}", topic="viewed", schema="a INT")
    await broker.call("CreateView", pb.CreateViewRequest(view=view, has_usual_columns=True, replace=True))
    await broker.call("DeleteView", pb.DeleteViewRequest(name=f"view{n}"))
    await broker.call("CreateView", pb.CreateViewRequest(view=view, has_usual_columns=True, replace=True))


@call("AlterClientQuotas")
async def alter_quotas(broker: QuietBroker, n: int) -> None:
    part = pb.QuotaEntityPart(type="client-id", name=f"client{n}")
    for change in (pb.QuotaChange(name="request_rate", value=1000), pb.QuotaChange(name="request_rate", remove=True)):
        asked = pb.QuotaAlteration(entity=[part], changes=[change])
        await broker.call("AlterClientQuotas", pb.AlterClientQuotasRequest(entries=[asked]))


@call("UpdateFeatures", "AlterPartitionReassignments", "ElectLeaders", "UnregisterBroker")
async def change_the_cluster(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"led{n}")
    await broker.call("UpdateFeatures", pb.UpdateFeaturesRequest(feature="bus.version", level=3))
    command = RegisterBroker(BrokerEndpoint(7, "h", 1), f"life {n}")
    decide = functools.partial(decide_register_broker, command=command)
    await broker.cluster.metadata.change([decide])
    for replica_ids in ([0, 7], [0]):
        asked = pb.PartitionReassignment(topic=f"led{n}", partition=1, replica_ids=replica_ids)
        await broker.call("AlterPartitionReassignments", pb.AlterPartitionReassignmentsRequest(partitions=[asked]))
    await broker.call("ElectLeaders", pb.ElectLeadersRequest())
    await broker.call("UnregisterBroker", pb.UnregisterBrokerRequest(broker_id=7))


@call("ProduceOnce", "DeleteRecords")
async def produce_and_delete_records(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"log{n}")
    await produce(broker, f"log{n}")
    await produce(broker, f"log{n}")
    asked = pb.DeleteRecordsPartition(topic=f"log{n}", partition=0, offset=3)
    await broker.call("DeleteRecords", pb.DeleteRecordsRequest(partitions=[asked]))


@call("ResumeProducer")
async def resume_producer(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"resumed{n}")
    identity = await broker.call("InitProducerId", pb.InitProducerIdRequest())
    who = (identity.producer_id, identity.producer_epoch)
    await produce(broker, f"resumed{n}", who)
    asked = pb.ResumeProducerPartition(topic=f"resumed{n}")
    await broker.call(
        "ResumeProducer", pb.ResumeProducerRequest(producer_id=who[0], producer_epoch=who[1], partitions=[asked])
    )


@call("MaintainLog")
async def maintain_log(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"kept{n}")
    for _ in range(2):
        await produce(broker, f"kept{n}")
    request = pb.MaintainLogRequest(topic=f"kept{n}", partitions=[0], action=pb.MAINTENANCE_ACTION_ROLL)
    await broker.call("MaintainLog", request)


@call("JoinGroup", "SyncGroup", "OffsetCommit", "LeaveGroup")
async def live_in_a_group(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, "offsets")
    group_id = f"g{n}-{next(UNIQUE)}"  # of its own each time: a member that went away is waited for
    member = await join(broker, group_id)
    who = {"group_id": group_id, "generation": member.generation, "member_id": member.member_id}
    assigned = pb.MemberAssignment(member_id=member.member_id, assignment=b"all")
    await broker.call("SyncGroup", pb.SyncGroupRequest(**who, assignments=[assigned]))
    offsets = [pb.OffsetCommitPartition(topic="offsets", partition=0, offset=7)]
    await broker.call("OffsetCommit", pb.OffsetCommitRequest(**who, partitions=offsets))
    await broker.call(
        "LeaveGroup", pb.LeaveGroupRequest(group_id=group_id, members=[pb.LeavingMember(member_id=member.member_id)])
    )


@call("DeleteGroups")
async def delete_groups(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, "offsets")
    offsets = [pb.OffsetCommitPartition(topic="offsets", partition=0, offset=7)]
    await broker.call("OffsetCommit", pb.OffsetCommitRequest(group_id=f"d{n}", generation=-1, partitions=offsets))
    await broker.call("DeleteGroups", pb.DeleteGroupsRequest(group_ids=[f"d{n}"]))


@call("Produce")
async def produce_on_a_stream(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"stream{n}", 1)
    identities = IDENTITIES.setdefault(broker, {})
    if n not in identities:  # the same when the client comes again, so that nothing is appended twice
        identities[n] = await broker.call("InitProducerId", pb.InitProducerIdRequest())
    identity = identities[n]
    arrow = encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"v"] * 3)], names=["value"]))
    who = {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}
    batches = [
        pb.PartitionProduceData(topic=f"stream{n}", arrow=arrow, base_sequence=sequence, **who) for sequence in (0, 3)
    ]
    requests = [parse_call(pb.ProduceRequest(partitions=[data]).SerializeToString()) for data in batches]
    answers = await broker.stream("Produce", requests)
    assert [answer.partitions[0].base_offset for answer in answers] == [0, 3]


@call("SwapFiles")
async def swap_files(broker: QuietBroker, n: int) -> None:
    name = TopicPartition(f"swapped{n}", 0)
    await make_topic(broker, name.topic, 1)
    for _ in range(2):
        await produce(broker, name.topic)
    partition = broker.cluster.host.find(name)
    assert not isinstance(partition, Refused)
    while True:
        folder, files = f"topics/{name.topic}/0", partition._table.rewrites.files  # type: ignore[attr-defined]
        rows = pa.concat_tables([pq.read_table(pa.BufferReader(broker.store.get(f"{folder}/{f.path}"))) for f in files])
        sink = pa.BufferOutputStream()
        pq.write_table(rows.cast(LOG_SCHEMA), sink)
        new = f"{0:020d}-job{next(UNIQUE)}.parquet"
        broker.store.put(f"{folder}/{new}", sink.getvalue().to_pybytes())
        removes = [file.path for file in files]
        request = pb.SwapFilesRequest(topic=name.topic, kind=pb.SWAP_KIND_SAME_ROWS, removes=removes, adds=[new])
        answer = await broker.call("SwapFiles", request)
        if not answer.error_code:
            return
        # The swap of the call that went away has come in between: its files are live now.
        assert not {file.path for file in partition._table.rewrites.files}.issuperset(removes), answer.error_message


@call("GroupSession")
async def commit_on_a_group_session(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, "offsets")
    group_id = f"s{n}-{next(UNIQUE)}"
    member = await join(broker, group_id)
    who = {"group_id": group_id, "generation": member.generation, "member_id": member.member_id}
    assigned = pb.MemberAssignment(member_id=member.member_id, assignment=b"all")
    await broker.call("SyncGroup", pb.SyncGroupRequest(**who, assignments=[assigned]))
    commits = [
        pb.OffsetCommitRequest(
            **who, partitions=[pb.OffsetCommitPartition(topic="offsets", partition=0, offset=offset)]
        )
        for offset in (7, 8)
    ]
    requests = [
        pb.GroupSessionRequest(heartbeat=pb.HeartbeatRequest(**who)),
        *(pb.GroupSessionRequest(offset_commit=commit) for commit in commits),
    ]
    answers = await broker.stream("GroupSession", requests)
    assert len(answers) == 3


@call("OffsetDelete")
async def delete_offsets(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, "offsets")
    offsets = [pb.OffsetCommitPartition(topic="offsets", partition=p, offset=7) for p in (0, 1)]
    await broker.call("OffsetCommit", pb.OffsetCommitRequest(group_id=f"f{n}", generation=-1, partitions=offsets))
    topics = [pb.TopicPartitions(topic="offsets", partitions=[0])]
    await broker.call("OffsetDelete", pb.OffsetDeleteRequest(group_id=f"f{n}", topics=topics))


@call("CreateAcls", "DeleteAcls")
async def change_the_acls(broker: QuietBroker, n: int) -> None:
    names = [f"acl{n}", f"other{n}"]
    acls = [
        pb.AclBinding(
            resource_type=pb.ACL_RESOURCE_TYPE_TOPIC,
            resource_name=name,
            pattern_type=pb.ACL_PATTERN_TYPE_LITERAL,
            principal="User:alice",
            host="*",
            operation=pb.ACL_OPERATION_READ,
            permission=pb.ACL_PERMISSION_ALLOW,
        )
        for name in names
    ]
    created = await broker.call("CreateAcls", pb.CreateAclsRequest(acls=acls))
    assert [one.error_code for one in created.results] == [0, 0], created
    filters = [pb.AclBindingFilter(resource_name=names[1])]
    assert not (await broker.call("DeleteAcls", pb.DeleteAclsRequest(filters=filters))).error_code


@call("AlterUserScramCredentials")
async def create_a_user(broker: QuietBroker, n: int) -> None:
    upsertion = pb.ScramUpsertion(
        user=f"user{n}", mechanism="SCRAM-SHA-256", iterations=4096, salt=b"12345678", salted_password=b"p" * 32
    )
    request = pb.AlterUserScramCredentialsRequest(upsertions=[upsertion])
    assert not (await broker.call("AlterUserScramCredentials", request)).users[0].error_code


async def init_transactions(broker: QuietBroker, name: str) -> dict[str, Any]:
    await make_topic(broker, "offsets")
    asked = pb.FindCoordinatorRequest(key=name, key_type=pb.COORDINATOR_TYPE_TRANSACTION)
    await broker.call("FindCoordinator", asked)
    request = pb.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    identity = await broker.call("InitProducerId", request)
    assert not identity.error_code, identity
    return {
        "transactional_id": name,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
    }


async def stage(broker: QuietBroker, topic: str, who: dict[str, Any]) -> None:
    arrow = encode_arrow(pa.RecordBatch.from_arrays([pa.array([b"v"] * 3)], names=["value"]))
    stamp = {key: who[key] for key in ("producer_id", "producer_epoch")}
    data = pb.PartitionProduceData(topic=topic, arrow=arrow, base_sequence=0, **stamp)
    request = pb.ProduceRequest(transactional_id=who["transactional_id"], partitions=[data])
    answer = await broker.call("ProduceOnce", parse_call(request.SerializeToString()))
    assert not answer.partitions[0].error_code, answer


@call("InitProducerId", "ProduceOnce", "TxnOffsetCommit", "EndTxn")
async def commit_a_transaction(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"staged{n}", 1)
    who = await init_transactions(broker, f"commits{n}")
    await stage(broker, f"staged{n}", who)
    offsets = [pb.OffsetCommitPartition(topic="offsets", partition=0, offset=7)]
    request = pb.TxnOffsetCommitRequest(**who, group_id=f"t{n}", generation=-1, partitions=offsets)
    assert not (await broker.call("TxnOffsetCommit", request)).partitions[0].error_code
    assert not (await broker.call("EndTxn", pb.EndTxnRequest(**who, is_commit=True))).error_code


@call("AbortTransaction", "FenceProducers")
async def abort_a_transaction_of_another(broker: QuietBroker, n: int) -> None:
    await make_topic(broker, f"dropped{n}", 1)
    who = await init_transactions(broker, f"aborts{n}")
    await stage(broker, f"dropped{n}", who)
    request = pb.AbortTransactionRequest(transactional_id=f"aborts{n}")
    assert not (await broker.call("AbortTransaction", request)).error_code
    await stage(broker, f"dropped{n}", {**who, "producer_epoch": who["producer_epoch"] + 1})
    fenced = await broker.call("FenceProducers", pb.FenceProducersRequest(transactional_ids=[f"aborts{n}"]))
    assert not fenced.producers[0].error_code


# ---------------------------------------------------------------------- what must hold


def told_by_the_log(storage: DeltaStorage) -> ClusterState:
    return replay_cluster(led(storage.open_metadata()).replay())


def facts(state: ClusterState) -> dict[str, Any]:
    """Return what a restart must not change."""
    return {
        "topics": {name: (t.topic_id, len(t.partitions), dict(t.configs)) for name, t in state.topics.items()},
        "deleted": dict(state.deleted_topics),
        "views": dict(state.views),
        "acls": list(state.acls),
        "brokers": sorted(state.brokers),
        "replicas": {name: topic.assignments for name, topic in state.topics.items()},
        "names": {name: named.identity for name, named in state.producers.by_name.items()},
        "next": state.producers.next_producer_id,
    }


def groups_of(broker: QuietBroker) -> dict[str, Any]:
    return {
        group_id: {partition: stored.offset for partition, stored in group.offsets.items()}
        for shard in broker.coordinator._serving()
        for group_id, group in shard.states.items()
        if group.offsets
    }


def partitions_of(broker: QuietBroker) -> dict[TopicPartition, Partition]:
    names = partitions_led_by(broker.cluster.state, 0)
    found = {name: broker.cluster.host.find(name) for name in names if not is_internal_topic(name.topic)}
    return {name: partition for name, partition in found.items() if not isinstance(partition, Refused)}


def ends_of(partitions: dict[TopicPartition, Partition]) -> dict[TopicPartition, tuple[int, int]]:
    return {name: (found.state.log_start, found.state.high_watermark) for name, found in partitions.items()}


async def check(broker: QuietBroker) -> None:
    """Memory is what the log replays to, and every partition that it knows is served."""
    await broker.cluster.end_changes()
    assert told_by_the_log(broker.storage) == broker.cluster.state
    for name in partitions_led_by(broker.cluster.state, 0):
        assert broker.cluster.host.find_error(name) is None


async def check_after_restart(
    store: Any, before: dict[str, Any], groups: dict[str, Any], ends: dict[TopicPartition, tuple[int, int]]
) -> None:
    again = QuietBroker(store, AUTHORIZED)
    await again.start()
    try:
        assert facts(again.cluster.state) == before
        assert ends_of(partitions_of(again)) == ends
        loading = [shard._loading for shard in again.coordinator._serving() if shard._loading is not None]
        if loading:
            await asyncio.wait(loading)
        assert groups_of(again) == groups
        assert all(again.cluster.host.find_error(name) is None for name in partitions_led_by(again.cluster.state, 0))
    finally:
        await again.stop()


@pytest.mark.parametrize("is_late", [False, True], ids=["while it waits", "when the answer is there"])
@pytest.mark.parametrize("name", CALLS)
def test_caller_that_goes_away_at_any_await_leaves_memory_as_the_log_says(name: str, is_late: bool) -> None:
    store = MemoryStore()

    async def live() -> None:
        broker = QuietBroker(store, AUTHORIZED)
        await broker.start()
        await CALLS[name](broker, -1)  # what only a first call waits for is there: each later one has the same awaits
        for number in itertools.count():
            was_cancelled = await cancel_at(CALLS[name](broker, number), number, is_late=is_late)
            await CALLS[name](broker, number)  # the client comes again, at once
            if not was_cancelled:
                break
        assert number > 0 or name == "init_unnamed_producer"  # which has its ids at hand
        assert METHODS[name] <= broker.called
        await check(broker)
        before, partitions = facts(broker.cluster.state), partitions_of(broker)
        await broker.stop()
        await check_after_restart(store, before, groups_of(broker), ends_of(partitions))

    asyncio.run(live())


def test_every_call_that_changes_something_is_cancelled() -> None:
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["Bus"].methods}
    cancelled = frozenset().union(*METHODS.values()) | {"FindCoordinator"}  # which has a test of its own, below
    reading = {name for name in methods if calls.CALLS[name].is_reading}
    assert cancelled | reading == methods, "the row of a call that changes nothing says so, any other gets a @call"
    assert not cancelled & reading


@pytest.mark.parametrize("is_late", [False, True], ids=["while it waits", "when the answer is there"])
def test_caller_that_goes_away_while_the_topic_of_groups_is_created_leaves_it_whole(is_late: bool) -> None:
    async def live(number: int) -> bool:
        store = MemoryStore()
        broker = QuietBroker(store)
        await broker.start()
        asked = pb.FindCoordinatorRequest(key="g")
        was_cancelled = await cancel_at(broker.call("FindCoordinator", asked), number, is_late=is_late)
        assert not (await broker.call("FindCoordinator", asked)).error_code
        await check(broker)
        before = facts(broker.cluster.state)
        await broker.stop()
        await check_after_restart(store, before, {}, {})
        return was_cancelled

    number = 0
    while asyncio.run(live(number)):
        number += 1
    assert number > 0


def test_thread_of_a_cancelled_creation_does_not_run_beside_that_of_its_retry(tmp_path: Path) -> None:
    async def do(broker: QuietBroker) -> None:
        gate, begun, running = threading.Event(), asyncio.Event(), []
        tell = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, begun.set)
        create = broker.storage.create_partition

        def slow(partition: TopicPartition, *, topic_id: str, **options: Any) -> Any:
            running.append(partition)
            assert running.count(partition) == 1, "two threads create one table"
            tell()
            gate.wait(10)
            try:
                return create(partition, topic_id=topic_id, **options)
            finally:
                running.remove(partition)

        broker.storage.create_partition = slow  # type: ignore[method-assign]
        first = asyncio.create_task(broker.cluster.controller.create_topics([CreateTopic("t", 3)]))
        await begun.wait()
        first.cancel()
        retry = asyncio.create_task(broker.cluster.controller.create_topics([CreateTopic("t", 3)]))
        await asyncio.sleep(0)
        gate.set()
        (answer,) = await retry
        assert isinstance(answer, Refused)
        assert answer.code.name == "TOPIC_ALREADY_EXISTS"
        await check(broker)

    run_on_broker(LocalStore(str(tmp_path)), do)


def test_tables_whose_creation_goes_on_when_another_failed_are_waited_for() -> None:
    async def do(broker: QuietBroker) -> None:
        gate, created = threading.Event(), []
        create = broker.storage.create_partition

        def fail_first(partition: TopicPartition, *, topic_id: str, **options: Any) -> Any:
            if partition.partition == 0:
                raise StorageFault("no room")
            gate.wait(10)
            created.append(partition.partition)
            return create(partition, topic_id=topic_id, **options)

        broker.storage.create_partition = fail_first  # type: ignore[method-assign]
        creation = asyncio.create_task(broker.cluster.controller.create_topics([CreateTopic("t", 3)]))
        done, _ = await asyncio.wait([creation], timeout=0.05)
        assert not done, "answered while its threads were still creating tables"
        gate.set()
        (answer,) = await creation
        assert isinstance(answer, Refused)
        assert "no room" in answer.message
        assert sorted(created) == [1, 2]

    run_on_broker(MemoryStore(), do)


def test_other_changes_go_on_while_the_files_of_a_deleted_topic_are_removed() -> None:
    async def do(broker: QuietBroker) -> None:
        await make_topic(broker, "t")
        gate = threading.Event()
        delete = broker.storage.delete_topic

        def slow(topic: str, *, topic_id: str) -> None:
            gate.wait(10)
            delete(topic, topic_id=topic_id)

        broker.storage.delete_topic = slow  # type: ignore[method-assign]
        await broker.cluster.controller.delete_topics([DeleteTopic("t")])
        same_name = asyncio.create_task(broker.cluster.controller.create_topics([CreateTopic("t", 1)]))
        await asyncio.sleep(0)
        (other,) = await asyncio.wait_for(broker.cluster.controller.create_topics([CreateTopic("u", 1)]), 10)
        assert not isinstance(other, Refused)
        assert not isinstance(await asyncio.wait_for(broker.cluster.producers.init("p"), 10), Refused)
        (unknown,) = await asyncio.wait_for(broker.cluster.controller.delete_topics([DeleteTopic("t")]), 10)
        assert isinstance(unknown, Refused)
        assert not same_name.done()
        gate.set()
        (created,) = await same_name
        assert not isinstance(created, Refused)
        await check(broker)

    run_on_broker(MemoryStore(), do)


def test_stop_waits_for_what_a_cancelled_call_has_begun() -> None:
    store = MemoryStore()

    async def live() -> None:
        broker = QuietBroker(store)
        await broker.start()
        creation = asyncio.create_task(broker.cluster.controller.create_topics([CreateTopic("t", 3)]))
        await asyncio.sleep(0)
        creation.cancel()
        await broker.stop()
        again = QuietBroker(store)
        await again.start()
        assert [*again.cluster.state.topics] == ["t"]
        await again.stop()

    asyncio.run(live())


def test_failure_between_commit_and_memory_is_settled_by_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    control = BlockingCalls.control

    async def do(broker: QuietBroker) -> None:
        def fail_behind(calls: BlockingCalls, do: Callable[[], Any]) -> asyncio.Future[Any]:
            def done_and_lost() -> Any:
                do()
                raise RuntimeError("lost on the way back")

            monkeypatch.setattr(BlockingCalls, "control", control)
            return control(calls, done_and_lost)

        changes = [
            functools.partial(broker.cluster.producers.init, "p"),
            functools.partial(broker.cluster.controller.create_topics, [CreateTopic("t", 2)]),
            functools.partial(broker.cluster.controller.create_partitions, [CreatePartitions("t", 3)]),
            functools.partial(broker.cluster.controller.delete_topics, [DeleteTopic("t")]),
        ]
        await broker.cluster.producers.init("another")  # so that the pool has ids
        for change in changes:
            monkeypatch.setattr(BlockingCalls, "control", fail_behind)
            with pytest.raises(RuntimeError, match="lost on the way back"):
                await change()
            await change()
        await check(broker)

    run_on_broker(MemoryStore(), do)
