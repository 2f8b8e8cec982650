"""Terms of leaders with their reasons, moves of replicas, registrations of brokers: as the records state them, and no
more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bus.cluster_metadata.broker_decisions import (
    RegisterBroker,
    decide_controlled_shutdown,
    decide_elect_controller,
    decide_fence_brokers,
    decide_register_broker,
    decide_unfence_broker,
    decide_upgrade_features,
)
from bus.cluster_metadata.cluster_decisions import (
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    RaiseLeaderEpoch,
    decide_create_partitions,
    decide_create_topic,
    decide_delete_topic,
    decide_raise_leader_epoch,
)
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_history import (
    ClusterHistory,
    LoggedRow,
    LogPlace,
    Reassignment,
    Term,
    read_history,
)
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    BrokerStarted,
    BrokerUnregistered,
    LeaderChanged,
    LeaderEpochsRaised,
    TopicCreated,
    apply_all,
    encode_record,
    snapshot_of,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.cluster_metadata.partition_placement import decide_elect_leaders, decide_reassign_partitions
from bus.errors import Refused
from bus.model import BrokerEndpoint, Step, TopicPartition

PARTITION = TopicPartition("t", 0)


class Log:
    """Commits of a controller, one a second."""

    def __init__(self) -> None:
        self.state: ClusterState = EMPTY_CLUSTER
        self.commits: list[list[LoggedRow]] = []
        self.epoch = 0
        self.end_offset = 0

    def commit(self, *records: ClusterRecord) -> LogPlace:
        """Commit the records; return the place of the first one."""
        first, time_ms = self.end_offset, 1_000 * len(self.commits)
        places = [LogPlace(first + place, time_ms) for place in range(len(records))]
        rows = [encode_record(record) for record in records]
        self.commits.append([LoggedRow(*one) for one in zip(places, [self.epoch] * len(rows), rows, strict=True)])
        self.state = apply_all(self.state, records)
        self.end_offset += len(records)
        return places[0]

    def take(self, step: Step[ClusterRecord, Any]) -> LogPlace:
        assert not isinstance(step.response, Refused), step.response
        return self.commit(*step.records)

    def elect(self, broker_id: int, incarnation: str = "life", gone: Sequence[int] = ()) -> LogPlace:
        self.epoch += 1
        command = RegisterBroker(BrokerEndpoint(broker_id, "h", 1), incarnation)
        return self.take(decide_elect_controller(self.state, command, gone_broker_ids=gone))

    def join(self, broker_id: int, incarnation: str = "life") -> None:
        self.take(self.register(broker_id, incarnation))
        self.unfence(broker_id)

    def register(self, broker_id: int, incarnation: str = "life") -> Step[ClusterRecord, Any]:
        command = RegisterBroker(BrokerEndpoint(broker_id, "h", 1), incarnation)
        return decide_register_broker(self.state, command)

    def unfence(self, broker_id: int) -> LogPlace:
        epoch = self.state.brokers[broker_id].broker_epoch
        return self.take(decide_unfence_broker(self.state, broker_id, epoch))

    def fence(self, broker_id: int) -> LogPlace:
        epoch = self.state.brokers[broker_id].broker_epoch
        return self.take(decide_fence_brokers(self.state, {broker_id: epoch}))

    def create(self, partitions: int = 1) -> LogPlace:
        step = decide_create_topic(
            self.state, CreateTopic("t", partitions), topic_id="id-1", leader_id=0, partitions_default=1
        )
        return self.take(step)

    def history(self, *, since: int = 0) -> ClusterHistory:
        """`since`: the first commit that the log still has."""
        return read_history(row for commit in self.commits[since:] for row in commit)

    def told(self, *, topic: str = "t", since: int = 0) -> list[tuple[int, int, int, str | None]]:
        """(partition, leader, epoch, reason) of each term."""
        terms = [term for term in self.history(since=since).terms if term.topic == topic]
        return [
            (term.partition, term.leader_id, term.leader_epoch, term.reason.value if term.reason else None)
            for term in terms
        ]


@pytest.fixture
def log() -> Log:
    """Brokers 0 and 1, the controller is 0."""
    log = Log()
    log.take(decide_upgrade_features(EMPTY_CLUSTER, 1))
    log.elect(0)
    log.join(1)
    return log


def test_leader_that_is_fenced_and_preferred_leader_that_is_back(log: Log) -> None:
    created = log.create()
    fenced = log.fence(0)
    log.unfence(0)
    back = log.take(decide_elect_leaders(log.state))
    assert log.told() == [(0, 0, 0, "created"), (0, 1, 1, "leader fenced"), (0, 0, 2, "preferred leader")]
    terms = [term for term in log.history().terms if term.topic == "t"]
    moved = LogPlace(fenced.offset + 1, fenced.timestamp_ms)  # behind BrokerFenced
    assert [(term.begin, term.end) for term in terms] == [(created, moved), (moved, back), (back, None)]


def test_partitions_begin_with_the_leader_that_they_were_placed_on(log: Log) -> None:
    log.create(partitions=2)
    assert log.told() == [(0, 0, 0, "created"), (1, 1, 1, "created")]
    step = decide_create_partitions(log.state, CreatePartitions("t", 4), leader_id=0)
    log.take(step)
    assert log.told()[2:] == [(2, 0, 0, "created"), (3, 1, 1, "created")]
    assert log.history().reassignments == ()


def test_reassignment_tells_what_was_added_and_removed_and_who_leads_now(log: Log) -> None:
    log.join(2)
    log.create()
    before = log.state.topics["t"].replicas(0)
    place = log.take(decide_reassign_partitions(log.state, {PARTITION: (2, 1)}))
    assert log.told() == [(0, 0, 0, "created"), (0, 2, 1, "reassigned")]
    (moved,) = log.history().reassignments
    assert moved == Reassignment("t", "id-1", 0, place, before, (2, 1))
    assert (set(before), moved.adding, moved.removing) == ({0, 1, 2}, (), (0,))


def test_reassignment_of_a_partition_without_an_assignment_begins_with_its_leader() -> None:
    log = Log()
    log.commit(BrokerRegistered(0, "h", 1), TopicCreated("t", "id-1", 1, 0))
    log.take(decide_upgrade_features(log.state, 1))
    log.elect(0)
    log.join(1)
    log.take(decide_reassign_partitions(log.state, {PARTITION: (1, 0)}))
    (moved,) = log.history().reassignments
    assert (moved.before, moved.adding, moved.removing) == ((0,), (1,), ())


def test_leader_that_leads_again_after_all_replicas_failed_is_no_reassignment(log: Log) -> None:
    log.create()
    log.take(decide_reassign_partitions(log.state, {PARTITION: (0,)}))
    log.fence(0)
    log.unfence(0)
    log.take(decide_elect_leaders(log.state))
    assert log.told()[1:] == [(0, 1, 1, "leader fenced"), (0, 0, 2, "preferred leader")]


def test_new_life_and_table_with_a_higher_epoch(log: Log) -> None:
    log.create()
    log.elect(0, "life-2")
    broker_epoch = log.state.brokers[0].broker_epoch
    raised = decide_raise_leader_epoch(log.state, RaiseLeaderEpoch(PARTITION, 0, broker_epoch, above=7))
    log.take(raised)
    assert log.told() == [(0, 0, 0, "created"), (0, 0, 1, "restarted"), (0, 0, 8, "epoch raised")]


def test_leader_that_stops_in_order_is_fenced(log: Log) -> None:
    log.create()
    log.take(decide_controlled_shutdown(log.state, 0, log.state.brokers[0].broker_epoch))
    assert log.told()[-1] == (0, 1, 1, "leader fenced")


def test_topic_that_is_deleted_ends_its_terms_and_one_of_its_name_begins_anew(log: Log) -> None:
    log.create()
    deleted = log.take(decide_delete_topic(log.state, DeleteTopic("t")))
    step = decide_create_topic(log.state, CreateTopic("t", 1), topic_id="id-2", leader_id=0, partitions_default=1)
    log.take(step)
    ended, now = [term for term in log.history().terms if term.topic == "t"]
    assert (ended.topic_id, ended.end) == ("id-1", deleted)
    assert (now.topic_id, now.end) == ("id-2", None)


def test_controllers_have_terms_in_the_metadata_topic(log: Log) -> None:
    log.elect(1, gone=[0])
    log.elect(1, "life-2")
    log.join(0, "life-2")
    log.elect(0, "life-2")
    assert log.told(topic="__cluster_metadata") == [
        (0, 0, 1, None),
        (0, 1, 2, "leader fenced"),
        (0, 1, 3, "restarted"),
        (0, 0, 4, None),
    ]


def test_brokers_show_where_their_life_was_registered_and_since_when_they_are_as_they_are(log: Log) -> None:
    first = log.history().brokers[1]
    fenced = log.fence(1)
    known = log.history().brokers[1]
    assert known.registered == first.registered is not None
    assert known.fencing_changed == fenced
    unfenced = log.unfence(1)
    assert log.history().brokers[1].fencing_changed == unfenced
    again = log.take(log.register(1, "life-2"))
    assert log.history().brokers[1].registered == log.history().brokers[1].fencing_changed == again


def test_broker_that_is_unregistered_is_not_shown(log: Log) -> None:
    log.fence(1)
    log.commit(BrokerUnregistered(1))
    assert log.history().brokers.keys() == {0}


def test_what_a_snapshot_has_cut_off_is_not_guessed(log: Log) -> None:
    log.create()
    log.fence(0)
    log.unfence(0)
    snapshot = len(log.commits)
    log.commit(*snapshot_of(log.state))
    back = log.take(decide_elect_leaders(log.state))
    kept = log.history(since=snapshot)
    assert kept.terms == (
        Term("t", "id-1", 0, 1, 1, None, None, back),
        Term("__cluster_metadata", None, 0, 0, 1, None, None),
        Term("t", "id-1", 0, 0, 2, back, log.history().terms[-1].reason),
    )
    assert [(one.registered, one.fencing_changed) for one in kept.brokers.values()] == [(None, None)] * 2
    assert kept.state == log.state


def test_snapshot_behind_its_history_takes_nothing_away(log: Log) -> None:
    log.create(partitions=2)
    log.fence(0)
    log.take(decide_reassign_partitions(log.state, {PARTITION: (1,)}))
    before = log.history()
    log.commit(*snapshot_of(log.state))
    assert log.history() == before


def test_snapshot_that_says_something_else_ends_what_it_does_not_say(log: Log) -> None:
    """A repair writes such a one."""
    log.create()
    other = apply_all(log.state, [LeaderChanged("t", "id-1", 0, 1, 5)])
    place = log.commit(*snapshot_of(other))
    now, before = [term for term in log.history().terms if term.topic == "t"]
    assert now == Term("t", "id-1", 0, 1, 5, None, None)
    assert (before.leader_epoch, before.end) == (0, place)


def test_root_of_one_broker_has_terms_of_its_restarts() -> None:
    log = Log()
    log.commit(BrokerRegistered(0, "h", 1), TopicCreated("t", "id-1", 1, 0))
    log.commit(BrokerRegistered(0, "h", 2), LeaderEpochsRaised(0))
    assert log.told() == [(0, 0, 0, "created"), (0, 0, 1, "restarted")]
    assert log.history().brokers[0].registered == LogPlace(2, 1_000)


def test_record_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError, match="record at offset 7 of the cluster metadata: expected a record of type"):
        read_history([LoggedRow(LogPlace(7, 0), 0, {"type": "Nonsense"})])


def test_life_that_only_a_snapshot_tells_of_has_no_place(log: Log) -> None:
    """A repair may give a broker another epoch."""
    other = apply_all(log.state, [BrokerStarted(1, "h", 1, None, "life", 9, 0, 1)])
    log.commit(*snapshot_of(other))
    known = log.history().brokers
    assert known[1].registered is None
    assert known[0].registered is not None
