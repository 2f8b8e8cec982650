"""Leaders and replicas of new partitions, and the changes that an administrator may request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from bus.cluster_metadata.broker_decisions import decide_fence_brokers, decide_unfence_broker
from bus.cluster_metadata.cluster_decisions import (
    CreatePartitions,
    CreateTopic,
    decide_create_internal_topic,
    decide_create_partitions,
    decide_create_topic,
)
from bus.cluster_metadata.cluster_draft import ClusterDraft, ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    FeatureLevel,
    LeaderChanged,
    LeadersChanged,
    PartitionsAdded,
    ReplicasAssigned,
    TopicConfigChanged,
    TopicCreated,
    apply_all,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.cluster_metadata.partition_placement import decide_elect_leaders, decide_reassign_partitions, find_imbalance
from bus.errors import ErrorCode, Refused
from bus.model import Step, TopicPartition
from bus.settings.broker import BrokerConfig


def brokers(racks: Sequence[str | None], *more: ClusterRecord) -> ClusterState:
    records: list[ClusterRecord] = [FeatureLevel("bus.version", 1)]
    for number, rack in enumerate(racks):
        epoch = number + 1
        records += [BrokerStarted(number, "h", 1, rack, "life", epoch, 0, 1), BrokerUnfenced(number, epoch)]
    return apply_all(EMPTY_CLUSTER, [*records, *more])


def create(state: ClusterState, name: str, partitions: int, replication_factor: int = 3) -> Step[ClusterRecord, object]:
    return decide_create_topic(
        state,
        CreateTopic(name, partitions),
        topic_id=f"id-{name}",
        leader_id=0,
        partitions_default=1,
        broker=BrokerConfig(default_replication_factor=replication_factor),
    )


def with_topic(state: ClusterState, name: str, partitions: int, replication_factor: int = 3) -> ClusterState:
    return apply_all(state, create(state, name, partitions, replication_factor).records)


THREE = brokers([None] * 3)
ALONE = apply_all(EMPTY_CLUSTER, [BrokerRegistered(0, "h", 1)])  # at level 0


def create_as_told(
    state: ClusterState,
    partitions: int = -1,
    replication_factor: int = -1,
    replica_assignment: Sequence[Sequence[int]] = (),
    configs: Mapping[str, str] = MappingProxyType({}),
) -> Step[ClusterRecord, object]:
    command = CreateTopic(
        "t", partitions, configs, replication_factor=replication_factor, replica_assignment=replica_assignment
    )
    return decide_create_topic(state, command, topic_id="id-t", leader_id=0, partitions_default=2)


# ---------------------------------------------------------------------- new partitions


def test_creator_may_say_how_many_replicas_there_are() -> None:
    topic = apply_all(THREE, create_as_told(THREE, 3, 2).records).topics["t"]
    assert topic.assignments == ((0, 1), (1, 2), (2, 0))
    assert create_as_told(ALONE, 3, 1).records == (TopicCreated("t", "id-t", 3, 0),)


def test_brokers_that_are_away_fill_up_the_number_that_was_asked_for_and_lead_nothing() -> None:
    state = apply_all(THREE, [BrokerFenced(0, 1)])
    topic = apply_all(state, create_as_told(state, 2, 3).records).topics["t"]
    assert topic.assignments == ((1, 2, 0), (2, 1, 0))
    by_default = apply_all(state, create_as_told(state, 2).records).topics["t"]
    assert by_default.assignments == ((1, 2), (2, 1))


def test_creator_may_name_the_replicas_and_the_first_unfenced_one_leads() -> None:
    state = apply_all(THREE, [BrokerFenced(2, 3)])
    topic = apply_all(state, create_as_told(state, replica_assignment=[(2, 1), (0, 2), (1, 0)]).records).topics["t"]
    assert topic.assignments == ((2, 1), (0, 2), (1, 0))
    assert [leadership.leader_id for leadership in topic.partitions] == [1, 0, 1]


@pytest.mark.parametrize(
    ("asked", "code", "found"),
    [
        ({"replication_factor": 4}, "INVALID_REPLICATION_FACTOR", "from 1 to 3, .* found 4"),
        ({"replication_factor": -2}, "INVALID_REPLICATION_FACTOR", "found -2"),
        ({"replica_assignment": [(0, 7)]}, "INVALID_REPLICA_ASSIGNMENT", "t-0: .* different brokers .* found 0, 7"),
        ({"replica_assignment": [(0, 0)]}, "INVALID_REPLICA_ASSIGNMENT", "found 0, 0"),
        ({"replica_assignment": [(0,), ()]}, "INVALID_REPLICA_ASSIGNMENT", "t-1: .* found none"),
        ({"replica_assignment": [(0, 1), (2,)]}, "INVALID_REPLICA_ASSIGNMENT", "t-1: expected 2 replicas as"),
        ({"replica_assignment": [(2,)]}, "INVALID_REPLICA_ASSIGNMENT", "a replica that is not fenced, found 2"),
        ({"replica_assignment": [(0,)], "partitions": 1}, "INVALID_REQUEST", "a replica assignment alone"),
        ({"replica_assignment": [(0,)], "replication_factor": 1}, "INVALID_REQUEST", "found -1 partitions and a"),
        ({"replica_assignment": [(0,)], "configs": {"min.insync.replicas": "2"}}, "INVALID_CONFIG", "found 2"),
    ],
)
def test_replicas_that_cannot_be_are_refused(asked: dict[str, Any], code: str, found: str) -> None:
    step = create_as_told(apply_all(THREE, [BrokerFenced(2, 3)]), **asked)
    assert isinstance(step.response, Refused)
    assert step.response.code.name == code
    assert re.search(found, step.response.message), step.response.message
    assert not step.records


def test_replicas_are_named_in_clusters_alone() -> None:
    refused = create_as_told(ALONE, replica_assignment=[(0,)]).response
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.UNSUPPORTED_VERSION


def test_new_topic_is_created_led_and_followed_in_turn() -> None:
    assert create(THREE, "t", 4).records == (
        TopicCreated("t", "id-t", 4, 0),
        LeaderChanged("t", "id-t", 1, 1, 1),
        LeaderChanged("t", "id-t", 2, 2, 1),
        ReplicasAssigned("t", "id-t", 0, 4, "0,1,2;1,2,0;2,0,1;0,2,1"),
    )


def test_topic_of_one_broker_costs_one_record_more_than_at_level_0() -> None:
    assert create(brokers([None]), "t", 50).records == (
        TopicCreated("t", "id-t", 50, 0),
        ReplicasAssigned("t", "id-t", 0, 50, "0"),
    )


def test_topics_of_one_partition_are_spread_over_the_brokers() -> None:
    state = THREE
    for number in range(9):
        state = with_topic(state, f"t{number}", 1)
    assert state.leader_counts == {0: 3, 1: 3, 2: 3}


def test_broker_that_leads_least_leads_next() -> None:
    state = apply_all(THREE, [TopicCreated("old", "id-old", 5, 0), TopicCreated("older", "id-older", 2, 1)])
    assert with_topic(state, "t", 8).leader_counts == {0: 5, 1: 5, 2: 5}


def test_broker_that_is_back_and_leads_nothing_yet_gets_no_more_than_its_share() -> None:
    state = with_topic(THREE, "old", 6)
    state = apply_all(state, decide_fence_brokers(state, {1: 2}).records)
    state = apply_all(state, decide_unfence_broker(state, 1, 2).records)
    assert state.leader_counts == {0: 3, 2: 3}
    assert state.preferred_counts == {0: 2, 1: 2, 2: 2}
    after = with_topic(state, "new", 6)
    assert Counter(replicas[0] for replicas in after.topics["new"].assignments) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize(("factor", "count"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_partition_has_as_many_replicas_as_are_asked_for_or_as_there_are_unfenced_brokers(
    factor: int, count: int
) -> None:
    state = apply_all(brokers([None] * 4), [BrokerFenced(3, 4)])
    assignments = with_topic(state, "t", 6, factor).topics["t"].assignments
    assert [len(set(replicas)) for replicas in assignments] == [count] * 6
    assert not any(3 in replicas for replicas in assignments)


def test_all_brokers_may_be_chosen_if_none_is_unfenced() -> None:
    state = apply_all(THREE, [BrokerFenced(one, one + 1) for one in range(3)])
    assert with_topic(state, "t", 3).leader_counts == {0: 1, 1: 1, 2: 1}


def test_what_a_broker_leads_is_spread_over_all_others_when_it_fails() -> None:
    state = with_topic(brokers([None] * 4), "t", 36)
    for leader in range(4):
        heirs = Counter(replicas[1] for replicas in state.topics["t"].assignments if replicas[0] == leader)
        assert heirs == {other: 3 for other in range(4) if other != leader}


def test_replicas_are_in_as_many_racks_as_there_are() -> None:
    racks = ["a", "a", "a", "b", "c"]
    state = with_topic(brokers(racks), "t", 40)
    for replicas in state.topics["t"].assignments:
        assert {racks[one] for one in replicas} == {"a", "b", "c"}
    assert set(state.leader_counts.values()) == {8}
    for replicas in with_topic(brokers(["a", "a", "b"]), "t", 9, 3).topics["t"].assignments:
        assert len(set(replicas)) == 3
        assert {"aab"[one] for one in replicas[:2]} == {"a", "b"}


def test_added_partitions_go_on_in_turn_with_as_many_replicas_as_the_first_one() -> None:
    state = with_topic(THREE, "t", 2, 2)
    step = decide_create_partitions(state, CreatePartitions("t", 5), leader_id=0)
    assert step.records == (
        PartitionsAdded("t", "id-t", 5, 2),
        LeaderChanged("t", "id-t", 3, 0, 1),
        LeaderChanged("t", "id-t", 4, 1, 1),
        ReplicasAssigned("t", "id-t", 2, 3, "2,0;0,2;1,0"),
    )
    assert decide_create_partitions(state, CreatePartitions("t", 5, validate_only=True), leader_id=0).records == ()


def test_added_partitions_are_placed_as_told_and_led_by_their_first_unfenced_replica() -> None:
    fenced = brokers([None] * 3, BrokerFenced(2, 3))
    state = apply_all(fenced, create_as_told(fenced, replica_assignment=[(0, 1)]).records)
    grow = CreatePartitions("t", 3, replica_assignment=[(1, 0), (2, 1)])
    topic = apply_all(state, decide_create_partitions(state, grow, leader_id=0).records).topics["t"]
    assert [tuple(replicas) for replicas in topic.assignments] == [(0, 1), (1, 0), (2, 1)]
    assert [leadership.leader_id for leadership in topic.partitions] == [0, 1, 1]
    assert decide_create_partitions(state, replace(grow, validate_only=True), leader_id=0).records == ()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([(1, 0)], "expected the replicas of each of the 2 partitions that are added, found 1"),
        ([(1, 0), (7, 0)], "t-2: .* different brokers .* found 7, 0"),
        ([(1, 0), (1,)], "t-2: expected 2 replicas as for partition 1"),
    ],
)
def test_added_partitions_that_cannot_be_placed_as_told_are_refused(
    assignment: Sequence[Sequence[int]], message: str
) -> None:
    state = apply_all(THREE, create_as_told(THREE, replica_assignment=[(0, 1)]).records)
    grow = CreatePartitions("t", 3, replica_assignment=assignment)
    refused = decide_create_partitions(state, grow, leader_id=0).response
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert re.search(message, refused.message)


def test_internal_topic_is_spread_as_any_other() -> None:
    step = decide_create_internal_topic(
        THREE,
        "__consumer_offsets",
        topic_id="id",
        leader_id=0,
        partitions=6,
        configs={},
        broker=BrokerConfig(default_replication_factor=2),
    )
    after = apply_all(THREE, step.records)
    assert after.leader_counts == {0: 2, 1: 2, 2: 2}
    assert {len(replicas) for replicas in after.topics["__consumer_offsets"].assignments} == {2}


# ---------------------------------------------------------------------- elections

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
NONE = TopicPartition("none", 0)
MOVED = apply_all(
    with_topic(THREE, "t", 3), [LeadersChanged("t", "id-t", 0, 3, 1, 5), BrokerFenced(2, 3)]
)  # preferred: 0, 1, 2


def test_preferred_leaders_lead_again_where_they_are_asked_for() -> None:
    step = decide_elect_leaders(MOVED, [T2, T1, T0, NONE, TopicPartition("t", 3)])
    assert step.records == (LeaderChanged("t", "id-t", 0, 0, 6),)
    assert step.response[T0] == 0
    for partition, code in (
        (T1, ErrorCode.ELECTION_NOT_NEEDED),
        (T2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("t", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        answer = step.response[partition]
        assert isinstance(answer, Refused)
        assert answer.code is code


def test_preferred_leaders_of_all_partitions_answer_for_those_that_change() -> None:
    assert decide_elect_leaders(MOVED).response == {T0: 0}
    back = apply_all(MOVED, [BrokerUnfenced(2, 3)])
    assert decide_elect_leaders(back).response == {T0: 0, T2: 2}
    assert decide_elect_leaders(back, changes_max=1).response == {T0: 0}


def test_imbalance_is_what_an_unfenced_broker_is_preferred_for_and_does_not_lead() -> None:
    state = with_topic(brokers([None] * 3), "t", 12)
    assert find_imbalance(state, 0) == []
    preferred = [number for number in range(12) if state.topics["t"].replicas(number)[0] == 0]
    epoch = state.brokers[0].broker_epoch
    fenced = apply_all(state, decide_fence_brokers(state, {0: epoch}).records)
    assert find_imbalance(fenced, 0) == []
    back = apply_all(fenced, decide_unfence_broker(fenced, 0, epoch).records)
    assert find_imbalance(back, 99) == [TopicPartition("t", number) for number in preferred]
    assert find_imbalance(back, 100) == []
    balanced = apply_all(back, decide_elect_leaders(back, find_imbalance(back, 10)).records)
    assert find_imbalance(balanced, 0) == []


def test_partition_without_an_assignment_needs_no_election() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-t", 1, 0), LeaderChanged("t", "id-t", 0, 1, 1)])
    assert decide_elect_leaders(state) == Step({})


# ---------------------------------------------------------------------- reassignments


def test_reassigned_partition_has_its_new_replicas_at_once_and_a_leader_among_them() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-t", 3, 0), BrokerFenced(1, 2)])
    step = decide_reassign_partitions(state, {T0: (1, 2), T1: (2, 0), T2: (1,)})
    assert step.response == {T0: (1, 2), T1: (2, 0), T2: (1,)}
    assert step.records == (
        ReplicasAssigned("t", "id-t", 0, 1, "1,2"),
        ReplicasAssigned("t", "id-t", 1, 1, "2,0"),
        ReplicasAssigned("t", "id-t", 2, 1, "1"),
        LeaderChanged("t", "id-t", 0, 2, 1),  # broker 1 is fenced; where no other is a replica the leader leads on
    )
    after = apply_all(state, step.records)
    assert decide_reassign_partitions(after, {T1: [2, 0]}).records == ()


def test_partition_keeps_as_many_replicas_as_its_topic_waits_for() -> None:
    state = apply_all(
        THREE, [TopicCreated("t", "id-t", 3, 0), TopicConfigChanged("t", "id-t", "min.insync.replicas", "2")]
    )
    step = decide_reassign_partitions(state, {T0: (1,), T1: (2, 0)})
    assert step.response == {
        T0: Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "t-0: expected 2 replicas or more, its min.insync.replicas, found 1"
        ),
        T1: (2, 0),
    }


@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (NONE, (0,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("t", 3), (0,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (T0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (0, 1, 0), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (0, 7), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_assignment_that_cannot_be_is_refused_and_costs_no_other(
    partition: TopicPartition, replicas: tuple[int, ...] | None, code: ErrorCode
) -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-t", 3, 0)])
    step = decide_reassign_partitions(state, {partition: replicas, T2: (2,)})
    refused = step.response[partition]
    assert isinstance(refused, Refused)
    assert refused.code is code
    assert step.records == (ReplicasAssigned("t", "id-t", 2, 1, "2"), LeaderChanged("t", "id-t", 2, 2, 1))


def test_replicas_are_refused_at_level_0() -> None:
    step = decide_reassign_partitions(EMPTY_CLUSTER, {T0: (0,)})
    refused = step.response[T0]
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.UNSUPPORTED_VERSION


def test_change_of_leaders_that_is_refused_for_its_last_partition_changes_nothing() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-t", 2, 0), LeadersChanged("t", "id-t", 1, 1, 1, 5)])
    draft = ClusterDraft(state)
    with pytest.raises(AssertionError, match="leader epoch of t-1 went from 5 to 3"):
        draft.apply(LeadersChanged("t", "id-t", 0, 2, 2, 3))
    assert draft.finish() == state
