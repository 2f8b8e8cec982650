"""What a decision about a group is made of: the configuration that it goes by, what it may be asked, and a step while
it is being decided.

Guards two promises: a request is answered once at most, and of each timer and each member only the last word counts.
A member that is answered in a step is not told the same by a notice: it would act on it twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bus.consumer_groups import requests as rq
from bus.consumer_groups.changes import GroupRecord, apply
from bus.consumer_groups.group import Group, Member, new_group
from bus.consumer_groups.records import LOGGED, LoggedRecord
from bus.errors import Refused
from bus.machine import CancelTimer, Reply, SetTimer

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What the broker's configuration says to the rules. Each field is named after its key."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30 * MINUTE_MS
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    # Ids that were given and have not come back; a large group that begins has one for each of its members.
    pending_members_max: int = 10_000
    # Transactions of a group that have offsets pending; one producer for each member has one open.
    pending_transactions_max: int = 10_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    # Who joins for the first time cannot send heartbeats; this long may its join wait (a constant of Kafka's).
    new_member_join_timeout_ms: int = 5 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Notice:
    """What the next heartbeat of the member would be told, told now: REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID or
    FENCED_INSTANCE_ID."""

    group_id: str
    member_id: str
    refused: Refused


class GroupStep:
    """`group` is what `apply` makes of the changes so far, and cannot be set."""

    def __init__(self, group: Group | None, group_id: str, *, rules: GroupRules, now_ms: int) -> None:
        self._group = group or new_group(group_id)
        self.rules = rules
        self.now_ms = now_ms
        self.changes: list[GroupRecord] = []
        self.records: list[LoggedRecord] = []  # of `changes`, those for the log
        self._replies: dict[int, Reply[rq.GroupAnswer]] = {}
        self._timers: dict[rq.GroupTimer, SetTimer[rq.GroupCommand] | CancelTimer[rq.GroupCommand]] = {}
        self._notices: dict[str, Notice] = {}

    @property
    def group(self) -> Group:
        """A new one if there is none."""
        return self._group

    @property
    def state(self) -> Group | None:
        return None if self._group.is_nothing else self._group

    @property
    def may_log_later(self) -> bool:
        """Nothing but the log knows what a group was told."""
        return False

    @property
    def replies(self) -> Collection[Reply[rq.GroupAnswer]]:
        return self._replies.values()

    @property
    def timers(self) -> Collection[SetTimer[rq.GroupCommand] | CancelTimer[rq.GroupCommand]]:
        return self._timers.values()

    @property
    def notices(self) -> Collection[Notice]:
        return self._notices.values()

    def record(self, *records: GroupRecord) -> None:
        self.changes += records
        self.records += [record for record in records if isinstance(record, LOGGED)]
        self._group = apply(self._group, records) or new_group(self._group.group_id)

    def reply(self, request_id: int, answer: rq.GroupAnswer) -> None:
        assert request_id not in self._replies, f"request {request_id} is answered twice"
        self._replies[request_id] = Reply(request_id, answer)

    def notify(self, member_id: str, refused: Refused) -> None:
        self._notices[member_id] = Notice(self._group.group_id, member_id, refused)

    def set_timer(self, kind: rq.TimerKind, after_ms: int, member_id: str = "") -> None:
        timer = rq.GroupTimer(kind, self._group.group_id, member_id)
        self._timers[timer] = SetTimer(timer, after_ms)

    def cancel_timer(self, kind: rq.TimerKind, member_id: str = "") -> None:
        timer = rq.GroupTimer(kind, self._group.group_id, member_id)
        self._timers[timer] = CancelTimer(timer)

    def set_session(self, member: Member) -> None:
        self.set_timer(rq.TimerKind.SESSION, member.session_timeout_ms, member.member_id)
