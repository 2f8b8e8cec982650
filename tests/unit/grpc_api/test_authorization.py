"""Authorization of calls: each call of the contract has a rule, and a refusal has its place in each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from bus.broker_api.calls import CALLS
from bus.broker_api.requests import Caller, InvalidArgument
from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, apply
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.consumer_groups import requests as groups
from bus.descriptions import GroupListing
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.service_door import BUS, CLUSTER, REFLECTION
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.runtime.metadata.controller import AutoCreation, TopicResult
from bus.runtime.tasks import answered
from bus.security.acls import (
    AclBinding,
    AclOperation,
    AclResourceType,
)
from bus.settings.broker import BrokerConfig
from bus.transactions import requests as transactions
from bus.transactions.state import Transaction, TransactionPartition, TransactionState
from tests.support.acls import allow
from tests.support.api_bench import BY_ACLS, FOR_ALL, ApiBench, Reached, answering, names_of
from tests.support.proofs import proved

METHODS = {method.name: method for service in (BUS, CLUSTER, REFLECTION) for method in service.methods}
OF_EVERYBODY = {"ApiVersions", "SaslAuthenticate"}
# Their handlers have several requests, or those of a stream.
CHECK_THEMSELVES = {
    *(name for name, method in METHODS.items() if method.client_streaming),
    "ProduceOnce",
    "FetchOnce",
    *OF_EVERYBODY,
}
CODES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
ALICE = Caller("connection", "/127.0.0.1", "request", "User:alice")


def filled(message: Any, depth: int = 0) -> Any:
    """Fill every field of the message: one item, one name."""
    for field in message.DESCRIPTOR.fields:
        is_repeated = field.is_repeated
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            if depth < 4:
                part = getattr(message, field.name)
                filled(part.add() if is_repeated else part, depth + 1)
                if not is_repeated:
                    part.SetInParent()
            continue
        value: Any = {FieldDescriptor.CPPTYPE_STRING: "x", FieldDescriptor.CPPTYPE_BOOL: False}.get(field.cpp_type, 0)
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_BYTES:
            value = b""
        if is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def codes_in(message: Any) -> set[int]:
    found = set()
    for field, value in message.ListFields():
        values = list(value) if hasattr(value, "__len__") and not isinstance(value, (str, bytes)) else [value]
        if field.name == "error_code":
            found.add(value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            found |= {code for part in values for code in codes_in(part)}
    return found


def test_each_call_of_the_contract_has_a_rule_and_no_other_has() -> None:
    assert CALLS.keys() == METHODS.keys(), "each call has a row in CALLS, broker_api/calls.py"


def test_each_rule_asks_for_something() -> None:
    for name, row in CALLS.items():
        assert row.needs or row.item_needs or row.view_needs or name in OF_EVERYBODY, name


CHECKED_IN_API = METHODS.keys() - CHECK_THEMSELVES - {"MaintainLog"}  # which has several answers
OF_LISTS = {"ListGroups", "ListTransactions", "ListViews"}


def outcome(bench: ApiBench, method: str) -> Any:
    """The answer to a request with something in every field; None: the runtime was asked to do it, or would be if what
    the request says were no nonsense."""
    try:
        return bench.answer(method, filled(METHODS[method].input_type._concrete_class()))
    except (Reached, InvalidArgument):
        return None


@pytest.mark.parametrize("method", sorted(CHECKED_IN_API - OF_LISTS))
def test_who_is_allowed_nothing_has_the_runtime_asked_for_nothing_and_is_refused(method: str) -> None:
    found = outcome(ApiBench(), method)
    assert found is not None, method
    assert codes_in(found) & CODES, method


@pytest.mark.parametrize("method", sorted(CHECKED_IN_API))
def test_a_super_user_is_refused_nothing(method: str) -> None:
    found = outcome(ApiBench(super_users="User:alice", state=with_topics("x")), method)
    assert found is None or not codes_in(found) & CODES, method


def test_items_that_are_refused_are_in_their_places_and_cost_no_other() -> None:
    bench, asked = ApiBench(allow(AclOperation.DELETE, "mine")), list[Any]()
    bench.cluster.controller.delete_topics = answering(lambda topics: [TopicResult("t", "1", 1)] * len(topics), asked)
    found = bench.answer("DeleteTopics", pb.DeleteTopicsRequest(topics=["a", "mine", "b", "mine"]))
    assert [names_of(one) for one in asked] == [["mine", "mine"]]
    assert [(one.name, one.topic_id, one.error_code) for one in found.topics] == [
        ("a", "", 29),
        ("mine", "1", 0),
        ("b", "", 29),
        ("mine", "1", 0),
    ]
    assert found.topics[0].error_message == "User:alice may not Delete topic a"


def test_topics_of_several_partitions_are_refused_partition_by_partition() -> None:
    request = pb.DescribeProducersRequest(
        topics=[
            pb.TopicPartitions(topic="a", partitions=[0, 1]),
            pb.TopicPartitions(topic="mine", partitions=[2, 3]),
            pb.TopicPartitions(topic="b", partitions=[4]),
        ]
    )
    bench, asked = ApiBench(allow(AclOperation.READ, "mine")), list[Any]()
    bench.cluster.prove_leadership = proved

    def find(name: TopicPartition) -> Refused:
        asked.append(str(name))
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")

    bench.cluster.host.find = find
    found = bench.answer("DescribeProducers", request)
    places = [(one.topic, one.partition, one.error_code) for one in found.partitions]
    assert places == [("a", 0, 29), ("a", 1, 29), ("mine", 2, 6), ("mine", 3, 6), ("b", 4, 29)]
    assert asked == ["mine-2", "mine-3"]


def test_a_transaction_shows_the_topics_and_groups_that_may_be_described() -> None:
    described = transactions.DescribedTransaction(
        "t", "Ongoing", 1, 1, 0, 1, 1, 1, None, (part("a", 0), part("mine", 0), part("mine", 1)), ("g", "mine")
    )
    acls = [
        allow(AclOperation.DESCRIBE, "t", AclResourceType.TRANSACTIONAL_ID),
        allow(AclOperation.READ, "mine"),
        allow(AclOperation.READ, "mine", AclResourceType.GROUP),
    ]
    bench = ApiBench(*acls)
    bench.cluster.prove_leadership = proved
    bench.transactions.coordinator.partition_of = lambda _: 0
    bench.transactions.coordinator.submit = lambda _: answered(described)
    found = bench.answer("DescribeTransactions", pb.DescribeTransactionsRequest(transactional_ids=["other", "t"]))
    other, one = found.transactions
    assert (other.transactional_id, other.error_code) == ("other", 53)
    assert [(topic.topic, list(topic.partitions)) for topic in one.topics] == [("mine", [0, 1])]
    assert list(one.group_ids) == ["mine"]


def part(topic: str, partition: int) -> TransactionPartition:
    return TransactionPartition(topic, "id", partition)


def offset_delete(answer: Any) -> tuple[Any, list[Any]]:
    """The answer where the topic `a` is denied, and what the coordinator was asked; it gives `answer`."""
    request = pb.OffsetDeleteRequest(
        group_id="g", topics=[pb.TopicPartitions(topic=one, partitions=[0]) for one in ("a", "mine")]
    )
    group, asked = allow(AclOperation.DELETE, "g", AclResourceType.GROUP), list[Any]()
    bench = ApiBench(group, allow(AclOperation.READ, "mine"))
    bench.coordinator.call = answering(lambda _: answer, asked)
    return bench.answer("OffsetDelete", request), asked


def test_an_answer_that_is_an_error_as_a_whole_stays_what_it_is() -> None:
    found, _ = offset_delete(Refused(ErrorCode.NOT_COORDINATOR, "elsewhere"))
    assert found == pb.OffsetDeleteResponse(error_code=pb.ERROR_CODE_NOT_COORDINATOR, error_message="elsewhere")


def test_offsets_are_deleted_of_topics_that_may_be_read() -> None:
    found, asked = offset_delete(groups.OffsetsDeleted((None,)))
    assert [(one.topic, one.partition, one.error_code) for one in found.partitions] == [("a", 0, 29), ("mine", 0, 0)]
    assert asked == [groups.OffsetDelete("g", (TopicPartition("mine", 0),))]


def test_the_first_need_that_is_not_met_is_the_one_that_is_told() -> None:
    request = pb.TxnOffsetCommitRequest(
        transactional_id="t", group_id="g", partitions=[pb.OffsetCommitPartition(topic="a", partition=0)]
    )
    acls = (
        allow(AclOperation.WRITE, "t", AclResourceType.TRANSACTIONAL_ID),
        allow(AclOperation.READ, "g", AclResourceType.GROUP),
        allow(AclOperation.READ, "a"),
    )
    for count, code in enumerate((53, 30, 29)):
        found = ApiBench(*acls[:count], state=with_topics("a")).answer("TxnOffsetCommit", request)
        assert [(one.topic, one.partition, one.error_code) for one in found.partitions] == [("a", 0, code)]
    with pytest.raises(Reached, match="commit_in_transaction"):
        ApiBench(*acls, state=with_topics("a")).answer("TxnOffsetCommit", request)


def test_offsets_are_committed_of_topics_that_may_be_read() -> None:
    request = pb.OffsetCommitRequest(
        group_id="g", partitions=[pb.OffsetCommitPartition(topic=one, offset=1) for one in ("secret", "a", "none")]
    )
    group = allow(AclOperation.READ, "g", AclResourceType.GROUP)
    bench, asked = ApiBench(group, allow(AclOperation.READ, "a"), state=with_topics("a", "secret")), list[Any]()
    bench.coordinator.begin = answering(lambda _: answered(groups.OffsetsCommitted((None,))), asked)
    found = bench.answer("OffsetCommit", request)
    assert [(one.topic, one.error_code) for one in found.partitions] == [("secret", 29), ("a", 0), ("none", 29)]
    assert [[one.partition.topic for one in command.offsets] for command in asked] == [["a"]]
    found = ApiBench(allow(AclOperation.READ, "a")).answer("OffsetCommit", request)
    assert [one.error_code for one in found.partitions] == [30, 30, 30]


def test_what_a_member_sends_is_not_decoded_for_one_that_has_no_right_to_the_group() -> None:
    request = pb.JoinGroupRequest(
        group_id="g", member_id="m", protocol_type="consumer", protocols=[pb.GroupProtocol(name="p", metadata=b"\xff")]
    )
    refused = ApiBench().answer("JoinGroup", request)
    assert (refused.error_code, refused.generation, refused.member_id) == (30, -1, "m")
    group = allow(AclOperation.READ, "g", AclResourceType.GROUP)
    assert ApiBench(group).answer("JoinGroup", request).error_code == ErrorCode.INVALID_REQUEST


def test_an_identity_needs_idempotent_write_or_any_topic_to_write_to_and_a_name_the_right_to_it() -> None:
    def code(request: pb.InitProducerIdRequest, *acls: AclBinding) -> int:
        bench = ApiBench(*acls)
        handle = bench.calls_of.handlers.producers.init
        if request.transactional_id:
            handle = bench.calls_of.handlers.transactions.init
        try:
            return int(asyncio.run(handle(bench.access("InitProducerId"), request)).error_code)
        except Reached:
            return 0

    nameless = pb.InitProducerIdRequest()
    assert code(nameless) == 31
    assert code(nameless, allow(AclOperation.WRITE, "any")) == 0
    assert code(nameless, allow(AclOperation.READ, "any")) == 31
    cluster = allow(AclOperation.IDEMPOTENT_WRITE, "kafka-cluster", AclResourceType.CLUSTER)
    assert code(nameless, cluster) == 0
    for named in (pb.InitProducerIdRequest(name="n"), pb.InitProducerIdRequest(transactional_id="n")):
        assert code(named, cluster, allow(AclOperation.WRITE, "any")) == 53
        assert code(named, allow(AclOperation.WRITE, "n", AclResourceType.TRANSACTIONAL_ID)) == 0


def test_topics_are_created_by_those_who_may_create_any_or_this_one() -> None:
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="a"), pb.NewTopic(name="b")])

    def created(*acls: AclBinding) -> list[str]:
        bench = ApiBench(*acls)
        bench.cluster.controller.create_topics = answering(lambda topics: [TopicResult("t", "1", 1)] * len(topics), [])
        found = bench.answer("CreateTopics", request)
        assert [one.name for one in found.topics] == ["a", "b"]
        return [one.name for one in found.topics if not one.error_code]

    assert created() == []
    assert created(allow(AclOperation.CREATE, "b")) == ["b"]
    assert created(allow(AclOperation.CREATE, "kafka-cluster", AclResourceType.CLUSTER)) == ["a", "b"]


def test_configs_of_a_broker_are_those_of_the_cluster() -> None:
    request = pb.DescribeConfigsRequest(
        resources=[
            pb.ConfigResource(type=pb.RESOURCE_TYPE_BROKER),
            pb.ConfigResource(type=pb.RESOURCE_TYPE_TOPIC, name="a"),
        ]
    )
    found = ApiBench(allow(AclOperation.ALTER_CONFIGS, "a"), state=with_topics("a")).answer("DescribeConfigs", request)
    assert [one.error_code for one in found.resources] == [31, 0]
    assert [one.resource for one in found.resources] == list(request.resources)


def test_groups_are_listed_as_far_as_they_may_be_described() -> None:
    def listed(*acls: AclBinding) -> list[str]:
        bench = ApiBench(*acls)
        bench.cluster.prove_leadership = proved
        there = [GroupListing(group_id=name, protocol_type="consumer", state="Stable") for name in ("a", "b")]
        bench.coordinator.list_groups = lambda: (there, None)
        found = bench.answer("ListGroups", pb.ListGroupsRequest())
        assert found.error_code == 0
        return [one.group_id for one in found.groups]

    assert listed() == []
    assert listed(allow(AclOperation.READ, "b", AclResourceType.GROUP)) == ["b"]
    assert listed(allow(AclOperation.DESCRIBE, "kafka-cluster", AclResourceType.CLUSTER)) == ["a", "b"]


def test_transactions_are_listed_as_far_as_they_may_be_described() -> None:
    bench = ApiBench(allow(AclOperation.WRITE, "b", AclResourceType.TRANSACTIONAL_ID))
    bench.cluster.prove_leadership = proved
    there = [Transaction(name, 0, 1, 0, 1_000, TransactionState.EMPTY, 1) for name in ("a", "b")]
    bench.transactions.coordinator.list_transactions = lambda: (there, None)
    found = bench.answer("ListTransactions", pb.ListTransactionsRequest())
    assert [one.transactional_id for one in found.transactions] == ["b"]


def with_topics(*names: str) -> ClusterState:
    state = apply(EMPTY_CLUSTER, BrokerRegistered(0, "h", 1))
    for name in names:
        state = apply(state, TopicCreated(name, f"id {name}", 1, 0))
    return state


def described(*acls: AclBinding, topics: Sequence[str] = (), existing: Sequence[str]) -> tuple[Any, list[list[str]]]:
    """The answer to a call of Metadata, and the topics that were to be created by it."""
    bench, created = ApiBench(*acls, state=with_topics(*existing)), list[Any]()
    bench.cluster.lagging.of = lambda _: ()
    bench.cluster.host.find_error = lambda _: None

    async def auto_create(names: Sequence[str]) -> AutoCreation:
        created.append(list(names))
        bench.cluster.state = replace(with_topics(*existing, *names), acls=bench.cluster.state.acls)
        return AutoCreation(names, {})

    bench.cluster.controller.auto_create_topics = auto_create
    bench.cluster.metadata.tasks.finish = lambda work, _: work
    request = pb.MetadataRequest(topics=topics, allow_auto_topic_creation=True)
    return bench.answer("Metadata", request), created


def test_topics_are_listed_as_far_as_they_may_be_described() -> None:
    found, _ = described(allow(AclOperation.READ, "mine"), existing=["mine", "other"])
    assert [one.name for one in found.topics] == ["mine"]
    assert len(found.brokers) == 1


def test_a_topic_that_is_named_and_may_not_be_described_is_refused_whether_it_exists_or_not() -> None:
    acls = (allow(AclOperation.WRITE, "mine"), allow(AclOperation.CREATE, "mine"))
    found, created = described(*acls, topics=["other", "mine", "none", "mine"], existing=["mine", "other"])
    assert [(one.name, one.topic_id, one.error_code) for one in found.topics] == [
        ("other", "", 29),
        ("mine", "id mine", 0),
        ("none", "", 29),
    ]
    assert created == []


def test_metadata_of_topics_of_which_none_may_be_described_still_tell_of_the_brokers_and_create_none() -> None:
    found, created = described(topics=["other", "another"], existing=[])
    assert [(one.name, one.error_code) for one in found.topics] == [("other", 29), ("another", 29)]
    assert len(found.brokers) == 1
    assert created == []


def test_a_topic_that_does_not_exist_is_created_only_for_those_who_may() -> None:
    found, created = described(allow(AclOperation.WRITE, "new"), topics=["new"], existing=[])
    assert [(one.name, one.error_code) for one in found.topics] == [("new", 29)]
    assert found.topics[0].error_message == "User:alice may not Create topic new"
    assert created == []
    acls = (allow(AclOperation.WRITE, "new"), allow(AclOperation.CREATE, "new"))
    found, created = described(*acls, topics=["new"], existing=[])
    assert created == [["new"]]
    assert found.topics[0].topic_id == "id new"


def test_operations_on_topics_are_reported_once_and_only_on_request() -> None:
    for config, expected in ((BY_ACLS, [pb.ACL_OPERATION_DESCRIBE]), (FOR_ALL, None)):
        bench = ApiBench(allow(AclOperation.DESCRIBE, "mine"), config=config, state=with_topics("mine"))
        bench.cluster.lagging.of = lambda _: ()
        bench.cluster.host.find_error = lambda _: None
        request = pb.MetadataRequest(topics=["mine"], include_authorized_operations=True)
        operations = list(bench.answer("Metadata", request).topics[0].authorized_operations)
        assert operations == (expected or sorted(set(operations)))
        assert len(operations) == (1 if expected else 8)
        request.include_authorized_operations = False
        assert not bench.answer("Metadata", request).topics[0].authorized_operations


def test_offsets_are_shown_of_topics_that_may_be_described() -> None:
    named = [pb.TopicPartitions(topic=topic, partitions=[0, 1]) for topic in ("other", "mine")]
    request = pb.OffsetFetchRequest(
        groups=[
            pb.OffsetFetchGroup(group_id="hidden", topics=named),
            pb.OffsetFetchGroup(group_id="g", topics=named),
            pb.OffsetFetchGroup(group_id="h", all_partitions=True),
        ]
    )

    def fetched(asked: groups.OffsetFetch) -> asyncio.Future[Any]:
        partitions = asked.partitions
        if partitions is None:
            partitions = tuple(TopicPartition(topic, 0) for topic in ("other", "mine"))
        offsets = (groups.CommittedOffset(one, f"id {one.topic}", 7) for one in partitions)
        return answered(groups.OffsetsFetched(tuple(offsets)))

    acls = [allow(AclOperation.READ, name, AclResourceType.GROUP) for name in ("g", "h")]
    bench = ApiBench(*acls, allow(AclOperation.READ, "mine"), state=with_topics("other", "mine"))
    bench.cluster.prove_leadership = proved
    bench.coordinator.submit = fetched
    found = bench.answer("OffsetFetch", request)
    offsets = [
        [(one.topic, one.partition, one.offset, one.leader_epoch, one.error_code) for one in group.offsets]
        for group in found.groups
    ]
    assert [group.error_code for group in found.groups] == [30, 0, 0]
    assert offsets == [
        [],
        [("mine", 0, 7, -1, 0), ("mine", 1, 7, -1, 0), ("other", 0, -1, -1, 29), ("other", 1, -1, -1, 29)],
        [("mine", 0, 7, -1, 0)],
    ]


def test_operations_are_told_on_request_also_where_nobody_is_asked() -> None:
    acl = allow(AclOperation.DESCRIBE, "g", AclResourceType.GROUP)

    def operations(config: BrokerConfig, *, is_wanted: bool) -> list[int]:
        bench = ApiBench(acl, config=config)
        bench.cluster.prove_leadership = proved
        described = groups.DescribedGroup("g", "Empty", "", "", 0, "", ())
        bench.coordinator.submit = lambda _: answered(described)
        request = pb.DescribeGroupsRequest(group_ids=["g"], include_authorized_operations=is_wanted)
        return list(bench.answer("DescribeGroups", request).groups[0].authorized_operations)

    assert operations(BY_ACLS, is_wanted=True) == [pb.ACL_OPERATION_DESCRIBE]
    assert operations(FOR_ALL, is_wanted=True) == [
        pb.ACL_OPERATION_READ,
        pb.ACL_OPERATION_DELETE,
        pb.ACL_OPERATION_DESCRIBE,
    ]
    assert not operations(FOR_ALL, is_wanted=False)
