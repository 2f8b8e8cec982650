"""Any run of commands on the cluster: replay equals the live state, which equals a naive model; nothing goes back.

The model keeps topics as plain dicts and knows no records; what the machine may never do (an epoch that does not grow,
an id used again) is watched on the side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bus.cluster_metadata.broker_decisions import RegisterBroker, decide_elect_controller
from bus.cluster_metadata.cluster_decisions import (
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    TopicResult,
    TopicStep,
    decide_alter_topic_configs,
    decide_create_partitions,
    decide_create_topic,
    decide_delete_topic,
    decide_topic_files_deleted,
)
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    LeadersChanged,
    PartitionsAdded,
    ProducerExpired,
    ProducerIdsAllocated,
    ProducerIdsRetired,
    ProducerNamed,
    ProducerUsed,
    ReplicasAssigned,
    SnapshotBegan,
    SnapshotEnded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    apply,
    apply_all,
    decode_record,
    encode_record,
    replay_cluster,
    snapshot_of,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.cluster_metadata.configs import AlterOperation, ConfigOperation, check_not_internal, check_topic_name
from bus.cluster_metadata.producer_decisions import InitProducer, decide_allocate_producer_ids, decide_init_producer
from bus.cluster_metadata.producer_ids import PRODUCER_EPOCH_MAX, ProducerIdentity, check_producer
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint, ProducerStamp
from tests.support.cluster_states import partitions_led_by, topic_by_id

GOOD_NAMES = st.sampled_from(["orders", "a.b", "a_b"])
NAMES = GOOD_NAMES | st.sampled_from(["__internal", "no good", ""])
PARTITIONS = st.integers(-2, 5)
GOOD_CONFIGS = st.dictionaries(st.sampled_from(["retention.ms", "commit.burst"]), st.sampled_from(["1", "7"]))
CONFIGS = GOOD_CONFIGS | st.sampled_from([{"no.such": "1"}, {"retention.ms": "-5"}])
OPERATIONS = st.lists(
    st.builds(
        ConfigOperation,
        st.sampled_from(["retention.ms", "commit.burst", "cleanup.policy"]),
        st.sampled_from(AlterOperation),
        st.sampled_from(["1", "7", "compact", "delete", ""]),
    ),
    max_size=3,
)
BROKER_IDS = st.integers(0, 2)
PRODUCER_NAMES = st.sampled_from(["billing", "audit", "no good"])


class ClusterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state: ClusterState = EMPTY_CLUSTER
        self.rows: list[dict[str, Any]] = []
        self.partitions: dict[str, int] = {}  # the model: topic -> partition count ...
        self.configs: dict[str, dict[str, str]] = {}  # ... and overrides
        self.files: set[str] = set()  # ids of deleted topics whose files are there
        self.ids: dict[str, str] = {}  # every id ever used -> its topic
        self.epochs: dict[tuple[str, int], int] = {}
        self.leader_id = 0
        self.ids_left: list[int] = []  # of the blocks that were given, in any order
        self.ids_given: set[int] = set()
        self.raised_by_itself: set[str] = set()  # names whose newest identity went to the one that had the one before
        self.instances: dict[str, list[ProducerIdentity]] = {}  # name -> every identity it was given, in order

    def commit(self, records: Sequence[ClusterRecord]) -> None:
        for record in records:
            self.state = apply(self.state, record)
            self.rows.append(encode_record(record))

    def take(self, step: TopicStep) -> TopicResult | None:
        self.commit(step.records)
        if isinstance(step.response, Refused):
            assert step.records == ()
            assert step.response.code is not ErrorCode.NONE
            return None
        return step.response

    @initialize(broker_id=BROKER_IDS, partitions=st.integers(1, 3))
    def start_first(self, broker_id: int, partitions: int) -> None:
        self.start(broker_id, takes_over=False)
        self.create_rightly("orders", partitions, {})

    @rule(broker_id=BROKER_IDS, takes_over=st.booleans())
    def start(self, broker_id: int, takes_over: bool) -> None:
        gone = list(self.state.brokers) if takes_over else []
        led = sum(1 for _ in partitions_led_by(self.state, broker_id))
        epochs = {topic.topic_id: topic.partitions for topic in self.state.topics.values()}
        step = decide_elect_controller(
            self.state, RegisterBroker(BrokerEndpoint(broker_id, "host", 1), "life"), gone_broker_ids=gone
        )
        self.commit(step.records)
        for topic in self.state.topics.values():
            for before, after in zip(epochs[topic.topic_id], topic.partitions, strict=True):
                is_new = after.leader_id == broker_id
                assert after.leader_epoch == before.leader_epoch + (1 if is_new else 0)
        self.leader_id = broker_id
        assert step.response.partitions == (sum(self.partitions.values()) if takes_over else led)
        if takes_over:
            assert self.state.brokers.keys() == {broker_id}

    @rule(name=GOOD_NAMES, partitions=st.integers(0, 3), configs=GOOD_CONFIGS)
    def create_rightly(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        self.create(name, partitions, configs, validate_only=False)

    @rule(name=NAMES, partitions=PARTITIONS, configs=CONFIGS, validate_only=st.booleans())
    def create(self, name: str, partitions: int, configs: dict[str, str], validate_only: bool) -> None:
        topic_id = f"id-{len(self.ids)}"
        step = decide_create_topic(
            self.state,
            CreateTopic(name, partitions, configs, validate_only),
            topic_id=topic_id,
            leader_id=self.leader_id,
            partitions_default=3,
        )
        is_free = not any(name.replace(".", "_") == other.replace(".", "_") for other in self.partitions)
        is_named_well = check_topic_name(name) is None and check_not_internal(name) is None
        is_config_right = "no.such" not in configs and "-5" not in configs.values()
        may_be = is_free and is_named_well and is_config_right and partitions != -2
        result = self.take(step)
        assert (result is not None) == may_be
        if result is None or validate_only:
            return
        self.ids[topic_id] = name
        self.partitions[name] = 3 if partitions in (-1, 0) else partitions
        self.configs[name] = configs
        assert (result.topic_id, result.partitions) == (topic_id, self.partitions[name])

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        result = self.take(decide_delete_topic(self.state, DeleteTopic(name)))
        assert (result is not None) == (name in self.partitions)
        if result is not None:
            del self.partitions[name], self.configs[name]
            self.files.add(result.topic_id)

    @rule(place=st.integers(0, 9))
    def delete_files(self, place: int) -> None:
        topic_id = f"id-{place}"
        self.commit(decide_topic_files_deleted(self.state, topic_id).records)
        self.files.discard(topic_id)

    @rule(name=GOOD_NAMES, partitions=PARTITIONS, validate_only=st.booleans())
    def add_partitions(self, name: str, partitions: int, validate_only: bool) -> None:
        command = CreatePartitions(name, partitions, validate_only)
        before = self.state.topics[name].partitions if name in self.state.topics else ()
        result = self.take(decide_create_partitions(self.state, command, leader_id=self.leader_id))
        after = self.state.topics[name].partitions if name in self.state.topics else ()
        assert after[: len(before)] == before
        assert (result is not None) == (name in self.partitions and partitions > self.partitions[name])
        if result is not None and not validate_only:
            self.partitions[name] = partitions

    @rule(name=GOOD_NAMES, operations=OPERATIONS, validate_only=st.booleans())
    def alter(self, name: str, operations: list[ConfigOperation], validate_only: bool) -> None:
        command = AlterTopicConfigs(name, operations, validate_only)
        result = self.take(decide_alter_topic_configs(self.state, command))
        if result is not None and not validate_only:
            self.configs[name] = dict(result.configs)

    @rule()
    def allocate_producer_ids(self) -> None:
        step = decide_allocate_producer_ids(self.state, broker_id=self.leader_id)
        self.commit(step.records)
        assert self.ids_given.isdisjoint(step.response), "an id is given twice"
        self.ids_given.update(step.response)
        self.ids_left = list(step.response)  # what was left of the block before is lost, as by a crash

    @rule(name=PRODUCER_NAMES, data=st.data())
    def init_producer(self, name: str, data: st.DataObject) -> None:
        known = self.instances.get(name, [])
        others = [identity for identities in self.instances.values() for identity in identities]
        current = data.draw(st.none() | st.sampled_from([*others, ProducerIdentity(5, 0)]))
        if not self.ids_left:
            return
        new_id = None if known else self.ids_left.pop()
        step = decide_init_producer(self.state, InitProducer(name, current), new_producer_id=new_id)
        self.commit(step.records)
        # Who may: a new instance always, one that has an identity only if nobody else got one since.
        is_repeat = len(known) > 1 and current == known[-2] and name in self.raised_by_itself
        may = name != "no good" and (current is None or (bool(known) and (current == known[-1] or is_repeat)))
        assert isinstance(step.response, ProducerIdentity) == may, step.response
        if not isinstance(step.response, ProducerIdentity):
            assert step.records == ()
            return
        if is_repeat:
            assert (step.response, step.records) == (known[-1], ())
            return
        expected = ProducerIdentity(known[-1].producer_id, known[-1].producer_epoch + 1) if known else None
        assert step.response == (expected or ProducerIdentity(new_id or 0, 0))
        self.instances.setdefault(name, []).append(step.response)
        (self.raised_by_itself.add if current is not None else self.raised_by_itself.discard)(name)

    @rule()
    def write_snapshot(self) -> None:
        """It follows what was there; what was before it may be gone already, or not yet."""
        self.rows += [encode_record(record) for record in snapshot_of(self.state)]
        assert replay_cluster(self.rows) == self.state
        self.rows = self.rows[-(len(snapshot_of(self.state))) :]

    @rule(name=PRODUCER_NAMES)
    def expire(self, name: str) -> None:
        named = self.state.producers.by_name.get(name)
        if named is None:
            return
        records = [ProducerUsed(name, 5), ProducerExpired(name, named.producer_id)]
        self.commit(records)
        for identity in self.instances.pop(name):
            refused = check_producer(self.state.producers, ProducerStamp(identity.producer_id, 32_767, 0))
            assert refused is not None
            assert refused.code is ErrorCode.PRODUCER_FENCED

    @invariant()
    def state_is_its_snapshot(self) -> None:
        assert apply_all(EMPTY_CLUSTER, snapshot_of(self.state)) == self.state

    @invariant()
    def only_the_newest_identity_of_a_name_may_write(self) -> None:
        for identities in self.instances.values():
            *older, newest = (ProducerStamp(one.producer_id, one.producer_epoch, 0) for one in identities)
            assert check_producer(self.state.producers, newest) is None
            for stamp in older:
                refused = check_producer(self.state.producers, stamp)
                assert refused is not None
                assert refused.code is ErrorCode.PRODUCER_FENCED
        never_given = ProducerStamp(max(self.ids_given, default=-1) + 1, 0, 0)
        refused = check_producer(self.state.producers, never_given)
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert all(check_producer(self.state.producers, ProducerStamp(one, 7, 0)) is None for one in self.ids_left[:2])

    @invariant()
    def replay_is_the_live_state(self) -> None:
        assert replay_cluster(self.rows) == self.state

    @invariant()
    def live_state_is_the_model(self) -> None:
        topics = self.state.topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == self.partitions
        assert {name: topic.configs for name, topic in topics.items()} == self.configs
        assert self.state.deleted_topics.keys() == self.files

    @invariant()
    def indexes_follow_from_the_topics(self) -> None:
        topics = self.state.topics
        assert self.state.topic_names == {topic.topic_id: name for name, topic in topics.items()}
        assert self.state.collisions == {name.replace(".", "_"): name for name in topics}
        assert all(topic_by_id(self.state, topic.topic_id) is topic for topic in topics.values())

    @invariant()
    def id_stands_for_one_topic_for_ever(self) -> None:
        for topic_id, name in (*self.state.topic_names.items(), *self.state.deleted_topics.items()):
            assert self.ids[topic_id] == name

    @invariant()
    def epochs_never_go_back_and_every_leader_is_registered(self) -> None:
        for topic in self.state.topics.values():
            for number, leadership in enumerate(topic.partitions):
                assert leadership.leader_id in self.state.brokers
                place = (topic.topic_id, number)
                assert leadership.leader_epoch >= self.epochs.get(place, 0)
                self.epochs[place] = leadership.leader_epoch


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(max_examples=settings.default.max_examples * 6 // 5, stateful_step_count=30)

TEXT = st.text(max_size=12)
NUMBERS = st.integers(0, 2**31 - 1)
RECORDS = st.one_of(
    st.builds(BrokerRegistered, NUMBERS, TEXT, NUMBERS),
    st.builds(BrokerUnregistered, NUMBERS),
    st.builds(TopicCreated, TEXT, TEXT, NUMBERS, NUMBERS),
    st.builds(PartitionsAdded, TEXT, TEXT, NUMBERS, NUMBERS),
    st.builds(LeaderChanged, TEXT, TEXT, NUMBERS, NUMBERS, NUMBERS),
    st.builds(TopicConfigChanged, TEXT, TEXT, TEXT, st.none() | TEXT),
    st.builds(TopicDeleted, TEXT, TEXT),
    st.builds(TopicFilesDeleted, TEXT),
    st.builds(LeadersChanged, TEXT, TEXT, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(BrokerStarted, NUMBERS, TEXT, NUMBERS, st.none() | TEXT, TEXT, NUMBERS, NUMBERS, NUMBERS),
    st.builds(BrokerFenced, NUMBERS, NUMBERS),
    st.builds(BrokerUnfenced, NUMBERS, NUMBERS),
    st.builds(ControllerElected, NUMBERS, TEXT),
    st.builds(ReplicasAssigned, TEXT, TEXT, NUMBERS, NUMBERS, TEXT),
    st.builds(FeatureLevel, TEXT, NUMBERS),
    st.builds(ProducerUsed, TEXT, st.integers(0, 2**63 - 1)),
    st.builds(ProducerExpired, TEXT, st.integers(0, 2**63 - 1)),
    st.builds(ProducerIdsRetired, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    st.builds(SnapshotBegan, st.integers(0, 2**63 - 1)),
    st.builds(SnapshotEnded, st.integers(0, 2**63 - 1)),
    st.builds(ProducerIdsAllocated, NUMBERS, st.integers(0, 2**63 - 1)),
    st.builds(
        ProducerNamed,
        TEXT,
        st.integers(0, 2**63 - 1),
        st.integers(0, PRODUCER_EPOCH_MAX),
        st.integers(-1, PRODUCER_EPOCH_MAX),
    ),
)


@settings(max_examples=2 * settings.default.max_examples)
@given(record=RECORDS)
def test_every_record_is_read_back_as_it_was_written(record: ClusterRecord) -> None:
    assert decode_record(encode_record(record)) == record


@settings(max_examples=2 * settings.default.max_examples)
@given(
    row=st.dictionaries(
        st.sampled_from(["type", "topic", "topic_id", "partition", "broker_id", "config_name"]),
        st.sampled_from(["TopicCreated", "LeaderChanged", "TopicDeleted", "x"]) | st.integers() | st.none(),
    )
)
def test_row_from_anywhere_is_read_or_refused_but_nothing_else(row: dict[str, Any]) -> None:
    try:
        record = decode_record(row)
    except ValueError:
        return
    assert encode_record(record).items() <= row.items()
