"""Promises of several brokers on one root together, each a class as in broker_invariants.py.

Who committed, deleted and answered what is seen at the disk and at the servers, and judged by the log of the metadata
(metadata_journal.py) and by the versions of the tables: not by what a broker believes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    ControllerElected,
    LeaderChanged,
    LeadersChanged,
    ReplicasAssigned,
    SnapshotBegan,
)
from bus.cluster_metadata.cluster_state import ClusterState, Leadership
from bus.cluster_metadata.partition_placement import find_imbalance
from bus.consumer_groups.bounds import Placement, coordinator_partition
from bus.errors import BusError, ErrorCode, Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import CONSUMER_OFFSETS_TOPIC, LATEST_TIMESTAMP, TopicPartition
from bus.runtime.partitions.partition import Partition
from tests.simulation.broker_invariants import Highest, Invariant
from tests.simulation.metadata_journal import METADATA_FOLDER, Change, Version, version_of
from tests.support.cluster_states import partitions_led_by

if TYPE_CHECKING:
    from tests.simulation.broker_network import Answered
    from tests.simulation.broker_programs import Sent
    from tests.simulation.broker_world import BrokerLife, BrokerWorld

_DATA_FILE = re.compile(r"(topics/.+/\d+)/([^/]+\.parquet)")
_CHECKPOINT = re.compile(r"(topics/.+/\d+)/_delta_log/(\d{20}\.checkpoint\.parquet|_last_checkpoint)")
# What a broker answers as a leader was decided on metadata that were the last ones less than so long before.
STALE_S_MAX = 1.0
# A controller that was replaced may take heartbeats so long after that, or after it goes on if it stood still then.
_CONTROLLER_STALE_S_MAX = 15.0
# What a leader alone may answer.
_LEADERS_ANSWERS = frozenset({"ListOffsets", "Produce", "ResumeProducer", "DeleteRecords"})
_GROUP_ANSWERS = frozenset({"OffsetCommit", "OffsetFetch"})
# Record types that a root of level 0 must not have.
_OF_LEVEL_1 = (BrokerStarted, BrokerFenced, BrokerUnfenced, ControllerElected, ReplicasAssigned)


class TableLeaders:
    """The leaders of each table, by its versions: leader epoch, incarnation, and when its first version came."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, tuple[int, str]]] = defaultdict(dict)
        # By leader epoch and incarnation: when each version came, the first one first.
        self._led: dict[str, dict[tuple[int, str], dict[int, float]]] = defaultdict(dict)
        self.topic_ids: dict[str, str] = {}  # by folder

    def take(self, version: Version, now: float) -> None:
        if version.number == 0:
            self._versions[version.folder], self._led[version.folder] = {}, {}
            metadata = [action["metaData"] for action in version.actions if "metaData" in action]
            self.topic_ids[version.folder] = metadata[0]["configuration"]["bus.topic_id"]
        if version.leader_epoch is not None and version.incarnation is not None:
            led = self._versions[version.folder][version.number] = version.leader_epoch, version.incarnation
            self._led[version.folder].setdefault(led, {})[version.number] = now

    def lose(self, folder: str, number: int) -> None:
        led = self._versions[folder].pop(number, None)
        if led is not None:
            del self._led[folder][led][number]
            if not self._led[folder][led]:
                del self._led[folder][led]

    def has(self, folder: str, leader_epoch: int, incarnation: str) -> bool:
        return (leader_epoch, incarnation) in self._led[folder]

    def others(self, folder: str, incarnation: str) -> set[str]:
        """Incarnations."""
        return {other for _, other in self._led[folder]} - {incarnation}

    def last(self, folder: str) -> str | None:
        """The incarnation that has committed last."""
        versions = self._versions[folder]
        return versions[max(versions)][1] if versions else None

    def replaced_at(self, folder: str, incarnation: str) -> float | None:
        """When a version of a higher epoch than its last one came; None if it leads, or never did."""
        led = self._led[folder]
        own = max((epoch for epoch, other in led if other == incarnation), default=None)
        firsts = (next(iter(times.values())) for (epoch, _), times in led.items() if own is not None and epoch > own)
        return min(firsts, default=None)


def folder_of(name: TopicPartition) -> str:
    return f"topics/{name.topic}/{name.partition}"


