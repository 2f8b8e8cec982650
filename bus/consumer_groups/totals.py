"""How much of groups one broker holds in memory, and when it takes no more.

Guards one bound for each thing that a client can make grow: members and pending members, what they said in bytes,
committed and pending offsets, and the member ids that one client is given. Counted as groups are replaced, so that a
look costs nothing. What is refused is refused by name, and may succeed later: members leave, ids and offsets expire.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from bus.addresses import counted_host
from bus.consumer_groups.changes import MINUTE_MS
from bus.consumer_groups.group import Group
from bus.consumer_groups.requests import NO_MEMBER_ID, GroupCommand, JoinGroup, OffsetCommit, SyncGroup, TxnOffsetCommit
from bus.errors import ErrorCode, Refused

# So many clients are remembered for the ids that they were given before those whose ids have expired are looked for.
_CLIENTS_MIN = 1_000


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Each is named after its key."""

    members_max: int = 100_000
    members_bytes_max: int = 268_435_456
    members_per_client_max: int = 20_000
    offsets_max: int = 5_000_000
    max_session_timeout_ms: int = 30 * MINUTE_MS


class GroupTotals:
    def __init__(self, bounds: GroupBounds) -> None:
        self._bounds = bounds
        self.members = 0  # pending ones too
        self.member_bytes = 0
        self.offsets = 0  # pending ones too
        self._given: dict[str, list[int]] = {}  # by client: a heap of the times until which the ids may come back
        self._clients_cleaned_at = _CLIENTS_MIN

    def replace(self, before: Group | None, after: Group | None) -> None:
        for group, sign in ((before, -1), (after, 1)):
            if group is not None:
                self.members += sign * (len(group.members) + len(group.pending_members))
                self.member_bytes += sign * group.data_bytes
                self.offsets += sign * (len(group.offsets) + group.pending_offset_count)

    def check(self, command: GroupCommand, group: Group | None, *, now_ms: int) -> Refused | None:
        """COORDINATOR_NOT_AVAILABLE if the command would make grow what is at its bound. `group` is the command's."""
        match command:
            case JoinGroup():
                said = sum(len(offer.metadata) for offer in command.protocols)
                member = None if group is None else group.members.get(command.member_id)
                is_replacing = group is not None and command.group_instance_id in group.instance_ids
                is_new = command.member_id == NO_MEMBER_ID and not is_replacing
                return self._check_bytes(said, 0 if member is None else member.data_bytes) or (
                    self._check_new_member(command, now_ms=now_ms) if is_new else None
                )
            case SyncGroup():
                given = sum(len(assignment.data) for assignment in command.assignments.values())
                return self._check_bytes(given, 0 if group is None else group.data_bytes)
            case OffsetCommit() if self.offsets >= self._bounds.offsets_max:
                known = () if group is None else group.offsets
                is_new = any(offset.partition not in known for offset in command.offsets)
                return self._refuse_offsets() if is_new else None
            case TxnOffsetCommit() if self.offsets >= self._bounds.offsets_max:
                pending = None if group is None else group.pending_offsets.get(command.transaction)
                held = () if pending is None else tuple(offset.partition for offset in pending.offsets)
                return None if {offset.partition for offset in command.offsets} <= {*held} else self._refuse_offsets()
            case _:
                return None

    def _check_bytes(self, wanted: int, held: int) -> Refused | None:
        """Members that are there may go on with as much as they have."""
        if self.member_bytes < self._bounds.members_bytes_max or wanted <= held:
            return None
        return self._refuse("bytes of members", "group.members.bytes.max", self.member_bytes)

    def _check_new_member(self, command: JoinGroup, *, now_ms: int) -> Refused | None:
        if self.members >= self._bounds.members_max:
            return self._refuse("members", "group.members.count.max", self.members)
        if command.session_timeout_ms > self._bounds.max_session_timeout_ms:
            return None  # the rules refuse it, and no id is given that might come back for so long
        client = counted_host(command.client_host)
        return self._give_id(client, until_ms=now_ms + command.session_timeout_ms, now_ms=now_ms)

    def _give_id(self, client: str, *, until_ms: int, now_ms: int) -> Refused | None:
        if len(self._given) >= self._clients_cleaned_at:
            self._given = {one: times for one, times in self._given.items() if any(until > now_ms for until in times)}
            # Where none have expired, the next look is far off: a look costs as much as there are.
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
