"""Placement of partitions: leaders and replicas of new partitions, successors of leaders that have to go, and changes
by administrators.

Guards these promises: replicas are registered brokers, none of them twice; a leader is registered, and unfenced if any
broker is; new leaders are spread evenly, and the replicas of a partition over as many racks as there are. No bytes
move: any broker may lead any partition, so an assignment is one record, and counts at once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import LeaderChanged, LeadersChanged, PartitionsAdded, TopicCreated
from bus.cluster_metadata.cluster_state import BUS_VERSION, LEVEL_OF_CLUSTERS, ClusterState, Leadership, Topic
from bus.cluster_metadata.topic_records import assign_replicas
from bus.errors import ErrorCode, Refused, show_names
from bus.model import Step, TopicPartition

MIN_INSYNC_REPLICAS = "min.insync.replicas"
# New leaders and their epochs, by partition number.
_Moves = Mapping[int, Leadership]


# ------------------------------------------------------------------ new partitions


def place_topic(
    state: ClusterState,
    name: str,
    topic_id: str,
    partitions: int,
    *,
    leader_id: int,
    replication_factor: int,
    may_be_fenced: bool = False,
) -> list[ClusterRecord]:
    """The records of a new topic. Each partition has `replication_factor` replicas, or as many as there are unfenced
    brokers; if it `may_be_fenced`, fenced ones fill up the number. At level 0 `leader_id` leads all."""
    if state.level < LEVEL_OF_CLUSTERS:
        return [TopicCreated(name, topic_id, partitions, leader_id)]
    lists = _place(state, partitions, replication_factor, may_be_fenced=may_be_fenced)
    created = TopicCreated(name, topic_id, partitions, lists[0][0])
    return [created, *_placed(name, topic_id, 0, lists, [replicas[0] for replicas in lists])]


def check_replica_assignment(
    state: ClusterState, name: str, lists: Sequence[Sequence[int]], *, first: int = 0
) -> Refused | None:
    """Check that new partitions, from number `first` on, may have these replicas: different registered brokers, as many
    for each partition, one of them unfenced. Refused: INVALID_REPLICA_ASSIGNMENT, UNSUPPORTED_VERSION (level 0)."""
    if state.level < LEVEL_OF_CLUSTERS:
        return refuse_level(state, "replicas")
    for number, replicas in enumerate(lists, first):
        partition = TopicPartition(name, number)
        refused = _check_brokers(state, partition, replicas)
        if refused is not None:
            return refused
        if len(replicas) != len(lists[0]):
            expected = f"expected {len(lists[0])} replicas as for partition {first}"
        elif all(state.brokers[broker_id].is_fenced for broker_id in replicas):
            expected = "expected a replica that is not fenced"
        else:
            continue
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{partition}: {expected}, found {_show(replicas)}")
    return None


def place_topic_as_assigned(
    state: ClusterState, name: str, topic_id: str, lists: Sequence[Sequence[int]]
) -> list[ClusterRecord]:
    """The records of a new topic whose replicas have been checked. A partition is led by its first unfenced replica."""
    leaders = _first_unfenced(state, lists)
    created = TopicCreated(name, topic_id, len(lists), leaders[0])
    return [created, *_placed(name, topic_id, 0, lists, leaders)]


def place_partitions(
    state: ClusterState, topic: Topic, partitions: int, *, leader_id: int, replication_factor: int
) -> list[ClusterRecord]:
    """The same for a topic that is to have `partitions` in all. They get as many replicas as the first one has."""
    first = len(topic.partitions)
    if state.level < LEVEL_OF_CLUSTERS:
        return [PartitionsAdded(topic.name, topic.topic_id, partitions, leader_id)]
    if topic.assignments and topic.assignments[0]:
        replication_factor = len(topic.assignments[0])
    lists = _place(state, partitions - first, replication_factor)
    added = PartitionsAdded(topic.name, topic.topic_id, partitions, lists[0][0])
    return [added, *_placed(topic.name, topic.topic_id, first, lists, [replicas[0] for replicas in lists])]


def place_partitions_as_assigned(
    state: ClusterState, topic: Topic, lists: Sequence[Sequence[int]]
) -> list[ClusterRecord]:
    """The same for replicas that have been checked. A partition is led by its first unfenced replica."""
    first = len(topic.partitions)
    leaders = _first_unfenced(state, lists)
    added = PartitionsAdded(topic.name, topic.topic_id, first + len(lists), leaders[0])
    return [added, *_placed(topic.name, topic.topic_id, first, lists, leaders)]


def _first_unfenced(state: ClusterState, lists: Sequence[Sequence[int]]) -> list[int]:
    return [next(one for one in replicas if not state.brokers[one].is_fenced) for replicas in lists]


def _placed(
    name: str, topic_id: str, first: int, lists: Sequence[Sequence[int]], leaders: Sequence[int]
) -> Iterator[ClusterRecord]:
    """All are led by the leader of the first one so far, at epoch 0."""
    moves = {
        first + place: Leadership(leader_id, 1) for place, leader_id in enumerate(leaders) if leader_id != leaders[0]
    }
    yield from _leader_records(name, topic_id, moves)
    yield assign_replicas(name, topic_id, first, lists)


def _place(
    state: ClusterState, count: int, replication_factor: int, *, may_be_fenced: bool = False
) -> list[tuple[int, ...]]:
    """Replicas of `count` new partitions, leaders first. The broker that is the preferred leader of the fewest leads
    next: one that came back a moment ago leads little, and has its partitions again soon. Its followers are the
    brokers behind it in an order that takes the racks in turn; each partition of a leader begins one further, so that
    its partitions are spread over all others when it fails."""
    racks = _racks(state)
    ring = _in_turns(state.unfenced_brokers or sorted(state.brokers), racks)
    fenced = _in_turns(sorted(state.brokers.keys() - set(ring)), racks) if may_be_fenced else []
    size = min(replication_factor, len(ring) + len(fenced))
    counts = Counter({broker_id: state.preferred_counts.get(broker_id, 0) for broker_id in ring})
    places = {broker_id: place for place, broker_id in enumerate(ring)}
    lists = []
    for _ in range(count):
        leader_id = min(ring, key=lambda broker_id: (counts[broker_id], places[broker_id]))
        others = ring[places[leader_id] + 1 :] + ring[: places[leader_id]]
        shift = counts[leader_id] % max(1, len(others))
        chosen = _followers(leader_id, others[shift:] + others[:shift], min(size, len(ring)) - 1, racks)
        lists.append((leader_id, *chosen, *fenced[: size - 1 - len(chosen)]))
        counts[leader_id] += 1
    return lists


def _followers(leader_id: int, others: Sequence[int], count: int, racks: Mapping[int, str]) -> list[int]:
    """The first ones of racks that the partition has not, then the first ones of the others."""
    chosen: list[int] = []
    used = {racks[leader_id]}
    for broker_id in others:
        if len(chosen) < count and racks[broker_id] not in used:
            used.add(racks[broker_id])
            chosen.append(broker_id)
    rest = [broker_id for broker_id in others if broker_id not in chosen]
    return chosen + rest[: count - len(chosen)]


def _racks(state: ClusterState) -> dict[int, str]:
    """A broker without a rack is alone in one."""
    return {
        broker_id: f"broker {broker_id}" if broker.rack is None else f"rack {broker.rack}"
        for broker_id, broker in state.brokers.items()
    }


def _in_turns(broker_ids: Sequence[int], racks: Mapping[int, str]) -> list[int]:
    """One broker of each rack, then the second one of each, and so on."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in broker_ids:
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    turns = itertools.zip_longest(*by_rack.values())
    return [broker_id for turn in turns for broker_id in turn if broker_id is not None]


