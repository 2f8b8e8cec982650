"""Bounds of requests about groups and of the groups in memory, and the partition of `__consumer_offsets` that has a
group.

Guards one promise: what is accepted can be decoded again by a later coordinator, and read by every view and client.
So everything that a decoder asserts of a stored field is checked here, before a decision, or where a field is decided
on (offsets.py). Ids that a group has from an earlier version, which checked less, stay valid.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from bus.addresses import counted_host
from bus.client_texts import check_text, shown
from bus.consumer_groups import requests as rq
from bus.consumer_groups.group import MINUTE_MS, Group
from bus.errors import ErrorCode, Refused
from bus.machine import java_abs, java_hash
from bus.model import GROUP_PLACEMENT, TopicPartition
from bus.settings.keys import INT_MAX, LONG_MAX

ID_BYTES_MAX = 1_024  # for a group id and a client id
MEMBER_ID_BYTES_MAX = 2_048  # a client's id, and the coordinator's suffix
NAME_BYTES_MAX = 249  # for an instance id (Kafka's bound), a protocol, a protocol type, a topic

GROUPS_MAX = 1_000  # in one request to describe or to delete groups, or to fetch offsets
PARTITIONS_MAX = 10_000  # in one request to commit, to fetch or to delete offsets
LEAVING_MEMBERS_MAX = 1_000
PROTOCOLS_MAX = 100
STATES_MAX = 100  # that groups are listed by
TOPICS_MAX = 10_000  # that one member subscribes to with one protocol
OWNED_PARTITIONS_MAX = 30_000  # that one member says it has
ASSIGNED_PARTITIONS_MAX = 30_000  # for all members of a group
MEMBER_DATA_BYTES_MAX = 1 << 20  # metadata of all protocols of a member; its assignment
# This many clients are remembered, with the ids given to them, before expired ids are looked for.
_CLIENTS_MIN = 1_000


def check_request(group: Group | None, command: rq.GroupCommand) -> Refused | None:
    """Why the command is refused, of any group; None if it may be decided on. INVALID_GROUP_ID,
    INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, INCONSISTENT_GROUP_PROTOCOL (a protocol without a name)."""
    is_known = group is not None and group.group_id == command.group_id
    refused = None if is_known else check_group_id(command.group_id)
    if refused is not None:
        return refused
    match command:
        case rq.JoinGroup():
            return _check_join(group, command)
        case rq.SyncGroup():
            return _check_member_ids(group, command.member_id, command.group_instance_id) or _check_sync(command)
        case rq.Heartbeat():
            return _check_member_ids(group, command.member_id, command.group_instance_id)
        case rq.OffsetCommit():
            return _check_member_ids(group, command.member_id, command.group_instance_id) or check_count(
                len(command.offsets), PARTITIONS_MAX, "partitions"
            )
        case rq.LeaveGroup():
            return check_count(len(command.members), LEAVING_MEMBERS_MAX, "members") or _first(
                _check_member_ids(group, member.member_id, member.group_instance_id) for member in command.members
            )
        case rq.TxnOffsetCommit():
            return (
                _check_transaction(command.transaction)
                or _check_range("the number of a commit in its transaction", command.sequence, INT_MAX)
                or _check_member_ids(group, command.member_id, command.group_instance_id)
                or check_count(len(command.offsets), PARTITIONS_MAX, "partitions")
            )
        case rq.VoteOffsets() | rq.ApplyOffsets() | rq.DropOffsets():
            return _check_transaction(command.transaction)
        case rq.OffsetFetch():
            return _check_member_ids(group, command.member_id, None) or _check_places(command.partitions or ())
        case rq.OffsetDelete():
            return _check_places(command.partitions)
        case _:
            return None


def check_group_id(group_id: str) -> Refused | None:
    if not group_id:
        return Refused(ErrorCode.INVALID_GROUP_ID, "expected a group id, found an empty one")
    return check_text("a group id", group_id, ID_BYTES_MAX, ErrorCode.INVALID_GROUP_ID)


def check_group_id_length(group_id: str) -> Refused | None:
    """The same for an id that a group of an earlier version may have; of more bytes than this none can be asked for."""
    return check_group_id(group_id) if len(group_id) > ID_BYTES_MAX else None


def check_count(count: int, count_max: int, what: str) -> Refused | None:
    """INVALID_REQUEST if a request names more of them than it may; to be asked before any of them is looked at."""
    if count <= count_max:
        return None
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"expected at most {count_max} {what} in one request, found {count}; send several requests",
    )


def check_data(what: str, byte_count: int) -> Refused | None:
    """INVALID_REQUEST for more bytes of a member than are kept; to be asked before they are parsed."""
    if byte_count <= MEMBER_DATA_BYTES_MAX:
        return None
    return Refused(
        ErrorCode.INVALID_REQUEST, f"expected at most {MEMBER_DATA_BYTES_MAX} bytes as {what}, found {byte_count}"
    )


def check_name(what: str, name: str) -> Refused | None:
    """INVALID_REQUEST; an empty name is one."""
    return check_text(what, name, NAME_BYTES_MAX)


def check_topic(topic: str) -> Refused | None:
    """A name that some topic might have; whether one has it is not asked."""
    if not topic:
        return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "expected the name of a topic, found an empty one")
    return check_text("the name of a topic", topic, NAME_BYTES_MAX, ErrorCode.INVALID_TOPIC_EXCEPTION)


def check_place(partition: TopicPartition) -> Refused | None:
    """A partition that some topic might have."""
    if not 0 <= partition.partition <= INT_MAX:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            f"expected a partition from 0 on of topic {shown(partition.topic)}, found {partition.partition}",
        )
    return check_topic(partition.topic)


def _check_join(group: Group | None, command: rq.JoinGroup) -> Refused | None:
    return (
        _check_member_ids(group, command.member_id, command.group_instance_id)
        or check_text("a client id", command.client_id, ID_BYTES_MAX)
        or check_name("a protocol type", command.protocol_type)
        or check_count(len(command.protocols), PROTOCOLS_MAX, "protocols")
        or check_data(
            "the metadata of all protocols of a member", sum(len(offer.metadata) for offer in command.protocols)
        )
        or _first(map(_check_protocol, command.protocols))
    )


def _check_protocol(offer: rq.GroupProtocol) -> Refused | None:
    if not offer.name:
        return Refused(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "expected a name of each protocol, found one with an empty name"
        )
    return (
        check_name("the name of a protocol", offer.name)
        or check_count(len(offer.topics), TOPICS_MAX, "topics of a member")
        or _first(map(check_topic, offer.topics))
    )


def _check_sync(command: rq.SyncGroup) -> Refused | None:
    assignments = command.assignments.values()
    count = sum(len(assignment.partitions) for assignment in assignments)
    return (
        check_name("a protocol type", command.protocol_type or "")
        or check_name("the name of a protocol", command.protocol or "")
        or check_count(count, ASSIGNED_PARTITIONS_MAX, "assigned partitions")
        or _first(map(_check_assignment, assignments))
    )


def _check_assignment(assignment: rq.Assignment) -> Refused | None:
    return (
        check_data("the assignment of a member", len(assignment.data))
        or _first(map(check_topic, {partition.topic for partition in assignment.partitions}))
        or _first(check_place(partition) for partition in assignment.partitions if partition.partition < 0)
    )


def _check_transaction(transaction: rq.TransactionKey) -> Refused | None:
    return _check_range("a producer id", transaction.producer_id, LONG_MAX) or _check_range(
        "a producer epoch", transaction.producer_epoch, rq.PRODUCER_EPOCH_MAX
    )


def _check_range(what: str, found: int, high: int) -> Refused | None:
    if 0 <= found <= high:
        return None
    return Refused(ErrorCode.INVALID_REQUEST, f"expected {what}, 0 to {high}, found {found}")


def _check_places(partitions: Iterable[TopicPartition]) -> Refused | None:
    """Numbers that no partition has are answered one by one."""
    places = tuple(partitions)
    return check_count(len(places), PARTITIONS_MAX, "partitions") or _first(
        map(check_topic, {partition.topic for partition in places})
    )


def _check_member_ids(group: Group | None, member_id: str, group_instance_id: str | None) -> Refused | None:
    if group is not None and member_id in group.members:
        is_known_instance = group_instance_id is None or group_instance_id in group.instance_ids
        return None if is_known_instance else _check_instance_id(group_instance_id)
    return check_text("a member id", member_id, MEMBER_ID_BYTES_MAX) or _check_instance_id(group_instance_id)


def _check_instance_id(group_instance_id: str | None) -> Refused | None:
    if group_instance_id is None:
        return None
    if not group_instance_id:
        return Refused(ErrorCode.INVALID_REQUEST, "expected a group instance id or none, found an empty one")
    return check_name("a group instance id", group_instance_id)


def _first(refusals: Iterable[Refused | None]) -> Refused | None:
    return next((refused for refused in refusals if refused is not None), None)


class Placement(Enum):
    """The function from a group id to a partition of `__consumer_offsets`.

    Guards one promise: a group is found where it was put. Kafka's choice is abs(hash) % n, of Java's
    String.hashCode. Versions before kept the hash without its sign bit, which puts every group with a negative hash
    elsewhere: the topic that they created has no word of its placement, and keeps that one for ever.
    """

    ABSOLUTE = "java-hash-abs"  # Kafka's
    MASKED = "java-hash-masked"  # also for a topic whose configs do not name its placement


def find_placement(kept: Mapping[str, str]) -> Placement | None:
    """That of a topic with these configs; None: one that this version does not know."""
    found = kept.get(GROUP_PLACEMENT, Placement.MASKED.value)
    return next((placement for placement in Placement if placement.value == found), None)


def coordinator_partition(group_id: str, count: int, placement: Placement) -> int:
    """Return which of the `count` partitions of `__consumer_offsets` has this group."""
    code = java_hash(group_id)
    match placement:
        case Placement.ABSOLUTE:
            return java_abs(code) % count
        case Placement.MASKED:
            return (code & 0x7FFFFFFF) % count


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Bounds of the groups that one broker holds in memory: one for each thing that a client can make grow. Each field
    is named after its key. A refusal names the bound, and a later try may succeed: members leave, ids and offsets
    expire."""

    members_max: int = 100_000
    members_bytes_max: int = 268_435_456
    members_per_client_max: int = 20_000
    offsets_max: int = 5_000_000
    max_session_timeout_ms: int = 30 * MINUTE_MS


