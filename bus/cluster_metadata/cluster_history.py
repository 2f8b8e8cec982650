"""The history in the metadata log: terms of leaders, moves of replicas, registrations of brokers.

Replays the same records as cluster_records.py, and keeps where in the log each change is. Guards one promise: nothing
is guessed. Of what a snapshot has cut off only the outcome is known, so its place in the log and its reason are None. A
reason is what the records around a change show; it is None where they show none. Decides nothing, does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from bus.cluster_metadata import cluster_records as records
from bus.cluster_metadata.cluster_draft import ClusterDraft, ClusterRecord
from bus.cluster_metadata.cluster_state import (
    EMPTY_CLUSTER,
    LEVEL_OF_CLUSTERS,
    ClusterState,
    ElectedController,
    Leadership,
)
from bus.cluster_metadata.topic_records import parse_replicas
from bus.model import CLUSTER_METADATA_TOPIC


class ElectionReason(Enum):
    CREATED = "created"  # the partition is new
    LEADER_FENCED = "leader fenced"  # the leader before was fenced: gone, silent, restarted or shut down
    PREFERRED_LEADER = "preferred leader"  # the first replica leads again
    REASSIGNED = "reassigned"  # the former leader is no longer a replica
    RESTARTED = "restarted"  # the same broker, in another life
    EPOCH_RAISED = "epoch raised"  # the same life: its table had a higher leader epoch


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The place of a record in the metadata log."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Term:
    """`leader_id` led the partition from `begin` on. The controller is the leader of `__cluster_metadata`, whose
    `topic_id` is None."""

    topic: str
    topic_id: str | None
    partition: int
    leader_id: int
    leader_epoch: int
    begin: LogPlace | None  # None: before the records that the log still has
    reason: ElectionReason | None
    end: LogPlace | None = None  # the begin of the next term, or the topic's deletion; None: it leads now

    # There may be many: dataclasses.replace would take several times as long.
    def ended(self, place: LogPlace) -> Term:
        return Term(
            self.topic,
            self.topic_id,
            self.partition,
            self.leader_id,
            self.leader_epoch,
            self.begin,
            self.reason,
            place,
        )

    def followed_by(
        self, leader_id: int, leader_epoch: int, begin: LogPlace | None, reason: ElectionReason | None
    ) -> Term:
        """The next term of the partition."""
        return Term(self.topic, self.topic_id, self.partition, leader_id, leader_epoch, begin, reason)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """KIP-455. It counts at once: no data move."""

    topic: str
    topic_id: str
    partition: int
    place: LogPlace
    before: tuple[int, ...]  # replicas
    after: tuple[int, ...]

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(one for one in self.after if one not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(one for one in self.before if one not in self.after)


@dataclass(frozen=True, slots=True)
class BrokerHistory:
    """The history of a registered broker's incarnation. None: before the records that the log still has."""

    registered: LogPlace | None
    fencing_changed: LogPlace | None  # the last change in either direction


