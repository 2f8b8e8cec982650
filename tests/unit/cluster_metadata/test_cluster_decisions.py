"""Commands on the cluster: what is granted, with which records, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bus.cluster_metadata.cluster_decisions import (
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    RaiseLeaderEpoch,
    TopicResult,
    TopicStep,
    are_tables_managed,
    decide_alter_topic_configs,
    decide_auto_create_topic,
    decide_create_internal_topic,
    decide_create_partitions,
    decide_create_topic,
    decide_delete_topic,
    decide_raise_leader_epoch,
    decide_topic_files_deleted,
)
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    BrokerStarted,
    FeatureLevel,
    LeaderChanged,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    apply,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, LEVEL_OF_MANAGED_TABLES, ClusterState
from bus.cluster_metadata.configs import (
    AlterOperation,
    ConfigOperation,
    check_topic_configs,
    describe_topic_configs,
    resolve_topic_config,
)
from bus.errors import ErrorCode, Refused
from bus.model import GROUP_PLACEMENT, TopicPartition
from bus.settings.broker import PARTITIONS_MAX


def cluster(*records: ClusterRecord) -> ClusterState:
    return cluster_after(EMPTY_CLUSTER, records)


def cluster_after(state: ClusterState, records: Sequence[ClusterRecord]) -> ClusterState:
    for record in records:
        state = apply(state, record)
    return state


STATE = cluster(
    BrokerRegistered(0, "a", 1),
    TopicCreated("orders", "id-1", 4, 0),
    TopicConfigChanged("orders", "id-1", "retention.ms", "5"),
    TopicCreated("a_b", "id-2", 1, 0),
    TopicCreated("__internal", "id-3", 1, 0),
)


def create(command: CreateTopic, state: ClusterState = STATE) -> TopicStep:
    return decide_create_topic(state, command, topic_id="id-new", leader_id=0, partitions_default=3)


def assert_refused(step: TopicStep, code: ErrorCode, message: str) -> None:
    assert step.response == Refused(code, message)
    assert step.records == ()


@pytest.mark.parametrize("decide", [decide_create_topic, decide_auto_create_topic])
def test_name_of_another_case_is_refused_where_both_would_be_one_folder(decide: Callable[..., TopicStep]) -> None:
    given: dict[str, Any] = {"topic_id": "id-new", "leader_id": 0, "partitions_default": 1}
    given |= {"command": CreateTopic("Orders", 1)} if decide is decide_create_topic else {"name": "Orders"}
    assert_refused(
        decide(STATE, is_case_blind=True, **given),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "expected a name that differs in more than case, since the root's file system does not tell upper from lower "
        "case, found Orders, whose folder is that of topic orders",
    )
    assert isinstance(decide(STATE, **given).response, TopicResult)


def test_created_topic_and_its_configs_are_one_step() -> None:
    step = create(CreateTopic("new", 2, {"retention.ms": " 7", "commit.burst": "1"}))
    assert step.records == (
        TopicCreated("new", "id-new", 2, 0),
        TopicConfigChanged("new", "id-new", "retention.ms", "7"),
        TopicConfigChanged("new", "id-new", "commit.burst", "1"),
    )
    assert step.response == TopicResult("new", "id-new", 2, {"retention.ms": "7", "commit.burst": "1"})


LEVEL_BEFORE = FeatureLevel(BUS_VERSION, LEVEL_OF_MANAGED_TABLES - 1)
NOW_MANAGED = FeatureLevel(BUS_VERSION, LEVEL_OF_MANAGED_TABLES)
FOREIGN_WRITERS = {"delta.foreign.writers.enable": "true"}


def test_new_tables_keep_other_engines_from_writing_once_every_broker_can_open_them() -> None:
    before, after = apply(STATE, LEVEL_BEFORE), apply(STATE, NOW_MANAGED)
    assert not are_tables_managed(before, {})
    assert are_tables_managed(after, {})
    assert are_tables_managed(after, {"delta.foreign.writers.enable": "false", "retention.ms": "5"})
    assert not are_tables_managed(after, FOREIGN_WRITERS)


def test_config_that_an_earlier_broker_does_not_know_waits_for_the_level() -> None:
    set_it = [ConfigOperation("delta.foreign.writers.enable", AlterOperation.SET, "true")]
    for state, is_taken in ((apply(STATE, LEVEL_BEFORE), False), (apply(STATE, NOW_MANAGED), True)):
        steps = (
            create(CreateTopic("new", 1, FOREIGN_WRITERS), state),
            decide_alter_topic_configs(state, AlterTopicConfigs("orders", set_it)),
        )
        for step in steps:
            assert isinstance(step.response, TopicResult) == is_taken
            if isinstance(step.response, Refused):
                assert step.response.code is ErrorCode.UNSUPPORTED_VERSION
                assert "need bus.version 6, found 5" in step.response.message


@pytest.mark.parametrize("unsaid", [-1, 0])
def test_topic_without_a_partition_count_gets_the_default(unsaid: int) -> None:
    assert create(CreateTopic("new", unsaid)).records == (TopicCreated("new", "id-new", 3, 0),)


def test_creation_that_is_only_validated_answers_and_changes_nothing() -> None:
    step = create(CreateTopic("new", 2, {"retention.ms": "7"}, validate_only=True))
    assert step.records == ()
    assert step.response == TopicResult("new", "", 2, {"retention.ms": "7"})


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (CreateTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "expected a topic name, found an empty one"),
        (
            CreateTopic("__mine"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "topics that begin with __ belong to the bus itself, found '__mine'",
        ),
        (CreateTopic("orders"), ErrorCode.TOPIC_ALREADY_EXISTS, "topic orders exists already"),
        (
            CreateTopic("a.b"),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "expected a name that differs in more than '.' and '_', found a.b, which collides with topic a_b",
        ),
        (
            CreateTopic("new", -2),
            ErrorCode.INVALID_PARTITIONS,
            "expected 1 to 10000 partitions of new, found -2",
        ),
        (
            CreateTopic("new", PARTITIONS_MAX + 1),
            ErrorCode.INVALID_PARTITIONS,
            "expected 1 to 10000 partitions of new, found 10001",
        ),
        (
            CreateTopic("new", 1, {"retention.mss": "1"}),
            ErrorCode.INVALID_CONFIG,
            "unknown configuration key 'retention.mss'; did you mean retention.ms?",
        ),
        (
            CreateTopic("orders", validate_only=True),
            ErrorCode.TOPIC_ALREADY_EXISTS,
            "topic orders exists already",
        ),
    ],
)
def test_creation_is_refused(command: CreateTopic, code: ErrorCode, message: str) -> None:
    assert_refused(create(command), code, message)


def test_largest_partition_count_is_granted() -> None:
    assert create(CreateTopic("new", PARTITIONS_MAX)).records == (TopicCreated("new", "id-new", PARTITIONS_MAX, 0),)


def test_name_is_free_again_after_its_topic_was_deleted() -> None:
    state = apply(STATE, TopicDeleted("a_b", "id-2"))
    assert create(CreateTopic("a.b", 1), state).records == (TopicCreated("a.b", "id-new", 1, 0),)


def test_deleted_topic_is_answered_with_what_it_was() -> None:
    step = decide_delete_topic(STATE, DeleteTopic("orders"))
    assert step.records == (TopicDeleted("orders", "id-1"),)
    assert step.response == TopicResult("orders", "id-1", 4, {"retention.ms": "5"})


def test_files_of_a_deleted_topic_are_reported_gone_once() -> None:
    state = apply(STATE, TopicDeleted("orders", "id-1"))
    step = decide_topic_files_deleted(state, "id-1")
    assert step.records == (TopicFilesDeleted("id-1"),)
    assert decide_topic_files_deleted(apply(state, step.records[0]), "id-1").records == ()
    assert decide_topic_files_deleted(STATE, "id-1").records == ()


def test_partitions_are_added_up_to_the_new_total() -> None:
    step = decide_create_partitions(STATE, CreatePartitions("orders", 6), leader_id=0)
    assert step.records == (PartitionsAdded("orders", "id-1", 6, 0),)
    assert step.response == TopicResult("orders", "id-1", 6, {"retention.ms": "5"})


def test_partitions_that_are_only_validated_change_nothing() -> None:
    step = decide_create_partitions(STATE, CreatePartitions("orders", 6, validate_only=True), leader_id=0)
    assert step.records == ()
    assert step.response == TopicResult("orders", "id-1", 6, {"retention.ms": "5"})


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (4, "topic orders has 4 partitions, expected more, found 4"),
        (3, "topic orders has 4 partitions, expected more, found 3"),
        (-1, "topic orders has 4 partitions, expected more, found -1"),
        (10_001, "expected at most 10000 partitions of orders, found 10001"),
    ],
)
def test_partitions_are_never_fewer_nor_too_many(partitions: int, message: str) -> None:
    step = decide_create_partitions(STATE, CreatePartitions("orders", partitions), leader_id=0)
    assert_refused(step, ErrorCode.INVALID_PARTITIONS, message)


def alter(*operations: ConfigOperation, validate_only: bool = False) -> TopicStep:
    return decide_alter_topic_configs(STATE, AlterTopicConfigs("orders", operations, validate_only))


def test_altered_configs_are_a_record_for_each_change() -> None:
    step = alter(
        ConfigOperation("retention.ms", AlterOperation.DELETE),
        ConfigOperation("commit.burst", AlterOperation.SET, "9"),
    )
    assert step.records == (
        TopicConfigChanged("orders", "id-1", "commit.burst", "9"),
        TopicConfigChanged("orders", "id-1", "retention.ms", None),
    )
    assert step.response == TopicResult("orders", "id-1", 4, {"commit.burst": "9"})


def test_config_set_to_what_it_is_makes_no_record() -> None:
    assert alter(ConfigOperation("retention.ms", AlterOperation.SET, "5")).records == ()


def test_alteration_that_is_only_validated_changes_nothing() -> None:
    step = alter(ConfigOperation("commit.burst", AlterOperation.SET, "9"), validate_only=True)
    assert step.records == ()
    assert step.response == TopicResult("orders", "id-1", 4, {"retention.ms": "5", "commit.burst": "9"})


def test_alteration_with_one_wrong_value_changes_nothing() -> None:
    step = alter(
        ConfigOperation("retention.ms", AlterOperation.DELETE),
        ConfigOperation("commit.burst", AlterOperation.SET, "0"),
    )
    assert_refused(step, ErrorCode.INVALID_CONFIG, "commit.burst: expected int ([1,...]), found '0'")


def change(name: str) -> list[TopicStep]:
    """The commands that need a topic that is there and that users may change."""
    return [
        decide_delete_topic(STATE, DeleteTopic(name)),
        decide_create_partitions(STATE, CreatePartitions(name, 9), leader_id=0),
    ]


def test_configs_of_an_internal_topic_that_keep_what_is_read_can_be_altered_and_no_others() -> None:
    topic = replace(STATE.topics["orders"], name="__consumer_offsets", configs={GROUP_PLACEMENT: "absolute"})
    state = replace(STATE, topics={**STATE.topics, "__consumer_offsets": topic})

    def alter_internal(name: str) -> TopicStep:
        operations = (ConfigOperation(name, AlterOperation.SET, "9"),)
        return decide_alter_topic_configs(state, AlterTopicConfigs("__consumer_offsets", operations))

    assert alter_internal("commit.interval.ms").records == (
        TopicConfigChanged("__consumer_offsets", "id-1", "commit.interval.ms", "9"),
    )
    for name in ("cleanup.policy", "retention.ms", "max.message.bytes", "min.insync.replicas", GROUP_PLACEMENT):
        refused = alter_internal(name).response
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert f"found {name}: the others belong to the bus itself" in refused.message


def test_how_long_rows_of_the_audit_are_kept_can_be_altered() -> None:
    topic = replace(STATE.topics["orders"], name="__audit", configs={})
    state = replace(STATE, topics={**STATE.topics, "__audit": topic})
    for name in ("retention.ms", "retention.bytes"):
        operations = (ConfigOperation(name, AlterOperation.SET, "9"),)
        step = decide_alter_topic_configs(state, AlterTopicConfigs("__audit", operations))
        assert step.records == (TopicConfigChanged("__audit", "id-1", name, "9"),)
    operations = (ConfigOperation("cleanup.policy", AlterOperation.SET, "compact"),)
    refused = decide_alter_topic_configs(state, AlterTopicConfigs("__audit", operations)).response
    assert isinstance(refused, Refused)
    assert "retention.bytes, retention.ms, found cleanup.policy" in refused.message


def test_configs_of_a_topic_that_is_not_there_cannot_be_altered() -> None:
    for name in ("none", "__none"):
        step = decide_alter_topic_configs(STATE, AlterTopicConfigs(name, ()))
        expected = f"expected an existing topic, found none named {name!r}"
        assert_refused(step, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, expected)


def test_topic_that_is_not_there_cannot_be_changed() -> None:
    for step in change("none"):
        assert_refused(
            step, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "expected an existing topic, found none named 'none'"
        )


def test_internal_topic_cannot_be_changed_by_users() -> None:
    for step in change("__internal"):
        assert_refused(
            step,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "topics that begin with __ belong to the bus itself, found '__internal'",
        )


def create_offsets_topic(state: ClusterState = STATE) -> TopicStep:
    return decide_create_internal_topic(
        state,
        "__consumer_offsets",
        topic_id="id-new",
        leader_id=0,
        partitions=50,
        configs={"cleanup.policy": "compact"},
    )


def test_internal_topic_is_created_the_first_time_and_answered_as_it_is_later() -> None:
    step = create_offsets_topic()
    assert step.records == (
        TopicCreated("__consumer_offsets", "id-new", 50, 0),
        TopicConfigChanged("__consumer_offsets", "id-new", "cleanup.policy", "compact"),
    )
    again = decide_create_internal_topic(
        cluster_after(STATE, step.records),
        "__consumer_offsets",
        topic_id="id-other",
        leader_id=0,
        partitions=7,
        configs={},
    )
    assert again.response == TopicResult("__consumer_offsets", "id-new", 50, {"cleanup.policy": "compact"})
    assert again.records == ()


def test_internal_topic_keeps_what_the_bus_has_to_know_and_users_can_neither_set_nor_see_it() -> None:
    step = decide_create_internal_topic(
        STATE,
        "__consumer_offsets",
        topic_id="id-new",
        leader_id=0,
        partitions=50,
        configs={},
        kept={"group.placement": "p"},
    )
    topic = cluster_after(STATE, step.records).topics["__consumer_offsets"]
    assert topic.configs == {"group.placement": "p"}
    assert resolve_topic_config(topic.configs) == resolve_topic_config({})
    assert "group.placement" not in {entry.name for entry in describe_topic_configs(topic.configs)}
    assert isinstance(check_topic_configs(topic.configs), Refused)


def test_internal_topic_is_refused_where_a_colliding_name_was_created_before() -> None:
    state = cluster_after(STATE, [TopicCreated("._consumer_offsets", "id-4", 1, 0)])
    response = create_offsets_topic(state).response
    assert isinstance(response, Refused)
    assert response.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    "name", ["._consumer_offsets", "_.consumer.offsets", "..cluster_metadata", "_.transaction_state"]
)
def test_user_topic_never_stands_in_the_way_of_an_internal_one(name: str) -> None:
    response = create(CreateTopic(name)).response
    assert isinstance(response, Refused)
    assert response.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["__consumer_offsets", "__cluster_metadata", "__transaction_state"])
def test_internal_topic_that_is_asked_for_by_name_comes_when_the_bus_needs_it(name: str) -> None:
    step = decide_auto_create_topic(EMPTY_CLUSTER, name, topic_id="id-new", leader_id=0, partitions_default=2)
    assert_refused(step, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing topic, found '{name}'")


def raising(partition: int = 0, *, leader_id: int = 0, broker_epoch: int = 3, above: int = 7) -> RaiseLeaderEpoch:
    return RaiseLeaderEpoch(TopicPartition("t", partition), leader_id, broker_epoch, above)


LED = cluster(
    FeatureLevel("bus.version", 1),
    BrokerStarted(0, "h", 1, None, "life", 3, 0, 1),
    BrokerStarted(1, "h", 2, None, "life", 4, 0, 1),
    TopicCreated("t", "id-1", 1, 0),
)


def test_leader_whose_table_has_a_higher_epoch_gets_one_above_it() -> None:
    step = decide_raise_leader_epoch(LED, raising())
    assert (step.response, step.records) == (8, (LeaderChanged("t", "id-1", 0, 0, 8),))
    again = decide_raise_leader_epoch(cluster_after(LED, step.records), raising())
    assert (again.response, again.records) == (8, ())


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (raising(leader_id=1, broker_epoch=4), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (raising(1), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (raising(broker_epoch=2), ErrorCode.STALE_BROKER_EPOCH),
        (raising(leader_id=2), ErrorCode.STALE_BROKER_EPOCH),
        (raising(above=2**31 - 1), ErrorCode.INVALID_REQUEST),
        (raising(above=2**31 - 2), ErrorCode.INVALID_REQUEST),  # nothing above what it would get
    ],
)
def test_only_the_registered_life_of_the_leader_may_raise_the_epoch(command: RaiseLeaderEpoch, code: ErrorCode) -> None:
    step = decide_raise_leader_epoch(LED, command)
    assert isinstance(step.response, Refused)
    assert (step.response.code, step.records) == (code, ())