def answered_partitions(answered: Answered) -> Iterator[TopicPartition]:
    """Those that were answered without an error, by a broker that takes itself for their leader."""
    if isinstance(answered.answer, BusError):
        return
    if answered.method in _LEADERS_ANSWERS:
        for share in answered.answer.partitions:
            if not share.error_code:
                yield TopicPartition(share.topic, share.partition)
    elif answered.method in _GROUP_ANSWERS:
        yield from _answered_group(answered)


def _answered_group(answered: Answered) -> Iterator[TopicPartition]:
    if answered.method == "OffsetCommit":
        groups = [answered.request.group_id] if not any(part.error_code for part in answered.answer.partitions) else []
    else:
        groups = [group.group_id for group in answered.answer.groups if not group.error_code]
    topic = answered.life.core.cluster.state.topics.get(CONSUMER_OFFSETS_TOPIC)
    if topic is not None:
        for group_id in groups:
            number = coordinator_partition(group_id, len(topic.partitions), Placement.ABSOLUTE)
            yield TopicPartition(CONSUMER_OFFSETS_TOPIC, number)


def led_here(life: BrokerLife, name: TopicPartition) -> Partition | None:
    found = life.core.cluster.host.find(name)
    return None if isinstance(found, Refused) else found


class LeadersServeBehindTheirFence(Invariant):
    """No broker serves as a leader before a version of its epoch is in the table, unless it is the only broker that
    ever led the table."""

    def on_answered(self, answered: Answered) -> None:
        world, life = self.world, answered.life
        for name in answered_partitions(answered):
            partition = led_here(life, name)
            if partition is None:
                continue
            folder, epoch = folder_of(name), partition.state.leader_epoch
            others = {world.broker_id_of(other) for other in world.leaders.others(folder, life.incarnation)}
            assert world.leaders.has(folder, epoch, life.incarnation) or others <= {life.config.broker_id}, (
                f"{life.name} answers {answered.method} for {name} under leader epoch {epoch}, of which the table has "
                f"no version; brokers {others} have led it"
            )


