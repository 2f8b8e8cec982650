"""Any run of decisions about several brokers: who may lead, which epochs rise, and what a replay makes of it.

What may never happen is watched on the side, from the states alone: a leader that is not registered or is fenced while
another broker could lead, a leader that changes at the same epoch, a broker epoch that is given twice.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bus.cluster_metadata.broker_decisions import (
    BrokerSessions,
    RegisterBroker,
    decide_controlled_shutdown,
    decide_elect_controller,
    decide_fence_brokers,
    decide_register_broker,
    decide_unfence_broker,
    decide_unregister_broker,
    decide_upgrade_features,
)
from bus.cluster_metadata.cluster_decisions import (
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    decide_create_partitions,
    decide_create_topic,
    decide_delete_topic,
    decide_topic_files_deleted,
)
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_history import LoggedRow, LogPlace, Term, read_history
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    ControllerElected,
    FeatureLevel,
    ReplicasAssigned,
    apply_all,
    encode_record,
    replay_cluster,
    snapshot_of,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState, Leadership
from bus.cluster_metadata.partition_placement import decide_elect_leaders, decide_reassign_partitions
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint, Step, TopicPartition
from bus.settings.broker import BrokerConfig
from tests.support.cluster_states import partitions_led_by

BROKERS = st.integers(0, 4)
NAMES = st.sampled_from(["t", "u", "v"])
RACKS = st.sampled_from([None, "a", "b"])
NEW_TYPES = (BrokerStarted, BrokerFenced, BrokerUnfenced, ControllerElected, ReplicasAssigned)


class BrokersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state: ClusterState = EMPTY_CLUSTER
        self.rows: list[dict[str, Any]] = []
        self.since_snapshot: list[dict[str, Any]] = []
        self.lives: dict[int, str] = {}  # the incarnation in which each broker last asked for anything
        self.life_count = self.topic_count = 0
        self.broker_epochs: list[int] = []
        self.led: dict[tuple[str, int], Leadership] = {}
        self.elect(0, is_new=True, gone=[], rack=None)

    def take(self, step: Step[ClusterRecord, Any]) -> Any:
        if isinstance(step.response, Refused):
            assert step.records == ()
        self.commit(step.records)
        return step.response

    def commit(self, records: Sequence[ClusterRecord]) -> None:
        for record in records:
            assert self.state.level or not isinstance(record, NEW_TYPES), f"{record} at level 0"
            before = self.state.brokers.get(record.broker_id) if isinstance(record, BrokerStarted) else None
            if isinstance(record, BrokerStarted) and (before is None or before.incarnation != record.incarnation):
                assert record.broker_epoch > max(self.broker_epochs, default=0)
                self.broker_epochs.append(record.broker_epoch)
        self.state = apply_all(self.state, records)
        rows = [encode_record(record) for record in records]
        self.rows += rows
        self.since_snapshot += rows

    def life(self, broker_id: int, *, is_new: bool) -> str:
        if is_new or broker_id not in self.lives:
            self.life_count += 1
            self.lives[broker_id] = f"life-{self.life_count}"
        return self.lives[broker_id]

    # ------------------------------------------------------------------ brokers

    @rule()
    def upgrade(self) -> None:
        assert self.take(decide_upgrade_features(self.state, 1)) == 1

    @rule(broker_id=BROKERS, is_new=st.booleans(), gone=st.lists(BROKERS, max_size=4), rack=RACKS)
    def elect(self, broker_id: int, is_new: bool, gone: list[int], rack: str | None) -> None:
        before = self.state
        command = RegisterBroker(BrokerEndpoint(broker_id, "h", 1), self.life(broker_id, is_new=is_new), rack)
        elected = self.take(decide_elect_controller(self.state, command, gone_broker_ids=gone))
        assert elected.partitions == sum(1 for _ in partitions_led_by(self.state, broker_id))
        broker = self.state.brokers[broker_id]
        assert not broker.is_fenced
        if self.state.level:
            assert broker.life == (command.incarnation, elected.broker_epoch)
            assert self.state.brokers.keys() == before.brokers.keys() | {broker_id}
            assert not set(gone) & set(self.state.unfenced_brokers) - {broker_id}
        was = before.brokers.get(broker_id)
        if was is None or not was.incarnation or was.incarnation != command.incarnation:
            for partition in partitions_led_by(before, broker_id):
                now, old = self.state.leadership(partition), before.leadership(partition)
                assert now is not None
                assert old is not None
                assert now.leader_epoch == old.leader_epoch + 1, "an earlier life may still write"

    @rule(broker_id=BROKERS, is_new=st.booleans(), rack=RACKS, port=st.integers(0, 2))
    def register(self, broker_id: int, is_new: bool, rack: str | None, port: int) -> None:
        before, level = self.state.brokers.get(broker_id), self.state.level
        led = list(partitions_led_by(self.state, broker_id))
        old = self.state
        command = RegisterBroker(BrokerEndpoint(broker_id, "h", port), self.life(broker_id, is_new=is_new), rack)
        answer = self.take(decide_register_broker(self.state, command))
        is_same = before is not None and before.incarnation == command.incarnation
        may = level == 1 and port > 0
        assert isinstance(answer, int) == may, answer
        if not may:
            return
        now = self.state.brokers[broker_id]
        assert now.life == (command.incarnation, answer)
        assert (now.rack, now.endpoint.port) == (rack, port)
        assert now.is_fenced == (before is None or not is_same or before.is_fenced)
        if not is_same:
            assert all(self.epoch(partition) > self.epoch(partition, old) for partition in led)

    def epoch(self, partition: TopicPartition, state: ClusterState | None = None) -> int:
        leadership = (state or self.state).leadership(partition)
        assert leadership is not None
        return leadership.leader_epoch

    @rule(broker_id=BROKERS, is_stale=st.booleans())
    def unfence(self, broker_id: int, is_stale: bool) -> None:
        answer = self.take(decide_unfence_broker(self.state, broker_id, self.broker_epoch(broker_id, is_stale)))
        self.check_asked(broker_id, is_stale, answer)
        if answer is None:
            assert broker_id in self.state.unfenced_brokers

    @rule(broker_ids=st.lists(BROKERS, max_size=5), is_stale=st.booleans())
    def fence(self, broker_ids: list[int], is_stale: bool) -> None:
        before = self.state.unfenced_brokers
        epochs = {broker_id: self.broker_epoch(broker_id, is_stale) for broker_id in broker_ids}
        answer = self.take(decide_fence_brokers(self.state, epochs))
        if self.state.level:
            assert set(answer) == (set() if is_stale else set(broker_ids) & set(before))
            assert self.state.unfenced_brokers == [one for one in before if one not in answer]

    @rule(broker_id=BROKERS, is_stale=st.booleans())
    def shut_down(self, broker_id: int, is_stale: bool) -> None:
        answer = self.take(decide_controlled_shutdown(self.state, broker_id, self.broker_epoch(broker_id, is_stale)))
        self.check_asked(broker_id, is_stale, answer)
        if not isinstance(answer, Refused):
            assert answer.partitions_left == sum(1 for _ in partitions_led_by(self.state, broker_id))
            assert not answer.partitions_left or not set(self.state.unfenced_brokers) - {broker_id}

    def broker_epoch(self, broker_id: int, is_stale: bool) -> int:
        broker = self.state.brokers.get(broker_id)
        return (7 if broker is None else broker.broker_epoch) + (-1 if is_stale else 0)

    def check_asked(self, broker_id: int, is_stale: bool, answer: Any) -> None:
        code = answer.code if isinstance(answer, Refused) else None
        if not self.state.level:
            assert code is ErrorCode.UNSUPPORTED_VERSION
        elif broker_id not in self.state.brokers:
            assert code is ErrorCode.BROKER_ID_NOT_REGISTERED
        else:
            assert code is (ErrorCode.STALE_BROKER_EPOCH if is_stale else None)

    @rule(broker_id=BROKERS)
    def unregister(self, broker_id: int) -> None:
        answer = self.take(decide_unregister_broker(self.state, broker_id))
        if answer is None:
            assert broker_id not in self.state.brokers
            assert self.state.brokers
            assert self.state.controller is None or self.state.controller.broker_id != broker_id

    # ------------------------------------------------------------------ partitions

    @rule(name=NAMES, partitions=st.integers(1, 6))
    def create(self, name: str, partitions: int) -> None:
        self.topic_count += 1
        leader_id = next(iter(self.state.brokers))
        ids = {"topic_id": f"id-{self.topic_count}", "leader_id": leader_id, "partitions_default": 1}
        result = self.take(decide_create_topic(self.state, CreateTopic(name, partitions), **ids))  # type: ignore[arg-type]
        if not isinstance(result, Refused):
            self.check_new(name, 0, leader_id)

    @rule(name=NAMES, partitions=st.integers(2, 9))
    def add_partitions(self, name: str, partitions: int) -> None:
        leader_id = next(iter(self.state.brokers))
        topic = self.state.topics.get(name)
        step = decide_create_partitions(self.state, CreatePartitions(name, partitions), leader_id=leader_id)
        if not isinstance(self.take(step), Refused):
            assert topic is not None
            self.check_new(name, len(topic.partitions), leader_id)

    def check_new(self, name: str, first: int, leader_id: int) -> None:
        topic = self.state.topics[name]
        leaders = Counter(leadership.leader_id for leadership in topic.partitions[first:])
        if not self.state.level:
            assert leaders.keys() == {leader_id}
            assert topic.assignments == ()
            return
        could = self.state.unfenced_brokers or sorted(self.state.brokers)
        assert leaders.keys() <= set(could)
        for number in range(first, len(topic.partitions)):
            replicas = topic.replicas(number)
            assert replicas[0] == topic.partitions[number].leader_id
            assert set(replicas) <= set(could)
            if first == 0:
                assert len(replicas) == min(3, len(could))
                racks = {self.state.brokers[one].rack or one for one in could}
                assert len({self.state.brokers[one].rack or one for one in replicas}) == min(3, len(racks))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.take(decide_delete_topic(self.state, DeleteTopic(name)))

    @rule()
    def delete_files(self) -> None:
        for topic_id in list(self.state.deleted_topics):
            self.take(decide_topic_files_deleted(self.state, topic_id))

    @rule(asked=st.none() | st.lists(st.builds(TopicPartition, NAMES, st.integers(0, 5)), max_size=4))
    def elect_leaders(self, asked: list[TopicPartition] | None) -> None:
        before = self.state
        answers = self.take(decide_elect_leaders(self.state, asked))
        for partition, answer in answers.items():
            if isinstance(answer, Refused):
                assert self.state.leadership(partition) == before.leadership(partition)
            else:
                assert answer == self.state.topics[partition.topic].replicas(partition.partition)[0]
        if asked is None:
            again = decide_elect_leaders(self.state)
            assert again == Step({})

    @rule(
        assignments=st.dictionaries(
            st.builds(TopicPartition, NAMES, st.integers(0, 3)),
            st.none() | st.lists(BROKERS, max_size=4).map(tuple),
            max_size=3,
        )
    )
    def reassign(self, assignments: dict[TopicPartition, tuple[int, ...] | None]) -> None:
        answers = self.take(decide_reassign_partitions(self.state, assignments))
        assert answers.keys() == assignments.keys()
        for partition, answer in answers.items():
            replicas = assignments[partition]
            may = (
                self.state.level == 1
                and self.state.leadership(partition) is not None
                and bool(replicas)
                and len(set(replicas or ())) == len(replicas or ())
                and set(replicas or ()) <= self.state.brokers.keys()
            )
            assert isinstance(answer, Refused) != may
            if not isinstance(answer, Refused):
                assert self.state.topics[partition.topic].replicas(partition.partition) == replicas

    @rule()
    def write_snapshot(self) -> None:
        snapshot = [encode_record(record) for record in snapshot_of(self.state)]
        self.rows += snapshot
        self.since_snapshot = snapshot

    def teardown(self) -> None:
        """The history in the log ends in the present state, and goes back without a gap to what the log still has."""
        for rows in (self.rows, self.since_snapshot):
            logged = [LoggedRow(LogPlace(offset, offset), 1, row) for offset, row in enumerate(rows)]
            history = read_history(logged)
            assert history.state == self.state
            assert history.brokers.keys() == self.state.brokers.keys()
            led: dict[tuple[str, int], list[Term]] = {}
            for term in history.terms:
                if term.topic_id is not None:
                    led.setdefault((term.topic_id, term.partition), []).append(term)
            for terms in led.values():
                assert all(one.end == two.begin for one, two in itertools.pairwise(terms))
                assert all(one.leader_epoch < two.leader_epoch for one, two in itertools.pairwise(terms))
            now = {
                key: (terms[-1].leader_id, terms[-1].leader_epoch) for key, terms in led.items() if not terms[-1].end
            }
            assert now == {
                (topic.topic_id, number): (leadership.leader_id, leadership.leader_epoch)
                for topic in self.state.topics.values()
                for number, leadership in enumerate(topic.partitions)
            }

    # ------------------------------------------------------------------ what holds always

    @invariant()
    def replay_is_the_live_state_from_the_beginning_and_from_the_snapshot(self) -> None:
        assert replay_cluster(self.rows) == self.state
        assert replay_cluster(self.since_snapshot) == self.state
        assert apply_all(EMPTY_CLUSTER, snapshot_of(self.state)) == self.state

    @invariant()
    def leaders_are_registered_and_unfenced_if_any_broker_is(self) -> None:
        for topic in self.state.topics.values():
            for leadership in topic.partitions:
                assert leadership.leader_id in self.state.brokers
                assert leadership.leader_id in (self.state.unfenced_brokers or self.state.brokers)

    @invariant()
    def leader_epochs_rise_with_each_change_of_leader(self) -> None:
        for topic in self.state.topics.values():
            for number, now in enumerate(topic.partitions):
                before = self.led.get((topic.topic_id, number), now)
                assert now == before or now.leader_epoch > before.leader_epoch
                self.led[topic.topic_id, number] = now

    @invariant()
    def replicas_are_registered_and_no_broker_is_one_twice(self) -> None:
        for topic in self.state.topics.values():
            assert len(topic.assignments) in (0, len(topic.partitions))
            for number in range(len(topic.partitions)):
                replicas = topic.replicas(number)
                assert replicas
                assert set(replicas) <= self.state.brokers.keys()
                assert len(set(replicas)) == len(replicas)

    @invariant()
    def leaders_are_counted(self) -> None:
        led = [one.leader_id for topic in self.state.topics.values() for one in topic.partitions]
        assert self.state.leader_counts == Counter(led)
        preferred = [
            topic.replicas(number)[0] for topic in self.state.topics.values() for number in range(len(topic.partitions))
        ]
        assert self.state.preferred_counts == Counter(preferred)


TestBrokersMachine = BrokersMachine.TestCase
TestBrokersMachine.settings = settings(max_examples=settings.default.max_examples * 3 // 2, stateful_step_count=40)


@settings(max_examples=2 * settings.default.max_examples)
@given(gaps=st.lists(st.sampled_from([1, 250, 500, 510, 1_900, 2_100, 100_000]), max_size=30))
def test_controller_that_stalls_fences_the_silent_broker_and_no_other(gaps: list[int]) -> None:
    """Each time the controller wakes it checks before it reads what brokers have sent meanwhile."""
    config = BrokerConfig(broker_heartbeat_interval_ms=500, broker_session_timeout_ms=2_000)
    started = [BrokerStarted(one, "h", 1, None, "life", one + 1, 0, 1) for one in range(3)]
    unfenced = [BrokerUnfenced(one, one + 1) for one in range(3)]
    state = apply_all(EMPTY_CLUSTER, [FeatureLevel("bus.version", 1), *started, *unfenced])
    sessions = BrokerSessions(state, config, controller_id=0, end_offset=0, now_ms=0)
    now_ms = awake_ms = 0
    for gap in gaps:
        now_ms += gap
        awake_ms += min(gap, 500)
        assert sessions.check(state, now_ms) == ({2: 3} if awake_ms >= 2_000 else {})
        assert sessions.heartbeat(state, 1, 2, "life", applied_offset=0, end_offset=0, now_ms=now_ms) is None
