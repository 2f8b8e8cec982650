"""Metadata that contradict themselves: what stays, what is given up, and what may never be given again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_mending import FoundTopic, Mended, mend_cluster
from bus.cluster_metadata.cluster_records import (
    AclAdded,
    AclRemoved,
    BrokerFenced,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ClientQuotaChanged,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    LeaderEpochsRaised,
    PartitionsAdded,
    ProducerExpired,
    ProducerIdsAllocated,
    ProducerNamed,
    ProducerUsed,
    ReplicasAssigned,
    SnapshotBegan,
    SnapshotEnded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    ViewCreated,
    ViewDeleted,
    apply_all,
    encode_record,
    replay_cluster,
    snapshot_of,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState, Leadership
from bus.cluster_metadata.producer_ids import PRODUCER_EPOCH_MAX, check_producer
from bus.errors import Refused
from bus.model import ProducerStamp

BROKER = BrokerRegistered(0, "a", 1)
IDS = ProducerIdsAllocated(0, 1000)
T = TopicCreated("t", "id-1", 2, 0)
LEVEL = FeatureLevel("bus.version", 1)
ACL = (
    '{"resource_type": "Topic", "resource_name": "orders", "pattern_type": "literal", "principal": "User:alice", '
    '"host": "*", "operation": "Read", "permission": "Allow"}'
)


def mend(*records: ClusterRecord | dict[str, Any], found: dict[str, FoundTopic] | None = None, ids: int = -1) -> Mended:
    rows = [record if isinstance(record, dict) else encode_record(record) for record in records]
    return mend_cluster(enumerate(rows, 10), found, producer_id_max=ids)


def tables(topic_id: str, *record_counts: int, epoch: int = -1) -> FoundTopic:
    return FoundTopic(topic_id, dict(enumerate(record_counts)), dict.fromkeys(range(len(record_counts)), epoch))


def may_write(state: ClusterState, producer_id: int, epoch: int) -> bool:
    return check_producer(state.producers, ProducerStamp(producer_id, epoch, 0)) is None


def test_log_that_replays_stays_as_it_is_whatever_the_tables_say() -> None:
    mended = mend(BROKER, T, found={"u": tables("id-9", 5)}, ids=70_000)
    assert mended == Mended(apply_all(EMPTY_CLUSTER, [BROKER, T]), [])


def test_of_two_topics_of_one_name_the_one_whose_tables_are_there_stays() -> None:
    second = TopicCreated("t", "id-2", 2, 0)
    for topic_id in ("id-1", "id-2"):
        mended = mend(BROKER, T, second, found={"t": tables(topic_id, 3, 0)})
        assert mended.state.topics["t"].topic_id == topic_id
        (contradiction,) = mended.contradictions
        assert contradiction.offset == 12
        assert "id-1" in contradiction.remedy
    assert mend(BROKER, T, second).state.topics["t"].topic_id == "id-1"


def test_topic_said_twice_is_one() -> None:
    mended = mend(BROKER, T, T)
    assert mended.state == apply_all(EMPTY_CLUSTER, [BROKER, T])
    assert mended.contradictions[0].remedy == "given up: it says the same again"


def test_topic_with_records_wins_over_an_empty_one_whose_name_collides() -> None:
    dots, dashes = TopicCreated("a.b", "id-1", 1, 0), TopicCreated("a_b", "id-2", 1, 0)
    full = {"a_b": tables("id-2", 5), "a.b": tables("id-1", 0)}
    assert [*mend(BROKER, dots, dashes, found=full).state.topics] == ["a_b"]
    both = {"a_b": tables("id-2", 5), "a.b": tables("id-1", 1)}
    assert [*mend(BROKER, dots, dashes, found=both).state.topics] == ["a.b"]


def test_name_with_two_ids_has_the_later_one_and_the_other_is_fenced() -> None:
    mended = mend(BROKER, IDS, ProducerNamed("p", 4, 0, -1), ProducerNamed("p", 5, 0, -1))
    assert may_write(mended.state, 5, 0)
    assert not may_write(mended.state, 4, 7)
    (contradiction,) = mended.contradictions
    assert "producer id of p went from 4 to 5" in contradiction.message
    assert contradiction.remedy == "the name has id 5, and id 4 may not write any more"


def test_epoch_that_goes_back_fences_all_that_may_have_it() -> None:
    mended = mend(BROKER, IDS, ProducerNamed("p", 4, 3, -1), ProducerNamed("p", 4, 3, -1))
    assert not may_write(mended.state, 4, 3)
    last = ProducerNamed("p", 4, PRODUCER_EPOCH_MAX, -1)
    mended = mend(BROKER, IDS, last, ProducerNamed("p", 4, 3, -1))
    assert not may_write(mended.state, 4, PRODUCER_EPOCH_MAX)
    assert mended.state.producers.by_name.get("p") is None


def test_id_of_two_names_is_neithers() -> None:
    mended = mend(BROKER, IDS, ProducerNamed("p", 4, 0, -1), ProducerNamed("q", 4, 0, -1))
    assert not may_write(mended.state, 4, 9)
    assert not mended.state.producers.by_name


def test_no_producer_id_is_given_again_that_was_spoken_of_or_lies_in_a_table() -> None:
    unreadable = {"type": "ProducerIdsAllocated", "broker_id": -1, "next_producer_id": 3000}
    assert mend(BROKER, IDS, unreadable).state.producers.next_producer_id >= 3000
    assert mend(BROKER, IDS, {"type": "?"}).state.producers.next_producer_id >= 2000
    assert mend(BROKER, IDS, {"type": "?"}, ids=4_711).state.producers.next_producer_id > 4_711
    assert mend(BROKER, IDS, ProducerNamed("p", 2_345, 0, -1)).state.producers.next_producer_id > 2_345
    assert mend(BROKER, ProducerIdsAllocated(0, 5000), IDS).state.producers.next_producer_id == 5000


def test_topic_whose_record_is_lost_comes_back_with_its_partitions_and_epochs() -> None:
    found = {"t": tables("id-1", 7, 0, 2, epoch=4), "empty": tables("id-2", 0), "gone": tables("id-3", 5)}
    mended = mend(
        BROKER,
        {"type": "TopicCreated", "topic": "t"},
        TopicCreated("gone", "id-3", 1, 0),
        TopicDeleted("gone", "id-3"),
        TopicFilesDeleted("id-3"),
        LeaderChanged("t", "id-1", 0, 0, 1),
        found=found,
    )
    assert [*mended.state.topics] == ["t"]
    assert mended.state.topics["t"].partitions == (Leadership(0, 4),) * 3
    assert "brought back with 3 partitions" in mended.contradictions[-1].remedy


def test_partitions_that_have_records_are_there_though_their_record_is_lost() -> None:
    mended = mend(BROKER, T, {"type": "PartitionsAdded"}, found={"t": tables("id-1", 1, 1, 1, 0)})
    assert len(mended.state.topics["t"].partitions) == 3
    mended = mend(BROKER, T, LeaderChanged("t", "id-1", 2, 0, 1), found={"t": tables("id-1", 1, 1, 0)})
    assert mended.state.topics["t"].partitions[2] == Leadership(0, 1)


def test_leader_that_is_not_registered_is_taken_over_from_at_the_next_start() -> None:
    mended = mend(T, LeaderEpochsRaised(0))
    assert mended.state.topics["t"].partitions == (Leadership(0, 1),) * 2
    assert mended.state.brokers[0].endpoint.host == "unknown"


@pytest.mark.parametrize(
    "record",
    [
        LeaderChanged("t", "id-1", 0, 0, 0),
        LeaderChanged("t", "id-1", 9, 0, 5),
        LeaderChanged("none", "id-1", 0, 0, 5),
        PartitionsAdded("t", "id-1", 2, 0),
        TopicConfigChanged("t", "id-0", "retention.ms", "1"),
        TopicDeleted("t", "id-0"),
        TopicFilesDeleted("id-0"),
        BrokerUnregistered(0),
        BrokerUnregistered(7),
        ViewDeleted("v"),
        ProducerUsed("p", 1),
        ProducerExpired("p", 1),
        SnapshotEnded(3),
        BrokerFenced(0, 1),
        BrokerUnfenced(7, 0),
        FeatureLevel("bus.version", 1),
        FeatureLevel("bus.version", 9),
        ClientQuotaChanged("no entity", '{"request_rate": 5.0}'),
        ClientQuotaChanged('{"user": "alice"}', "no quotas"),
        ClientQuotaChanged('{"user": "alice"}', None),
        ReplicasAssigned("t", "id-1", 0, 1, "0,7"),
        ReplicasAssigned("t", "id-1", 0, 1, "x"),
        {"type": "TopicMoved"},
        {"type": None},
    ],
)
def test_record_that_does_not_fit_costs_itself_alone(record: Any) -> None:
    before = [BROKER, IDS, T, ViewCreated("w", "t", "a INT", ""), LEVEL]
    mended = mend(*before, record, TopicCreated("u", "id-2", 1, 0))
    expected = apply_all(EMPTY_CLUSTER, [*before, TopicCreated("u", "id-2", 1, 0)])
    assert mended.state.topics == expected.topics
    assert mended.state.views == expected.views
    assert mended.state.brokers == expected.brokers
    if record != SnapshotEnded(3):  # without its beginning it says nothing
        assert [one.offset for one in mended.contradictions] == [15]


def test_level_that_is_lost_is_that_of_the_records() -> None:
    mended = mend(BROKER, BrokerStarted(1, "b", 2, None, "life", 3, 0, 1), BrokerUnfenced(1, 3))
    assert (mended.state.level, mended.state.unfenced_brokers) == (1, [0, 1])
    assert [one.remedy for one in mended.contradictions] == ["taken, and the level of bus.version is 1"]


def test_level_of_lists_that_is_lost_is_that_of_the_records_and_what_they_contradict_is_given_up() -> None:
    added, other = (AclAdded(ACL.replace("alice", name)) for name in ("alice", "bob"))
    mended = mend(BROKER, LEVEL, added, added, AclRemoved(other.acl), other, AclAdded("{}"))
    assert mended.state.level == 3
    assert [acl.principal for acl in mended.state.acls] == ["User:alice", "User:bob"]
    assert [(one.offset, one.remedy) for one in mended.contradictions] == [
        (12, "taken, and the level of bus.version is 3"),
        (13, "given up: what was known before stays"),
        (14, "given up: what was known before stays"),
        (16, "given up: what was known before stays"),
    ]


def test_broker_epoch_that_was_given_before_is_not_given_again() -> None:
    started = BrokerStarted(1, "b", 2, None, "life", 3, 0, 1)
    mended = mend(BROKER, LEVEL, started, BrokerStarted(0, "a", 1, None, "other", 3, 0, 1))
    assert mended.state.brokers[0].life == ("other", 4)
    assert [one.remedy for one in mended.contradictions] == ["broker 0 is registered, with broker epoch 4"]


NAMES = st.sampled_from(["t", "u", "a.b", "a_b"])
TOPIC_IDS = st.sampled_from(["id-1", "id-2", "id-3"])
SMALL = st.integers(0, 3)
ANY_RECORD = st.one_of(
    st.builds(BrokerRegistered, SMALL, st.just("h"), SMALL),
    st.builds(BrokerUnregistered, SMALL),
    st.just(LEVEL),
    st.builds(BrokerStarted, SMALL, st.just("h"), SMALL, st.just("r"), st.sampled_from("ab"), SMALL, SMALL, SMALL),
    st.builds(BrokerFenced, SMALL, SMALL),
    st.builds(BrokerUnfenced, SMALL, SMALL),
    st.builds(ControllerElected, SMALL, st.sampled_from("ab")),
    st.builds(ReplicasAssigned, NAMES, TOPIC_IDS, SMALL, SMALL, st.sampled_from(["0", "1,0", "0;1", "x"])),
    st.builds(TopicCreated, NAMES, TOPIC_IDS, SMALL, SMALL),
    st.builds(PartitionsAdded, NAMES, TOPIC_IDS, SMALL, SMALL),
    st.builds(LeaderChanged, NAMES, TOPIC_IDS, SMALL, SMALL, SMALL),
    st.builds(LeaderEpochsRaised, SMALL),
    st.builds(TopicDeleted, NAMES, TOPIC_IDS),
    st.builds(TopicFilesDeleted, TOPIC_IDS),
    st.builds(ProducerIdsAllocated, SMALL, st.sampled_from([1000, 2000, 2**63 - 1])),
    st.builds(ProducerNamed, NAMES, st.sampled_from([0, 1, 2, 5000]), st.sampled_from([0, 1, 32_767]), st.just(-1)),
    st.builds(ProducerExpired, NAMES, SMALL),
    st.builds(SnapshotBegan, SMALL),
    st.builds(SnapshotEnded, SMALL),
)
FOUND = st.dictionaries(
    NAMES,
    st.builds(
        FoundTopic,
        TOPIC_IDS,
        st.dictionaries(SMALL, SMALL, min_size=1),
        st.dictionaries(SMALL, st.integers(-1, 9)),
    ),
)


@settings(max_examples=settings.default.max_examples * 5 // 2)
@given(
    rows=st.lists(st.builds(encode_record, ANY_RECORD) | st.just({"type": "TopicMoved"}), max_size=25),
    found=FOUND,
    ids=st.sampled_from([-1, 7, 12_345]),
)
def test_whatever_the_log_says_what_is_mended_starts_and_gives_nothing_twice(
    rows: list[dict[str, Any]], found: dict[str, FoundTopic], ids: int
) -> None:
    mended = mend_cluster(enumerate(rows), found, producer_id_max=ids)
    state = mended.state
    if not mended.contradictions:
        assert replay_cluster(rows) == state
        return
    assert replay_cluster(encode_record(record) for record in snapshot_of(state)) == state
    assert state.producers.next_producer_id > min(ids, 2**63 - 2)
    for row in rows:
        if row["type"] == "ProducerNamed":
            stamp = ProducerStamp(row["producer_id"], row["producer_epoch"], 0)
            named = state.producers.by_name.get(row["producer_name"])
            is_current = named is not None and named.producer_id == row["producer_id"]
            assert is_current or isinstance(check_producer(state.producers, stamp), Refused | None)