@dataclass(frozen=True, slots=True)
class ClusterHistory:
    terms: tuple[Term, ...]  # ordered by their begin; terms that a snapshot has cut off come first
    reassignments: tuple[Reassignment, ...]
    brokers: Mapping[int, BrokerHistory]  # the registered brokers by id
    state: ClusterState  # the state at the end of the log


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A row of the metadata log: its value and its controller epoch."""

    place: LogPlace
    controller_epoch: int
    value: Mapping[str, Any]


def read_history(rows: Iterable[LoggedRow]) -> ClusterHistory:
    """`rows` from the log start on, in offset order. Raises `ValueError` as `replay_cluster` does."""
    reading = _Reading()
    for row in rows:
        try:
            reading.take(row.place, row.controller_epoch, records.decode_record(row.value))
        except (ValueError, AssertionError) as error:
            raise ValueError(f"record at offset {row.place.offset} of the cluster metadata: {error}") from error
    try:
        return reading.finish()
    except AssertionError as error:
        raise ValueError(f"the cluster metadata: {error}") from error


@dataclass(frozen=True, slots=True)
class _Controller:
    incarnation: str
    former_id: int | None
    term: Term


class _Reading:
    def __init__(self) -> None:
        self._draft = ClusterDraft(EMPTY_CLUSTER)
        self._ended: list[Term] = []
        self._leading: dict[str, list[Term]] = {}  # the terms of each topic, by partition
        self._controller: _Controller | None = None
        self._placing: set[str] = set()  # topics with new partitions whose replicas come next
        self._reassignments: list[Reassignment] = []
        self._lives: dict[int, tuple[str, int]] = {}
        self._brokers: dict[int, BrokerHistory] = {}
        self._snapshot: LogPlace | None = None  # the begin of the snapshot that is being read

    def finish(self) -> ClusterHistory:
        leading = [term for terms in self._leading.values() for term in terms]
        controller = [] if self._controller is None else [self._controller.term]
        terms = sorted([*self._ended, *leading, *controller], key=_begin_of)
        known = {broker_id: self._brokers[broker_id] for broker_id in self._draft.brokers.now}
        return ClusterHistory(tuple(terms), tuple(self._reassignments), known, self._draft.finish())

    def take(self, place: LogPlace, controller_epoch: int, record: ClusterRecord) -> None:
        if isinstance(record, records.SnapshotBegan):
            self._snapshot = place
        elif self._snapshot is None:
            self._look(place, controller_epoch, record)
        self._draft.apply(record)
        if isinstance(record, records.SnapshotEnded) and self._snapshot is not None:
            self._compare(self._snapshot, controller_epoch)
            self._snapshot = None

    def _look(self, place: LogPlace, controller_epoch: int, record: ClusterRecord) -> None:
        """Before the record is applied."""
        match record:
            case records.TopicCreated(topic, topic_id, partitions, leader_id):
                led = Leadership(leader_id, 0)
                self._leading[topic] = list(_new_terms(topic, topic_id, range(partitions), led, place))
                self._note_placing(topic)
            case records.PartitionsAdded(topic, topic_id, partitions, leader_id):
                terms = self._leading.setdefault(topic, [])
                new = range(len(terms), partitions)
                terms += _new_terms(topic, topic_id, new, Leadership(leader_id, 0), place)
                self._note_placing(topic)
            case records.LeaderChanged(topic, _, partition, leader_id, leader_epoch):
                self._change(topic, range(partition, partition + 1), Leadership(leader_id, leader_epoch), place)
            case records.LeadersChanged(topic, _, partition, partitions, leader_id, leader_epoch):
                self._change(
                    topic, range(partition, partition + partitions), Leadership(leader_id, leader_epoch), place
                )
            case records.LeaderEpochsRaised(broker_id):
                self._raise_epochs(broker_id, place)
            case records.TopicDeleted(topic):
                self._ended += [term.ended(place) for term in self._leading.pop(topic, ())]
                self._placing.discard(topic)
            case records.ReplicasAssigned():
                self._assign(record, place)
            case records.BrokerRegistered(broker_id):
                self._note_life(broker_id, ("", 0), place)
            case records.BrokerStarted(broker_id):
                self._note_life(broker_id, (record.incarnation, record.broker_epoch), place)
            case records.BrokerFenced(broker_id) | records.BrokerUnfenced(broker_id):
                self._note_fenced(broker_id, place, is_fenced=isinstance(record, records.BrokerFenced))
            case records.ControllerElected(broker_id, incarnation):
                self._elect(broker_id, incarnation, controller_epoch, place)

    # ------------------------------------------------------------------ leaders

    def _note_placing(self, topic: str) -> None:
        if self._draft.level >= LEVEL_OF_CLUSTERS:
            self._placing.add(topic)

    def _change(self, topic: str, numbers: range, led: Leadership, place: LogPlace) -> None:
        terms = self._leading[topic]
        for number in numbers:
            before = terms[number]
            if topic in self._placing:  # nothing led it before: this is the leader that it was created with
                begin, reason = before.begin, before.reason
            else:
                self._ended.append(before.ended(place))
                begin, reason = place, self._find_reason(before, led.leader_id, place)
            terms[number] = before.followed_by(led.leader_id, led.leader_epoch, begin, reason)

    def _find_reason(self, before: Term, leader_id: int, place: LogPlace) -> ElectionReason | None:
        former = self._draft.brokers.now.get(before.leader_id)
        if leader_id == before.leader_id:
            return ElectionReason.EPOCH_RAISED
        if former is not None and former.is_fenced:
            return ElectionReason.LEADER_FENCED
        if self._is_reassigned_now(before, place):
            return ElectionReason.REASSIGNED
        return ElectionReason.PREFERRED_LEADER if self._replicas(before)[0] == leader_id else None

    def _is_reassigned_now(self, term: Term, place: LogPlace) -> bool:
        for one in reversed(self._reassignments):
            if not _is_same_commit(one.place, place):
                return False
            if (one.topic_id, one.partition) == (term.topic_id, term.partition):
                return term.leader_id in one.removing
        return False

    def _raise_epochs(self, broker_id: int, place: LogPlace) -> None:
        for terms in self._leading.values():
            for number, term in enumerate(terms):
                if term.leader_id == broker_id:
                    self._ended.append(term.ended(place))
                    terms[number] = term.followed_by(broker_id, term.leader_epoch + 1, place, ElectionReason.RESTARTED)

    def _assign(self, record: records.ReplicasAssigned, place: LogPlace) -> None:
        topic, first = record.topic, record.partition
        if topic in self._placing:
            self._placing.discard(topic)
            return
        lists = parse_replicas(record.replicas)
        for number in range(first, first + record.partitions):
            before, after = self._replicas(self._leading[topic][number]), lists[(number - first) % len(lists)]
            if after != before:
                self._reassignments.append(Reassignment(topic, record.topic_id, number, place, before, after))

    def _replicas(self, term: Term) -> tuple[int, ...]:
        return self._draft.assigned_replicas(term.topic, term.partition) or (term.leader_id,)

    # ------------------------------------------------------------------ brokers and the controller

    def _note_life(self, broker_id: int, life: tuple[str, int], place: LogPlace) -> None:
        """Note the registration of an incarnation. Registering again changes nothing; at level 0 each registration is a
        start."""
        if self._lives.get(broker_id) != life or life == ("", 0):
            self._lives[broker_id] = life
            self._brokers[broker_id] = BrokerHistory(place, place)

    def _note_fenced(self, broker_id: int, place: LogPlace, *, is_fenced: bool) -> None:
        broker = self._draft.brokers.now.get(broker_id)
        if broker is not None and broker.is_fenced != is_fenced:
            self._brokers[broker_id] = replace(self._brokers[broker_id], fencing_changed=place)
        now = self._controller
        if is_fenced and now is not None and now.former_id == broker_id and _is_same_commit(now.term.begin, place):
            # The commit of an election fences the controller before.
            self._controller = replace(now, term=replace(now.term, reason=ElectionReason.LEADER_FENCED))

    def _elect(self, broker_id: int, incarnation: str, epoch: int, place: LogPlace) -> None:
        before, reason, former_id = self._controller, None, None
        if before is not None:
            self._ended.append(before.term.ended(place))
            former_id = before.term.leader_id
            former = self._draft.brokers.now.get(former_id)
            if former_id == broker_id:
                reason = ElectionReason.RESTARTED if before.incarnation != incarnation else None
            elif former is not None and former.is_fenced:
                reason = ElectionReason.LEADER_FENCED
        self._controller = _Controller(incarnation, former_id, _controller_term(broker_id, epoch, place, reason))

    # ------------------------------------------------------------------ snapshots

    def _compare(self, place: LogPlace, controller_epoch: int) -> None:
        """Compare with the state of the snapshot at `place`: terms continue if the snapshot has them unchanged."""
        leading: dict[str, list[Term]] = {}
        for topic in self._draft.topics.now.values():
            led = enumerate(self._draft.leaders(topic.name))
            known = self._leading.get(topic.name, [])
            now = [Term(topic.name, topic.topic_id, number, *_led(one), None, None) for number, one in led]
            leading[topic.name] = [
                before if before is not None and _is_same(before, term) else term
                for term, before in zip(now, [*known, *[None] * len(now)], strict=False)
            ]
        kept = {id(term) for terms in leading.values() for term in terms}
        gone = [term for terms in self._leading.values() for term in terms if id(term) not in kept]
        self._ended += [term.ended(place) for term in gone]
        self._leading = leading
        self._placing.clear()
        self._compare_controller(place, controller_epoch)
        self._compare_brokers()

    def _compare_controller(self, place: LogPlace, controller_epoch: int) -> None:
        elected, before = self._draft.controller, self._controller
        if before is not None and elected == ElectedController(before.term.leader_id, before.incarnation):
            return
        if before is not None:
            self._ended.append(before.term.ended(place))
        self._controller = None
        if elected is not None:
            term = _controller_term(elected.broker_id, controller_epoch, None, None)
            self._controller = _Controller(elected.incarnation, None, term)

    def _compare_brokers(self) -> None:
        known, self._brokers = self._brokers, {}
        for broker_id, broker in self._draft.brokers.now.items():
            is_same = self._lives.get(broker_id) == broker.life
            self._brokers[broker_id] = known[broker_id] if is_same else BrokerHistory(None, None)
        self._lives = {broker_id: broker.life for broker_id, broker in self._draft.brokers.now.items()}


def _new_terms(topic: str, topic_id: str, numbers: Iterable[int], led: Leadership, place: LogPlace) -> Iterator[Term]:
    for number in numbers:
        yield Term(topic, topic_id, number, led.leader_id, led.leader_epoch, place, ElectionReason.CREATED)


def _controller_term(broker_id: int, epoch: int, place: LogPlace | None, reason: ElectionReason | None) -> Term:
    return Term(CLUSTER_METADATA_TOPIC, None, 0, broker_id, epoch, place, reason)


def _led(leadership: Leadership) -> tuple[int, int]:
    return leadership.leader_id, leadership.leader_epoch


def _is_same_commit(one: LogPlace | None, other: LogPlace) -> bool:
    """The records of a commit have one time."""
    return one is not None and one.timestamp_ms == other.timestamp_ms


def _is_same(before: Term, now: Term) -> bool:
    return before.followed_by(before.leader_id, before.leader_epoch, None, None) == now


def _begin_of(term: Term) -> int:
    return -1 if term.begin is None else term.begin.offset