# ------------------------------------------------------------------ leaders that have to move


def move_leaders(
    state: ClusterState, leaving: Collection[int], unfenced: Sequence[int], *, count_max: int | None = None
) -> list[ClusterRecord]:
    """Each partition that a broker of `leaving` leads, `count_max` of them at most, goes to its first replica in
    `unfenced`, else to the broker of `unfenced` that leads least. `unfenced` is not empty and has none of `leaving`."""
    if not any(state.leader_counts.get(broker_id) for broker_id in leaving):
        return []
    counts = Counter({broker_id: state.leader_counts.get(broker_id, 0) for broker_id in unfenced})
    records: list[ClusterRecord] = []
    left = sum(state.leader_counts.get(broker_id, 0) for broker_id in leaving) if count_max is None else count_max
    for topic in state.topics.values():
        moves: dict[int, Leadership] = {}
        for number, leadership in enumerate(topic.partitions):
            if leadership.leader_id in leaving and len(moves) < left:
                replica = next((one for one in topic.replicas(number) if one in counts), None)
                leader_id = min(unfenced, key=lambda one: (counts[one], one)) if replica is None else replica
                counts[leader_id] += 1
                moves[number] = Leadership(leader_id, leadership.leader_epoch + 1)
        records += _leader_records(topic.name, topic.topic_id, moves)
        left -= len(moves)
        if not left:
            break
    return records