class LeadersShowTheAcknowledged(Invariant):
    """An acknowledged record is in every leader's answer to a later question. A leader that was replaced need not know
    of it for `STALE_S_MAX`."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._acknowledged: dict[tuple[str, int], Highest] = defaultdict(Highest)  # next offsets

    def on_acknowledged(self, sent: Sent, offset: int) -> None:
        self._acknowledged[sent.place.topic_id, sent.place.partition].add(self.world.now, offset + 1)

    def on_answered(self, answered: Answered) -> None:
        for name, end in _shown_ends(answered):
            topic = answered.life.core.cluster.state.topics.get(name.topic)
            partition = led_here(answered.life, name)
            if topic is None or partition is None:
                continue
            expected = self._acknowledged[topic.topic_id, name.partition].up_to(answered.asked_at)
            assert end >= expected or self.world.may_be_stale(answered.life, name, answered.arrived_at), (
                f"{answered.life.name} answers {answered.method} for {name} with the end {end}, where {expected} was "
                f"acknowledged"
            )


def _shown_ends(answered: Answered) -> Iterator[tuple[TopicPartition, int]]:
    """The high watermarks in an answer."""
    if isinstance(answered.answer, BusError):
        return
    if answered.method == "FetchOnce":
        for share in answered.answer.partitions:
            if not share.error_code:
                yield TopicPartition(share.topic, share.partition), share.high_watermark
    elif answered.method == "ListOffsets":
        asked = {(one.topic, one.partition): one.timestamp_ms for one in answered.request.partitions}
        for share in answered.answer.partitions:
            if not share.error_code and asked[share.topic, share.partition] == LATEST_TIMESTAMP:
                yield TopicPartition(share.topic, share.partition), share.offset


class OnlyTheLeaderCleans(Invariant):
    """Only the broker that committed last deletes, repairs and checkpoints in a table; another one deletes what it has
    written itself and no version names. And no data file goes that a version names which is kept, or comes later. What
    a deleted topic has left is the controller's; one that is replaced meanwhile may end what it has begun, since it
    takes nothing but files of that topic id. So may the leader delete what is staged of a transaction that it has just
    ended: no other transaction, of a topic that is made again either, has such a folder."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._writers: dict[str, BrokerLife | None] = {}  # of data files
        self._named: dict[str, dict[str, tuple[int, int | None]]] = defaultdict(dict)  # path -> added, removed at
        self._gone: set[str] = set()
        self._controllers: set[str] = set()  # incarnations of all that ever were

    def on_created(self, key: str, data: bytes) -> None:
        if _DATA_FILE.fullmatch(key):
            self._writers[key] = self.world.acting
            self._gone.discard(key)

    def on_version(self, version: Version) -> None:
        self._note_controller()
        if version.number == 0:
            self._named[version.folder] = {}
        named = self._named[version.folder]
        for action in version.actions:
            if "remove" in action:
                path = unquote(action["remove"]["path"])
                named[path] = named.get(path, (0, None))[0], version.number
            if "add" in action:
                path = unquote(action["add"]["path"])
                named[path] = version.number, None
                assert f"{version.folder}/{path}" not in self._gone, (
                    f"{version.folder}: version {version.number} names {path}, which was deleted"
                )

    def on_lost(self, key: str) -> None:
        name = version_of(key)
        if name is not None:
            named = self._named[name[0]]
            for path, (added, removed) in list(named.items()):
                if added == name[1]:
                    del named[path]
                elif removed == name[1]:
                    named[path] = added, None

    def on_put(self, key: str) -> None:
        found = _CHECKPOINT.fullmatch(key)
        name = version_of(key)
        if found is not None or name is not None:
            self._check_leader(found[1] if found is not None else name[0], key, "writes")  # type: ignore[index]

    def on_deleted(self, key: str) -> None:
        if self._is_of_deleted_topic(key):
            return
        name, data_file = version_of(key), _DATA_FILE.fullmatch(key)
        checkpoint = _CHECKPOINT.fullmatch(key)
        if name is not None:
            self._check_leader(name[0], key, "deletes")
        elif checkpoint is not None:
            self._check_leader(checkpoint[1], key, "deletes")
        elif data_file is not None:
            self._delete_data(data_file[1], data_file[2], key)

    def _is_of_deleted_topic(self, key: str) -> bool:
        folder = "/".join(key.split("/")[:3])
        topic_id, state = self.world.leaders.topic_ids.get(folder), self.world.journal.state
        if topic_id is None or topic_id in state.topic_names or folder == METADATA_FOLDER:
            return False
        self._note_controller()
        life = self.world.acting
        is_controllers = not self._controllers or life is None or life.incarnation in self._controllers
        assert is_controllers or self._has_led_staged(life, folder, key), (
            f"{key} of a deleted topic is deleted by a broker that never was the controller"
        )
        return True

    def _has_led_staged(self, life: BrokerLife | None, folder: str, key: str) -> bool:
        is_staged = key.startswith(f"{folder}/_staged/")
        return is_staged and life is not None and self.world.leaders.last(folder) == life.incarnation

    def _note_controller(self) -> None:
        controller = self.world.journal.state.controller
        if controller is not None:
            self._controllers.add(controller.incarnation)

    def _delete_data(self, folder: str, path: str, key: str) -> None:
        self._gone.add(key)
        span = self._named[folder].get(path)
        if span is None and self._writers.get(key) is self.world.acting:
            return  # it gives up what it has written itself
        self._check_leader(folder, key, "deletes")
        if span is None:
            return
        added, removed = span
        assert removed is not None, f"{key} is deleted, and the last version names it"
        kept = [
            number
            for name in self.world.disk.keys_below(f"{folder}/_delta_log")
            for _, number in [version_of(name) or ("", -1)]
            if added <= number < removed
        ]
        assert not kept, f"{key} is deleted, and versions {kept} that name it are kept"

    def _check_leader(self, folder: str, key: str, what: str) -> None:
        life, last = self.world.acting, self.world.leaders.last(folder)
        if life is None or last is None:
            return
        assert self.world.broker_id_of(last) == life.config.broker_id, (
            f"{life.name} {what} {key}, where {self.world.name_of(last)} has committed last"
        )