class GroupTotals:
    """Counts what groups take in memory as groups are replaced, so that a check against the bounds costs nothing."""

    def __init__(self, bounds: GroupBounds) -> None:
        self._bounds = bounds
        self.members = 0  # pending ones too
        self.member_bytes = 0
        self.offsets = 0  # pending ones too
        self._given: dict[str, list[int]] = {}  # client -> a heap of the times until which its new ids may come back
        self._clients_cleaned_at = _CLIENTS_MIN

    def replace(self, before: Group | None, after: Group | None) -> None:
        for group, sign in ((before, -1), (after, 1)):
            if group is not None:
                self.members += sign * (len(group.members) + len(group.pending_members))
                self.member_bytes += sign * group.data_bytes
                self.offsets += sign * (len(group.offsets) + group.pending_offset_count)

    def check(self, command: rq.GroupCommand, group: Group | None, *, now_ms: int) -> Refused | None:
        """Return COORDINATOR_NOT_AVAILABLE if the command would grow what has reached its bound. `group` is the
        command's."""
        match command:
            case rq.JoinGroup():
                said = sum(len(offer.metadata) for offer in command.protocols)
                member = None if group is None else group.members.get(command.member_id)
                is_replacing = group is not None and command.group_instance_id in group.instance_ids
                is_new = command.member_id == rq.NO_MEMBER_ID and not is_replacing
                return self._check_bytes(said, 0 if member is None else member.data_bytes) or (
                    self._check_new_member(command, now_ms=now_ms) if is_new else None
                )
            case rq.SyncGroup():
                given = sum(len(assignment.data) for assignment in command.assignments.values())
                return self._check_bytes(given, 0 if group is None else group.data_bytes)
            case rq.OffsetCommit() if self.offsets >= self._bounds.offsets_max:
                known = () if group is None else group.offsets
                is_new = any(offset.partition not in known for offset in command.offsets)
                return self._refuse_offsets() if is_new else None
            case rq.TxnOffsetCommit() if self.offsets >= self._bounds.offsets_max:
                pending = None if group is None else group.pending_offsets.get(command.transaction)
                held = () if pending is None else tuple(offset.partition for offset in pending.offsets)
                return None if {offset.partition for offset in command.offsets} <= {*held} else self._refuse_offsets()
            case _:
                return None

    def _check_bytes(self, wanted: int, held: int) -> Refused | None:
        """Refuse more bytes than allowed. Existing members may continue with as much as they have."""
        if self.member_bytes < self._bounds.members_bytes_max or wanted <= held:
            return None
        return self._refuse("bytes of members", "group.members.bytes.max", self.member_bytes)

    def _check_new_member(self, command: rq.JoinGroup, *, now_ms: int) -> Refused | None:
        if self.members >= self._bounds.members_max:
            return self._refuse("members", "group.members.count.max", self.members)
        if command.session_timeout_ms > self._bounds.max_session_timeout_ms:
            return None  # the rules refuse it, and no id is given that might come back for so long
        client = counted_host(command.client_host)
        return self._give_id(client, until_ms=now_ms + command.session_timeout_ms, now_ms=now_ms)

    def _give_id(self, client: str, *, until_ms: int, now_ms: int) -> Refused | None:
        if len(self._given) >= self._clients_cleaned_at:
            self._given = {one: times for one, times in self._given.items() if any(until > now_ms for until in times)}
            # A look costs as much as there are clients; if few have expired, the next look is far off.
            self._clients_cleaned_at = max(_CLIENTS_MIN, 2 * len(self._given))
        given = self._given.setdefault(client, [])
        while given and given[0] <= now_ms:
            heapq.heappop(given)
        if len(given) >= self._bounds.members_per_client_max:
            return self._refuse(f"new members of client {client}", "group.members.per.client.max", len(given))
        heapq.heappush(given, until_ms)
        return None

    def _refuse_offsets(self) -> Refused:
        return self._refuse("committed and pending offsets", "group.offsets.count.max", self.offsets)

    def _refuse(self, what: str, key: str, found: int) -> Refused:
        return Refused(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"the broker holds {found} {what}, expected fewer than {key} for one more; retry later",
        )