def count_moved(records: Iterable[ClusterRecord], *, to: int) -> int:
    """How many partitions the records give to a broker."""
    return sum(
        record.partitions if isinstance(record, LeadersChanged) else 1
        for record in records
        if isinstance(record, LeaderChanged | LeadersChanged) and record.leader_id == to
    )


def _leader_records(name: str, topic_id: str, moves: _Moves) -> Iterator[ClusterRecord]:
    """Neighbours that get the same leader and epoch are one record. `moves` ascend."""
    for (_, leadership), run in itertools.groupby(
        enumerate(moves.items()), key=lambda one: (one[1][0] - one[0], one[1][1])
    ):
        numbers = [number for _, (number, _) in run]
        leader_id, epoch = leadership.leader_id, leadership.leader_epoch
        if len(numbers) == 1:
            yield LeaderChanged(name, topic_id, numbers[0], leader_id, epoch)
        else:
            yield LeadersChanged(name, topic_id, numbers[0], len(numbers), leader_id, epoch)


# ------------------------------------------------------------------ what administrators ask for

# partition -> its leader now, or the reason why it is unchanged
ElectionStep = Step[ClusterRecord, Mapping[TopicPartition, int | Refused]]
# partition -> its replicas now, or the reason why they are unchanged
ReassignmentStep = Step[ClusterRecord, Mapping[TopicPartition, Sequence[int] | Refused]]


def decide_elect_leaders(
    state: ClusterState, partitions: Collection[TopicPartition] | None = None, *, changes_max: int | None = None
) -> ElectionStep:
    """Lets preferred leaders lead (KIP-460). None: wherever another broker leads and the preferred leader is unfenced,
    `changes_max` partitions at most; the answer has those that change, and no others.

    Refused, each by itself: UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED (the preferred leader leads),
    PREFERRED_LEADER_NOT_AVAILABLE (it is fenced).
    """
    requested = _all_partitions(state) if partitions is None else dict.fromkeys(partitions)
    answers: dict[TopicPartition, int | Refused] = {}
    changes: list[tuple[TopicPartition, Leadership]] = []
    for partition in requested:
        elected = _elect_preferred(state, partition)
        if isinstance(elected, Leadership):
            changes.append((partition, elected))
            answers[partition] = elected.leader_id
            if len(changes) == changes_max:
                break
        elif partitions is not None:
            answers[partition] = elected
    return Step(answers, tuple(_records_of(state, changes)))


def find_imbalance(state: ClusterState, percentage: int) -> list[TopicPartition]:
    """Return the partitions that their preferred leader does not lead, for those unfenced brokers that do not lead more
    than `percentage` of the partitions for which they are preferred."""
    preferred: Counter[int] = Counter()
    away: dict[int, list[TopicPartition]] = {}
    for topic in state.topics.values():
        for number, leadership in enumerate(topic.partitions):
            broker_id = topic.replicas(number)[0]
            preferred[broker_id] += 1
            if leadership.leader_id != broker_id:
                away.setdefault(broker_id, []).append(TopicPartition(topic.name, number))
    return [
        partition
        for broker_id, partitions in away.items()
        if not state.brokers[broker_id].is_fenced and 100 * len(partitions) > percentage * preferred[broker_id]
        for partition in partitions
    ]


def _elect_preferred(state: ClusterState, partition: TopicPartition) -> Leadership | Refused:
    leadership = state.leadership(partition)
    if leadership is None:
        return _unknown(partition)
    preferred = state.topics[partition.topic].replicas(partition.partition)[0]
    if leadership.leader_id == preferred:
        return Refused(
            ErrorCode.ELECTION_NOT_NEEDED, f"{partition} is led by its preferred leader, broker {preferred}, already"
        )
    if state.brokers[preferred].is_fenced:
        return Refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"expected the preferred leader of {partition}, broker {preferred}, to be unfenced",
        )
    return Leadership(preferred, leadership.leader_epoch + 1)