class ControllersSucceedEachOther(Invariant):
    """The metadata are changed by the elected controller alone, each under a higher epoch than the one before it. A
    heartbeat of another life of a broker than the registered one is refused, and a broker that is not the controller
    any more refuses all of them soon."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._epochs: dict[str, int] = {}  # by incarnation, in the order of the elections

    def on_metadata(self, change: Change) -> None:
        elected = change.after.controller
        if elected is None:
            return
        assert elected.incarnation == change.incarnation, (
            f"version {change.number} of the metadata is of {self.world.name_of(change.incarnation)}, the controller "
            f"is {self.world.name_of(elected.incarnation)}"
        )
        if any(isinstance(record, ControllerElected) for record in change.records):
            others = [epoch for incarnation, epoch in self._epochs.items() if incarnation != elected.incarnation]
            epoch = -1 if change.leader_epoch is None else change.leader_epoch
            assert epoch > max(others, default=-1), (
                f"version {change.number} of the metadata elects a controller under epoch {epoch}, others: {others}"
            )
            self._epochs[elected.incarnation] = epoch

    def on_lost(self, key: str) -> None:
        """An election that a power failure took back, before any broker knew that it was durable, never was."""
        name = version_of(key)
        if name is not None and name[0] == METADATA_FOLDER:
            self._epochs = {
                change.incarnation: -1 if change.leader_epoch is None else change.leader_epoch
                for change in self.world.journal.changes
                if change.incarnation is not None and _elects(change, change.incarnation)
            }

    def on_answered(self, answered: Answered) -> None:
        if answered.method != "BrokerHeartbeat" or isinstance(answered.answer, BusError) or answered.answer.error_code:
            return
        life, asked = answered.life, answered.request
        elected = self.world.journal.state.controller
        if elected is not None and elected.incarnation == life.incarnation:
            # A registration that is in the log holds for the controller once its commit has ended there.
            states = self.world.journal.states_behind(answered.applied_offset)
            registered = [state.brokers.get(asked.broker_id) for state in states]
            assert any(
                known is not None and known.life == (asked.incarnation_id, asked.broker_epoch) for known in registered
            ), (
                f"{life.name} takes a heartbeat of broker {asked.broker_id} at broker epoch {asked.broker_epoch}, "
                f"registered is {registered}"
            )
        if elected is not None and elected.incarnation != life.incarnation:
            since = max(change.at for change in self.world.journal.changes if _elects(change, elected.incarnation))
            assert self.world.now <= max(since, life.went_on_at) + _CONTROLLER_STALE_S_MAX, (
                f"{life.name} takes heartbeats {self.world.now - since:.1f} s after another controller was elected"
            )


def _elects(change: Change, incarnation: str) -> bool:
    return any(isinstance(record, ControllerElected) and record.incarnation == incarnation for record in change.records)


class LeadersAreUnfenced(Invariant):
    """A leader is registered and unfenced when it is chosen, unless no broker is unfenced."""

    def on_metadata(self, change: Change) -> None:
        unfenced = change.after.unfenced_brokers
        for name, leadership in _new_leaders(change):
            assert leadership.leader_id in change.after.brokers, f"{name} is led by {leadership}, which is not there"
            assert leadership.leader_id in unfenced or not unfenced, (
                f"{name} is given to broker {leadership.leader_id}, which is fenced; unfenced are {unfenced}"
            )


def _new_leaders(change: Change) -> Iterator[tuple[TopicPartition, Leadership]]:
    if any(isinstance(record, LeadersChanged | LeaderChanged) for record in change.records):
        for topic in change.after.topics.values():
            before = change.before.topics.get(topic.name)
            known = before.partitions if before is not None and before.topic_id == topic.topic_id else ()
            for number, leadership in enumerate(topic.partitions):
                if number >= len(known) or known[number] != leadership:
                    yield TopicPartition(topic.name, number), leadership


class CommittedOffsetsStay(Invariant):
    """An offset that a group was told is committed is in every later answer of its coordinator, whichever broker that
    is, through loads and expirations; and no offset appears that was not sent. A coordinator that was replaced need not
    know of that for `STALE_S_MAX`."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._committed: dict[str, Highest] = defaultdict(lambda: Highest(-1))  # offsets, by when that was told
        self._sent: dict[str, int] = defaultdict(lambda: -1)

    def on_offset_sent(self, group_id: str, offset: int) -> None:
        self._sent[group_id] = offset

    def on_offset_committed(self, group_id: str, offset: int) -> None:
        self._committed[group_id].add(self.world.now, offset)

    def on_answered(self, answered: Answered) -> None:
        if answered.method != "OffsetFetch" or isinstance(answered.answer, BusError):
            return
        for group in answered.answer.groups:
            if group.error_code or group.group_id.startswith("tx-"):  # those of transactions are judged elsewhere
                continue
            found, sent = group.offsets[0].offset, self._sent[group.group_id]
            expected = self._committed[group.group_id].up_to(answered.asked_at)
            assert found <= sent, f"{group.group_id} has sent up to {sent} and finds {found}"
            assert found >= expected or self._may_be_stale(answered), (
                f"{group.group_id} was told {expected} and finds {found} at {answered.life.name}"
            )

    def _may_be_stale(self, answered: Answered) -> bool:
        name = next(answered_partitions(answered), None)
        return name is not None and self.world.may_be_stale(answered.life, name, answered.arrived_at)


