"""Controllers that are elected, brokers that come, fall silent and leave: with which records, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from bus.cluster_metadata.broker_decisions import (
    BrokerIdentity,
    Elected,
    RegisterBroker,
    ShutdownGranted,
    check_advertised_address,
    decide_controlled_shutdown,
    decide_elect_controller,
    decide_fence_brokers,
    decide_hand_over,
    decide_register_broker,
    decide_unfence_broker,
    decide_unregister_broker,
    decide_upgrade_features,
)
from bus.cluster_metadata.cluster_decisions import (
    AlterTopicConfigs,
    CreateTopic,
    TopicStep,
    decide_alter_topic_configs,
    decide_create_topic,
)
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerListeners,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    LeaderEpochsRaised,
    LeadersChanged,
    ReplicasAssigned,
    TopicConfigChanged,
    TopicCreated,
    apply_all,
    snapshot_of,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, LEVEL_MAX, ClusterState, Leadership
from bus.cluster_metadata.configs import AlterOperation, ConfigOperation
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint, ListenerAddress, Step, TopicPartition
from bus.settings.broker import BrokerConfig

LEVEL = FeatureLevel("bus.version", 1)


def cluster(*records: ClusterRecord) -> ClusterState:
    return apply_all(EMPTY_CLUSTER, records)


def starting(
    broker_id: int, host: str, port: int, incarnation: str = "life", rack: str | None = None
) -> RegisterBroker:
    return RegisterBroker(BrokerEndpoint(broker_id, host, port), incarnation, rack)


def started(broker_id: int, epoch: int, incarnation: str = "life") -> BrokerStarted:
    return BrokerStarted(broker_id, "h", 1, None, incarnation, epoch, 0, LEVEL_MAX)


def unfenced(broker_id: int, epoch: int) -> tuple[ClusterRecord, ...]:
    return started(broker_id, epoch), BrokerUnfenced(broker_id, epoch)


THREE = cluster(LEVEL, ControllerElected(0, "life"), *unfenced(0, 1), *unfenced(1, 2), *unfenced(2, 3))


def leaders(state: ClusterState, topic: str) -> list[tuple[int, int]]:
    return [(led.leader_id, led.leader_epoch) for led in state.topics[topic].partitions]


def refusal(answer: object) -> tuple[ErrorCode, str]:
    assert isinstance(answer, Refused)
    return answer.code, answer.message


# ---------------------------------------------------------------------- level 0: one broker, as ever

STATE = cluster(
    BrokerRegistered(0, "a", 1), TopicCreated("orders", "id-1", 4, 0), TopicCreated("__internal", "id-3", 1, 0)
)


def test_started_broker_leads_its_partitions_at_new_epochs() -> None:
    state = cluster(
        BrokerRegistered(0, "a", 1),
        BrokerRegistered(1, "b", 2),
        TopicCreated("orders", "id-1", 2, 0),
        LeaderChanged("orders", "id-1", 1, 0, 4),
        TopicCreated("others", "id-2", 1, 1),
    )
    step = decide_elect_controller(state, starting(0, "moved", 9))
    assert step.records == (
        BrokerRegistered(0, "moved", 9),
        LeaderEpochsRaised(0),
    )
    assert step.response == Elected(0, 0, 2)
    after = apply_all(state, step.records).topics
    assert [led.leader_epoch for led in after["orders"].partitions] == [1, 5]
    assert [led.leader_epoch for led in after["others"].partitions] == [0]


def test_first_broker_of_a_cluster_is_registered() -> None:
    step = decide_elect_controller(EMPTY_CLUSTER, starting(0, "a", 1))
    assert step.records == (BrokerRegistered(0, "a", 1),)
    assert step.response == Elected(0, 0, 0)


def test_started_broker_takes_over_from_those_that_are_gone() -> None:
    state = cluster(
        BrokerRegistered(0, "a", 1),
        BrokerRegistered(1, "b", 2),
        TopicCreated("orders", "id-1", 1, 0),
        TopicCreated("others", "id-2", 1, 1),
    )
    step = decide_elect_controller(state, starting(2, "c", 3), gone_broker_ids=[0, 1, 2, 99])
    assert step.records == (
        BrokerRegistered(2, "c", 3),
        LeaderChanged("orders", "id-1", 0, 2, 1),
        LeaderChanged("others", "id-2", 0, 2, 1),
        BrokerUnregistered(0),
        BrokerUnregistered(1),
    )
    after = apply_all(state, step.records)
    assert after.brokers.keys() == {2}


def test_started_broker_is_not_itself_among_the_gone() -> None:
    step = decide_elect_controller(STATE, starting(0, "a", 1), gone_broker_ids=STATE.brokers)
    assert BrokerUnregistered(0) not in step.records


def test_restart_changes_partitions_of_internal_topics_too() -> None:
    step = decide_elect_controller(STATE, starting(0, "a", 1))
    (leadership,) = apply_all(STATE, step.records).topics["__internal"].partitions
    assert leadership == Leadership(0, 1)


def test_what_needs_several_brokers_is_refused_at_level_0() -> None:
    expected = "expected bus.version 1 or higher, found 0"
    for step in (
        decide_register_broker(STATE, starting(1, "b", 2)),
        decide_unfence_broker(STATE, 0, 0),
        decide_fence_brokers(STATE, {0: 0}),
        decide_controlled_shutdown(STATE, 0, 0),
        decide_unregister_broker(STATE, 0),
    ):
        code, message = refusal(step.response)
        assert code is ErrorCode.UNSUPPORTED_VERSION
        assert message.endswith(expected)
        assert step.records == ()


# ---------------------------------------------------------------------- the level


def test_level_is_raised_once_and_never_goes_back() -> None:
    step = decide_upgrade_features(STATE, 1)
    assert (step.response, step.records) == (1, (LEVEL,))
    assert decide_upgrade_features(THREE, 1).records == ()
    for state, level, lowest in ((STATE, LEVEL_MAX + 1, 0), (STATE, -1, 0), (THREE, 0, 1)):
        assert refusal(decide_upgrade_features(state, level).response) == (
            ErrorCode.INVALID_UPDATE_VERSION,
            f"expected a level of bus.version from {lowest} to {LEVEL_MAX}, found {level}",
        )


def test_level_that_a_registered_broker_cannot_work_at_is_refused() -> None:
    old = dataclasses.replace(started(1, 3, "old"), level_max=1)
    assert refusal(decide_upgrade_features(cluster(LEVEL, *unfenced(0, 1), old), 2).response) == (
        ErrorCode.INVALID_UPDATE_VERSION,
        "bus.version 2: expected brokers that can work at it, found 1",
    )


# ---------------------------------------------------------------------- elections


def test_one_broker_alone_is_elected_by_four_records_whatever_it_leads() -> None:
    state = cluster(LEVEL, *unfenced(0, 1), TopicCreated("t", "id-1", 100, 0), TopicCreated("u", "id-2", 1, 0))
    step = decide_elect_controller(state, starting(0, "moved", 9, "next", "r"))
    assert step.records == (
        ControllerElected(0, "next"),
        BrokerStarted(0, "moved", 9, "r", "next", 2, 0, LEVEL_MAX),
        BrokerUnfenced(0, 2),
        LeaderEpochsRaised(0),
    )
    assert step.response == Elected(0, 2, 101)


def test_broker_that_runs_already_is_elected_without_a_change_of_its_own_partitions() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-1", 1, 1)])
    step = decide_elect_controller(state, starting(1, "h", 1))
    assert step.records == (ControllerElected(1, "life"),)
    assert step.response == Elected(1, 2, 1)
    fenced = apply_all(state, [LeaderChanged("t", "id-1", 0, 0, 1), BrokerFenced(1, 2)])
    assert decide_elect_controller(fenced, starting(1, "h", 1)).records == (
        ControllerElected(1, "life"),
        BrokerUnfenced(1, 2),
    )
    moved = decide_elect_controller(state, starting(1, "moved", 9)).records
    assert moved == (ControllerElected(1, "life"), BrokerStarted(1, "moved", 9, None, "life", 2, 0, LEVEL_MAX))


def test_elected_controller_fences_the_brokers_that_are_gone_and_moves_what_they_lead() -> None:
    state = apply_all(
        THREE,
        [
            TopicCreated("t", "id-1", 3, 0),
            ReplicasAssigned("t", "id-1", 0, 3, "0,2,1;0,1,2;0"),
            TopicCreated("u", "id-2", 2, 2),
        ],
    )
    step = decide_elect_controller(state, starting(1, "h", 1), gone_broker_ids=[0, 1, 9])
    assert step.records == (
        ControllerElected(1, "life"),
        BrokerFenced(0, 1),
        LeaderChanged("t", "id-1", 0, 2, 1),  # its first replica that is unfenced
        LeadersChanged("t", "id-1", 1, 2, 1, 1),  # the second by its replicas, the third as broker 1 leads least
    )
    assert step.response == Elected(1, 2, 2)
    after = apply_all(state, step.records)
    assert after.unfenced_brokers == [1, 2]
    assert leaders(after, "u") == [(2, 0), (2, 0)]


def test_elected_controller_takes_over_from_brokers_that_were_fenced_when_no_other_was_left() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-1", 1, 2), *(BrokerFenced(one, one + 1) for one in (0, 1, 2))])
    step = decide_elect_controller(state, starting(1, "h", 1))
    assert step.records[1:] == (BrokerUnfenced(1, 2), LeaderChanged("t", "id-1", 0, 1, 1))


# ---------------------------------------------------------------------- registrations


def test_new_broker_is_registered_fenced_with_an_epoch_that_none_had() -> None:
    state = apply_all(THREE, [started(3, 8), BrokerUnregistered(3)])
    step = decide_register_broker(state, starting(4, "d", 4, "new", "r"))
    assert (step.response, step.records) == (9, (BrokerStarted(4, "d", 4, "r", "new", 9, 0, LEVEL_MAX),))


def test_restarted_broker_is_registered_anew_and_leads_nothing_at_first() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-1", 2, 1)])
    command = starting(1, "h", 1, "next")
    step = decide_register_broker(state, command)
    assert step.response == 4
    after = apply_all(state, step.records)
    assert leaders(after, "t") == [(0, 1), (2, 1)]
    assert after.brokers[1].is_fenced


def test_restarted_broker_leads_on_at_new_epochs_if_no_other_is_unfenced() -> None:
    state = cluster(LEVEL, *unfenced(0, 1), TopicCreated("t", "id-1", 2, 0))
    step = decide_register_broker(state, starting(0, "h", 1, "next"))
    assert step.records == (started(0, 2, "next"), LeaderEpochsRaised(0))


def test_same_life_registers_again_with_its_epoch() -> None:
    step = decide_register_broker(THREE, starting(1, "moved", 9))
    assert (step.response, step.records) == (2, (BrokerStarted(1, "moved", 9, None, "life", 2, 0, LEVEL_MAX),))
    assert not apply_all(THREE, step.records).brokers[1].is_fenced


@pytest.mark.parametrize(
    "command",
    [
        starting(-1, "h", 1),
        starting(2**31, "h", 1),
        starting(3, "", 1),
        starting(3, "two words", 1),
        starting(3, "line\nbreak", 1),
        starting(3, "h" * 256, 1),
        starting(3, "h", 0),
        starting(3, "h", 65536),
        starting(3, "h", 1, ""),
        starting(3, "h", 1, "i" * 256),
        starting(3, "h", 1, "life", ""),
        starting(3, "h", 1, "life", "r\x00"),
        starting(3, "h", 1, "life", "r" * 256),
        dataclasses.replace(starting(3, "h", 1), level_min=-1),
        dataclasses.replace(starting(3, "h", 1), level_min=LEVEL_MAX + 1),
        dataclasses.replace(starting(3, "h", 1), level_max=2**31),
    ],
)
def test_registration_that_a_record_cannot_hold_or_clients_cannot_use_is_refused(command: RegisterBroker) -> None:
    step = decide_register_broker(THREE, command)
    assert refusal(step.response)[0] is ErrorCode.INVALID_REGISTRATION
    assert step.records == ()


def test_broker_that_cannot_work_at_the_level_is_refused() -> None:
    for level_min, level_max in ((0, 0), (2, 3)):
        command = dataclasses.replace(starting(3, "h", 1), level_min=level_min, level_max=level_max)
        assert refusal(decide_register_broker(THREE, command).response) == (
            ErrorCode.UNSUPPORTED_VERSION,
            f"expected a broker that can work at bus.version 1, found broker 3 with levels {level_min} to {level_max}",
        )


# ---------------------------------------------------------------------- listeners


CLIENTS = ListenerAddress("CLIENTS", "PLAINTEXT", "h", 9094)
INSIDE = ListenerAddress("INSIDE", "PLAINTEXT", "::1", 9095)


def with_listeners(command: RegisterBroker, *listeners: ListenerAddress) -> RegisterBroker:
    return dataclasses.replace(command, endpoint=dataclasses.replace(command.endpoint, listeners=listeners))


def test_listeners_are_a_record_behind_the_registration_and_go_with_the_next_one_without() -> None:
    state = apply_all(THREE, [FeatureLevel("bus.version", 2)])
    command = with_listeners(starting(3, "h", 9095), CLIENTS, INSIDE)
    step = decide_register_broker(state, command)
    assert step.records[1:] == (BrokerListeners(3, 4, "CLIENTS:PLAINTEXT://h:9094,INSIDE:PLAINTEXT://[::1]:9095"),)
    there = apply_all(state, step.records)
    assert there.brokers[3].endpoint == command.endpoint
    assert decide_register_broker(there, command).records == ()
    assert cluster(*snapshot_of(there)) == there
    alone = decide_register_broker(there, starting(3, "h", 9095))
    assert apply_all(there, alone.records).brokers[3].endpoint.listeners == ()


def test_elected_controller_says_its_listeners() -> None:
    state = apply_all(THREE, [FeatureLevel("bus.version", 2)])
    command = with_listeners(starting(1, "h", 9095, "next"), CLIENTS)
    elected = apply_all(state, decide_elect_controller(state, command).records)
    assert elected.brokers[1].endpoint == command.endpoint


def test_listeners_need_a_level_that_has_a_record_for_them() -> None:
    command = with_listeners(starting(3, "h", 9095), CLIENTS)
    code, message = refusal(decide_register_broker(THREE, command).response)
    assert code is ErrorCode.UNSUPPORTED_VERSION
    assert message.startswith("listeners need bus.version 2, found 1: start the broker with listen, run bus cluster")


@pytest.mark.parametrize(
    "listeners",
    [
        (CLIENTS, CLIENTS),
        (dataclasses.replace(CLIENTS, name="a,b"),),
        (dataclasses.replace(CLIENTS, host="h,X:PLAINTEXT://x"),),
        (dataclasses.replace(CLIENTS, host=""),),
        (dataclasses.replace(CLIENTS, name="N" * 65),),
        tuple(dataclasses.replace(CLIENTS, name=f"N{number}") for number in range(65)),
    ],
)
def test_listeners_that_a_record_cannot_hold_are_refused(listeners: tuple[ListenerAddress, ...]) -> None:
    state = apply_all(THREE, [FeatureLevel("bus.version", 2)])
    step = decide_register_broker(state, with_listeners(starting(3, "h", 1), *listeners))
    assert refusal(step.response)[0] is ErrorCode.INVALID_REGISTRATION


# ---------------------------------------------------------------------- fencing


def test_fenced_broker_gives_each_partition_to_the_first_unfenced_replica_else_evenly() -> None:
    state = apply_all(
        THREE,
        [
            started(3, 4),
            TopicCreated("t", "id-1", 3, 0),
            ReplicasAssigned("t", "id-1", 0, 3, "0,3,2;0,3;1,0"),
            TopicCreated("u", "id-2", 4, 0),
        ],
    )
    step = decide_fence_brokers(state, {0: 1, 1: 7, 3: 4, 9: 1})
    assert step.response == [0]
    assert step.records[0] == BrokerFenced(0, 1)
    after = apply_all(state, step.records)
    assert leaders(after, "t") == [(2, 1), (1, 1), (1, 1)]
    assert leaders(after, "u") == [(2, 1), (1, 1), (2, 1), (1, 1)]


def test_brokers_that_fall_silent_together_do_not_give_to_each_other() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-1", 2, 0), ReplicasAssigned("t", "id-1", 0, 2, "0,1,2")])
    after = apply_all(state, decide_fence_brokers(state, {0: 1, 1: 2}).records)
    assert leaders(after, "t") == [(2, 1), (2, 1)]
    none_left = decide_fence_brokers(after, {2: 3})
    assert none_left.records == (BrokerFenced(2, 3),)
    all_fenced = apply_all(after, none_left.records)
    assert leaders(all_fenced, "t") == [(2, 1), (2, 1)]
    back = decide_unfence_broker(all_fenced, 0, 1)
    assert back.records == (BrokerUnfenced(0, 1), LeadersChanged("t", "id-1", 0, 2, 0, 2))


def test_topic_waits_for_no_more_replicas_than_it_has() -> None:
    def create(replicas_min: str) -> TopicStep:
        command = CreateTopic("t", 2, {"min.insync.replicas": replicas_min})
        return decide_create_topic(
            THREE, command, topic_id="id-1", leader_id=0, partitions_default=1, broker=BrokerConfig()
        )

    assert refusal(create("4").response) == (
        ErrorCode.INVALID_CONFIG,
        "topic t: expected min.insync.replicas from 1 to 3, the replicas of a partition, found 4",
    )
    state = apply_all(apply_all(THREE, create("3").records), [ReplicasAssigned("t", "id-1", 1, 1, "0,1")])
    altered = AlterTopicConfigs("t", [ConfigOperation("min.insync.replicas", AlterOperation.SET, "3")])
    assert decide_alter_topic_configs(state, altered).records == ()  # as it was
    state = apply_all(state, [TopicConfigChanged("t", "id-1", "min.insync.replicas", "1")])
    assert "from 1 to 2" in refusal(decide_alter_topic_configs(state, altered).response)[1]


def test_broker_is_unfenced_once_and_only_in_its_present_life() -> None:
    state = apply_all(THREE, [started(3, 4)])
    step = decide_unfence_broker(state, 3, 4)
    assert (step.response, step.records) == (None, (BrokerUnfenced(3, 4),))
    assert decide_unfence_broker(apply_all(state, step.records), 3, 4).records == ()
    assert refusal(decide_unfence_broker(state, 3, 3).response) == (
        ErrorCode.STALE_BROKER_EPOCH,
        "broker 3: expected broker epoch 4, found 3",
    )
    assert refusal(decide_unfence_broker(state, 4, 4).response) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "expected one of the brokers 0, 1, 2, 3, found 4",
    )


def test_broker_that_shuts_down_is_fenced_and_leads_nothing() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-1", 2, 1)])
    step = decide_controlled_shutdown(state, 1, 2)
    assert step.response == ShutdownGranted(2, 0)
    assert step.records == (
        BrokerFenced(1, 2),
        LeaderChanged("t", "id-1", 0, 0, 1),
        LeaderChanged("t", "id-1", 1, 2, 1),
    )
    again = decide_controlled_shutdown(apply_all(state, step.records), 1, 2)
    assert (again.response, again.records) == (ShutdownGranted(0, 0), ())
    assert refusal(decide_controlled_shutdown(state, 1, 1).response)[0] is ErrorCode.STALE_BROKER_EPOCH


def test_broker_that_is_about_to_stop_hands_over_some_of_what_it_leads() -> None:
    state = apply_all(THREE, [TopicCreated("t", "id-1", 3, 1), TopicCreated("u", "id-2", 2, 1)])
    after = apply_all(state, decide_hand_over(state, 1, 2, count_max=4).records)
    assert (after.leader_counts[1], 1 in after.unfenced_brokers) == (1, True)
    assert after.leadership(TopicPartition("u", 1)) == state.leadership(TopicPartition("u", 1))
    assert refusal(decide_hand_over(state, 1, 1, count_max=4).response)[0] is ErrorCode.STALE_BROKER_EPOCH
    alone = cluster(LEVEL, *unfenced(0, 1), TopicCreated("t", "id-1", 2, 0))
    assert decide_hand_over(alone, 0, 1, count_max=4) == Step(None, ())


def test_last_unfenced_broker_shuts_down_with_what_it_leads() -> None:
    state = cluster(LEVEL, *unfenced(0, 1), started(1, 2), TopicCreated("t", "id-1", 2, 0))
    step = decide_controlled_shutdown(state, 0, 1)
    assert (step.response, step.records) == (ShutdownGranted(0, 2), ())


# ---------------------------------------------------------------------- decommission


def test_broker_that_neither_leads_nor_follows_is_unregistered() -> None:
    assert decide_unregister_broker(THREE, 1).records == (BrokerUnregistered(1),)


@pytest.mark.parametrize(
    ("state", "broker_id", "reason"),
    [
        (cluster(LEVEL, *unfenced(0, 1)), 0, "it is the last broker"),
        (THREE, 0, "it is the controller"),
        (apply_all(THREE, [TopicCreated("t", "id-1", 1, 1)]), 1, "it leads 1 partition"),
        (
            apply_all(THREE, [TopicCreated("t", "id-1", 3, 0), ReplicasAssigned("t", "id-1", 1, 2, "0,1")]),
            1,
            "it is a replica of 2 partitions",
        ),
    ],
)
def test_broker_that_is_needed_is_not_unregistered(state: ClusterState, broker_id: int, reason: str) -> None:
    step = decide_unregister_broker(state, broker_id)
    assert step.response == Refused(ErrorCode.INVALID_REQUEST, f"broker {broker_id} cannot be unregistered: {reason}")
    assert step.records == ()


def test_broker_that_is_not_registered_cannot_be_unregistered() -> None:
    assert refusal(decide_unregister_broker(THREE, 9).response)[0] is ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (Refused(ErrorCode.NETWORK_EXCEPTION, "refused"), ErrorCode.BROKER_NOT_AVAILABLE, "does not reach it: refused"),
        (BrokerIdentity("root", 4, "life"), ErrorCode.INVALID_REGISTRATION, "reaches broker 4"),
        (BrokerIdentity("root", 3, "other"), ErrorCode.INVALID_REGISTRATION, "another process that is this broker"),
        (BrokerIdentity("elsewhere", 3, "life"), ErrorCode.INVALID_REGISTRATION, "with cluster id 'elsewhere'"),
    ],
)
def test_broker_is_refused_unless_it_answers_itself_where_it_says_that_it_is(
    found: BrokerIdentity | Refused, code: ErrorCode, said: str
) -> None:
    refused = check_advertised_address(starting(3, "far", 9094), found, cluster_id="root")
    assert refused is not None
    assert refused.code is code
    assert "broker 3 advertises far:9094, where the controller " in refused.message
    assert said in refused.message
    assert (
        check_advertised_address(starting(3, "far", 9094), BrokerIdentity("root", 3, "life"), cluster_id="root") is None
    )