def decide_reassign_partitions(
    state: ClusterState, assignments: Mapping[TopicPartition, Sequence[int] | None]
) -> ReassignmentStep:
    """Assign other replicas to partitions (KIP-455), in force at once. A leader that is no longer a replica hands over
    to the first unfenced replica, and continues to lead if there is none. None as replicas would cancel a reassignment;
    there is never one under way.

    Refused, each by itself: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT (no replicas, a broker twice, a
    broker that is not registered, fewer replicas than the topic's min.insync.replicas), NO_REASSIGNMENT_IN_PROGRESS,
    UNSUPPORTED_VERSION (level 0).
    """
    answers: dict[TopicPartition, Sequence[int] | Refused] = {}
    records: list[ClusterRecord] = []
    changes: list[tuple[TopicPartition, Leadership]] = []
    for partition, replicas in assignments.items():
        refused = _check_assignment(state, partition, replicas)
        if refused is not None or replicas is None:
            answers[partition] = refused or _no_reassignment(partition)
            continue
        answers[partition] = tuple(replicas)
        topic = state.topics[partition.topic]
        leadership = topic.partitions[partition.partition]
        if not topic.assignments or topic.assignments[partition.partition] != tuple(replicas):
            records.append(assign_replicas(topic.name, topic.topic_id, partition.partition, [replicas]))
        heir = next((one for one in replicas if not state.brokers[one].is_fenced), None)
        if leadership.leader_id not in replicas and heir is not None:
            changes.append((partition, Leadership(heir, leadership.leader_epoch + 1)))
    return Step(answers, (*records, *_records_of(state, changes)))


def _check_assignment(state: ClusterState, partition: TopicPartition, replicas: Sequence[int] | None) -> Refused | None:
    if state.level < LEVEL_OF_CLUSTERS:
        return refuse_level(state, "replicas")
    if state.leadership(partition) is None:
        return _unknown(partition)
    if replicas is None:
        return None
    refused = _check_brokers(state, partition, replicas)
    if refused is not None:
        return refused
    replicas_min = int(state.topics[partition.topic].configs.get(MIN_INSYNC_REPLICAS, 1))
    if len(replicas) < replicas_min:
        expected = f"expected {replicas_min} replicas or more, its {MIN_INSYNC_REPLICAS}"
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{partition}: {expected}, found {_show(replicas)}")
    return None


def _check_brokers(state: ClusterState, partition: TopicPartition, replicas: Sequence[int]) -> Refused | None:
    is_known = all(broker_id in state.brokers for broker_id in replicas)
    if replicas and is_known and len(set(replicas)) == len(replicas):
        return None
    return Refused(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"{partition}: expected different brokers of {_show(sorted(state.brokers))}, found {_show(replicas)}",
    )


def _no_reassignment(partition: TopicPartition) -> Refused:
    return Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"expected a reassignment of {partition}, found none")


def refuse_level(state: ClusterState, what: str) -> Refused:
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"{what}: expected {BUS_VERSION} {LEVEL_OF_CLUSTERS} or higher, found {state.level}",
    )


def _records_of(state: ClusterState, changes: Sequence[tuple[TopicPartition, Leadership]]) -> Iterator[ClusterRecord]:
    by_topic: dict[str, dict[int, Leadership]] = {}
    for partition, leadership in changes:
        by_topic.setdefault(partition.topic, {})[partition.partition] = leadership
    for name, moves in by_topic.items():
        yield from _leader_records(name, state.topics[name].topic_id, dict(sorted(moves.items())))


def _all_partitions(state: ClusterState) -> Iterator[TopicPartition]:
    for topic in state.topics.values():
        for number in range(len(topic.partitions)):
            yield TopicPartition(topic.name, number)


def _unknown(partition: TopicPartition) -> Refused:
    return Refused(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"expected an existing partition, found {show_names([partition.topic])!r}, {partition.partition}",
    )


def _show(broker_ids: Iterable[int]) -> str:
    return show_names(map(str, broker_ids)) or "none"