class ShutdownsAreClean(Invariant):
    """A broker that was allowed to leave ends when no broker that is unfenced takes it for a leader. Where brokers only
    leave in order, no call times out, no record is lost, and every error may be retried. A batch whose forerunner went
    to the leader before is out of order, and waits for it in its producer."""

    def on_left(self, life: BrokerLife, took_s: float) -> None:
        world = self.world
        is_in_time = took_s * 1000 < life.config.controlled_shutdown_timeout_ms
        assert is_in_time or not world.is_rolling, f"{life.name} was not allowed to leave for {took_s:.1f} s"
        state = world.journal.state
        own = life.config.broker_id
        if not is_in_time or not [one for one in state.unfenced_brokers if one != own]:
            return
        for broker in world.brokers:
            if broker.life is not None and broker.life.is_serving and broker.config.broker_id in state.unfenced_brokers:
                led = next(partitions_led_by(broker.life.core.cluster.state, own), None)
                assert led is None, f"{life.name} ends while {broker.life.name} takes it for the leader of {led}"

    def on_timed_out(self, who: str, method: str) -> None:
        assert not self.world.is_rolling, f"{method} of {who} timed out while brokers left in order"

    def on_not_sent(self, sent: Sent, error: BaseException) -> None:
        assert not self.world.is_rolling, f"{sent.value!r} was not sent while brokers left in order: {error}"

    def on_answered(self, answered: Answered) -> None:
        is_between_brokers = answered.method in pb.DESCRIPTOR.services_by_name["Cluster"].methods_by_name
        if self.world.is_rolling and not is_between_brokers and not isinstance(answered.answer, BusError):
            for code in _error_codes(answered.answer):
                is_mended = code in (ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                is_retriable = is_mended or BusError(code, "").retriable
                assert is_retriable, (
                    f"{answered.life.name} answers {answered.method} with {code.name} while brokers left in order"
                )


def _error_codes(message: Any) -> Iterator[ErrorCode]:
    for descriptor, value in message.ListFields():
        if descriptor.name == "error_code":
            yield ErrorCode(value)
        elif descriptor.message_type is not None and not descriptor.message_type.GetOptions().map_entry:
            for each in value if descriptor.is_repeated else [value]:
                yield from _error_codes(each)


class RecordsFitTheLevel(Invariant):
    """The metadata have no record of a level above the one that was finalized before it."""

    def on_metadata(self, change: Change) -> None:
        level = change.before.level
        for record in change.records:
            level = getattr(record, "level", level)
            assert level >= 1 or not isinstance(record, _OF_LEVEL_1), (
                f"version {change.number} of the metadata has {record} at level {level}"
            )


class VersionsFitTheirTopic(Invariant):
    """A version is committed by the broker to which the metadata gave its leader epoch, in the table of the topic id
    for which they did: never by a leader of an earlier topic of that name."""

    def on_version(self, version: Version) -> None:
        if version.folder == METADATA_FOLDER or version.leader_epoch is None or version.incarnation is None:
            return
        topic_id, partition = self.world.leaders.topic_ids[version.folder], int(version.folder.rpartition("/")[2])
        expected = self.world.journal.find_leader(topic_id, partition, version.leader_epoch)
        found = self.world.broker_id_of(version.incarnation)
        assert found == expected, (
            f"{version.folder}: version {version.number} of leader epoch {version.leader_epoch} is of broker {found}; "
            f"the metadata gave it to {expected}, for topic id {topic_id}"
        )


class LeadersAreBackSoon(Invariant):
    """While a majority of the brokers reach each other and the storage: each partition is served by the leader that the
    metadata name, and that is one of them; those that are of every majority are unfenced; and where nothing fails,
    leaders are the preferred ones. Nothing of that is otherwise for longer than a time, also while links are cut and
    disks fail. Judged at each tick, where a scenario has ticks."""

    # The session of a silent controller, and that of a heartbeat to it, one after the other; or the session of a broker
    # that is not reached, and the pause before the first question; fences.
    SERVED_S = 5.0
    UNFENCED_S = 3.0
    BALANCED_S = 4.0  # the check interval, and what comes before the first check of a new controller

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._since: dict[str, float] = {}
        self._majorities: list[frozenset[int]] = []

    def on_tick(self) -> None:
        state, lacks = self.world.journal.state, {}
        majorities = self.world.find_majorities()
        if majorities != self._majorities:  # another fault, or the end of one: that takes its time again
            self._majorities, self._since = majorities, {}
        if majorities:
            able = frozenset.union(*majorities)
            for topic in state.topics.values():
                for number, leadership in enumerate(topic.partitions):
                    name = TopicPartition(topic.name, number)
                    if leadership.leader_id not in able or not self._is_served(name, leadership):
                        lacks[f"{name} is not served by its leader, one of {sorted(able)}"] = self.SERVED_S
            lacks.update(self._find_fenced(state, frozenset.intersection(*majorities)))
        self._since = {lack: self._since.get(lack, self.world.now) for lack in lacks}
        for lack, since in self._since.items():
            assert self.world.now - since <= lacks[lack], f"for {self.world.now - since:.1f} s {lack}"

    def _find_fenced(self, state: ClusterState, well: frozenset[int]) -> dict[str, float]:
        fenced = well - set(state.unfenced_brokers)
        lacks = {f"b{broker_id} is fenced": self.UNFENCED_S for broker_id in sorted(fenced)}
        if not lacks and len(well) == len(self.world.brokers) and find_imbalance(state, 10):
            lacks["leaders are not the preferred ones"] = self.BALANCED_S
        return lacks

    def _is_served(self, name: TopicPartition, leadership: Leadership) -> bool:
        """Clients reach the leader, and it leads."""
        broker = self.world.brokers[leadership.leader_id]
        is_reached = leadership.leader_id not in self.world.closed_addresses
        if not is_reached or not self.world.is_live(broker) or broker.life is None:
            return False
        partition = led_here(broker.life, name)
        return (
            partition is not None
            and partition.stopped is None
            and partition.state.leader_epoch == leadership.leader_epoch
        )


class ControllersAreReached(Invariant):
    """A broker to which no connection comes in is not the controller for longer than a time, if it reaches another one
    that is at work, can read and write, and is reached: however few those are. Judged at each tick."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._since = 0.0
        self._seen: tuple[int | None, frozenset[int]] = None, frozenset()  # the controller, and who could replace it

    def on_tick(self) -> None:
        elected = self.world.journal.state.controller
        controller = None if elected is None else elected.broker_id
        able = frozenset() if controller is None else self.world.find_reached_by(controller)
        if (controller, able) != self._seen:
            self._seen, self._since = (controller, able), self.world.now
        is_unreached = controller in self.world.closed_addresses and able
        took_s = self.world.now - self._since
        assert not is_unreached or took_s <= LeadersAreBackSoon.SERVED_S, (
            f"for {took_s:.1f} s nobody reaches b{controller}, the controller, while it reaches {sorted(able)}"
        )


class HealthyClustersStayAsTheyAre(Invariant):
    """While nothing fails, no broker is fenced, none registers, and no controller is elected."""

    def on_metadata(self, change: Change) -> None:
        is_snapshot = any(isinstance(record, SnapshotBegan) for record in change.records)  # says what is, once more
        if self.world.is_well and not is_snapshot:
            for record in change.records:
                assert not isinstance(record, BrokerFenced | BrokerStarted | ControllerElected), (
                    f"nothing has failed, and version {change.number} of the metadata has {record}"
                )


CLUSTER_INVARIANTS = (
    LeadersServeBehindTheirFence,
    LeadersShowTheAcknowledged,
    OnlyTheLeaderCleans,
    ControllersSucceedEachOther,
    LeadersAreUnfenced,
    CommittedOffsetsStay,
    ShutdownsAreClean,
    RecordsFitTheLevel,
    VersionsFitTheirTopic,
    LeadersAreBackSoon,
    ControllersAreReached,
    HealthyClustersStayAsTheyAre,
)
