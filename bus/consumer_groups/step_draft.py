"""A step while it is being decided: what the parts of one decision share.

Guards two promises: a request is answered once at most, and of each timer and each member only the last word counts.
A member that is answered in the step is not told the same by a notice: it would act on it twice.
"""

from __future__ import annotations

from bus.consumer_groups.group import Group, GroupState, Member
from bus.consumer_groups.group_rules import GroupRules
from bus.consumer_groups.records import GroupRecord
from bus.consumer_groups.steps import (
    CancelTimer,
    GroupAnswer,
    GroupStep,
    GroupTimer,
    Notice,
    Reply,
    SetTimer,
    TimerKind,
)
from bus.errors import Refused


class StepDraft:
    """`group` is replaced as the decision goes on."""

    def __init__(self, group: Group, *, rules: GroupRules, now_ms: int) -> None:
        self.group = group
        self.rules = rules
        self.now_ms = now_ms
        self._records: list[GroupRecord] = []
        self._replies: dict[int, Reply] = {}
        self._timers: dict[GroupTimer, SetTimer | CancelTimer] = {}
        self._notices: dict[str, Notice] = {}

    def record(self, record: GroupRecord) -> None:
        self._records.append(record)

    def reply(self, request_id: int, answer: GroupAnswer) -> None:
        assert request_id not in self._replies, f"request {request_id} is answered twice"
        self._replies[request_id] = Reply(request_id, answer)

    def notify(self, member_id: str, refused: Refused) -> None:
        self._notices[member_id] = Notice(member_id, refused)

    def set_timer(self, kind: TimerKind, after_ms: int, member_id: str = "") -> None:
        timer = GroupTimer(kind, self.group.group_id, member_id)
        self._timers[timer] = SetTimer(timer, after_ms)

    def cancel_timer(self, kind: TimerKind, member_id: str = "") -> None:
        timer = GroupTimer(kind, self.group.group_id, member_id)
        self._timers[timer] = CancelTimer(timer)

    def set_session(self, member: Member) -> None:
        self.set_timer(TimerKind.SESSION, member.session_timeout_ms, member.member_id)

    def change_state(self, state: GroupState) -> None:
        self.group = self.group.at_state(state, now_ms=self.now_ms)

    def step(self) -> GroupStep:
        """A group that is dead, or nothing yet, is none."""
        is_gone = self.group.state is GroupState.DEAD or self.group.is_nothing
        return GroupStep(
            None if is_gone else self.group,
            tuple(self._records),
            tuple(self._replies.values()),
            tuple(self._timers.values()),
            tuple(self._notices.values()),
        )
