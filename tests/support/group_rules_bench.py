"""One group with its log, its timers and its clock, as the runtime would keep them: what the tests of the rules share.

After every step it holds the rules to what they promise whatever happens: the group's own invariants; a request is
answered once, and awaited by the group until then; whoever has to be heard of has a timer; and what the log tells is
the group as far as it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bus.consumer_groups.decisions import decide
from bus.consumer_groups.group import Group, GroupRecord, GroupRules, GroupState, GroupStep, Notice, apply, stored_group
from bus.consumer_groups.loading import resume_timers
from bus.consumer_groups.records import LoggedRecord, decode_record, encode_record
from bus.consumer_groups.requests import (
    Assignment,
    ExpireOffsets,
    ForgetTopic,
    GroupAnswer,
    GroupCommand,
    GroupProtocol,
    GroupTimer,
    JoinGroup,
    Swept,
    SyncGroup,
    TimerKind,
)
from bus.machine import SetTimer
from bus.model import TopicPartition
from bus.ports import KeyedRow

GROUP_ID = "billing"
BEGIN_MS = 1_000_000


class GroupBench:
    def __init__(self, rules: GroupRules | None = None) -> None:
        self.rules = GroupRules() if rules is None else rules
        self.group: Group | None = None
        self.logged: Group | None = None  # what `records` make, one step after the other
        self.rows: list[KeyedRow] = []
        self.records: list[LoggedRecord] = []  # `rows`, read back
        self.history: list[GroupRecord] = []  # of this life, those of memory alone too
        self.born: Group | None = None  # as this life found it
        self.now_ms = BEGIN_MS
        self.deadlines: dict[GroupTimer, int] = {}
        self.open: dict[int, GroupCommand] = {}
        self.answers: dict[int, GroupAnswer] = {}
        self.notices: list[Notice] = []
        self.steps: list[GroupStep] = []
        self.last_request_id = 0
        self._last_member_number = 0

    def ask(self, command: GroupCommand, *, name: str = "m") -> int:
        """The request id; `answers` has the answer, as soon as there is one. A new member is called `name`-1, -2 ..."""
        self.last_request_id += 1
        self._last_member_number += 1
        self.open[self.last_request_id] = command
        if isinstance(command, JoinGroup):
            command = replace(command, new_member_id=f"{name}-{self._last_member_number}")
        step = decide(
            self.group,
            command,
            request_id=self.last_request_id,
            rules=self.rules,
            now_ms=self.now_ms,
        )
        self.take(step)
        return self.last_request_id

    def answer(self, command: GroupCommand) -> GroupAnswer:
        """Return the answer to a command that is answered at once."""
        return self.answers[self.ask(command)]

    def wait(self, ms: int) -> None:
        """Time passes, and what runs out meanwhile does so in order."""
        end_ms = self.now_ms + ms
        while (timer := self.next_timer(end_ms)) is not None:
            self.run_out(timer)
        self.now_ms = end_ms

    def next_timer(self, end_ms: int) -> GroupTimer | None:
        """The first that runs out by then."""
        timer = min(self.deadlines, key=self.deadlines.__getitem__, default=None)
        return None if timer is None or self.deadlines[timer] > end_ms else timer

    def run_out(self, timer: GroupTimer) -> None:
        self.now_ms = max(self.now_ms, self.deadlines.pop(timer))
        self._decide_unasked(timer)

    def expire_offsets(self) -> None:
        self._decide_unasked(ExpireOffsets(GROUP_ID, self.now_ms))

    def delete_topic(self, topic: str, topic_id: str) -> None:
        self._decide_unasked(ForgetTopic(GROUP_ID, topic, topic_id))

    def _decide_unasked(self, command: GroupCommand) -> None:
        step = decide(self.group, command, request_id=0, rules=self.rules, now_ms=self.now_ms)
        self.take(step)

    def crash(self) -> None:
        """A new coordinator loads the log; whoever waited for the old one has to ask again."""
        self.check_the_history_makes_the_group()
        self.group = self.born = self.logged = self.loaded()
        self.history.clear()
        self.open.clear()
        self.deadlines.clear()
        for change in () if self.group is None else resume_timers(self.group):
            assert isinstance(change.timer, GroupTimer)
            self.deadlines[change.timer] = self.now_ms + change.after_ms
        self.check()

    def loaded(self) -> Group | None:
        return apply(None, self.records)

    def take(self, step: GroupStep) -> None:
        self.steps.append(step)
        written = [encode_record(record) for record in step.records]
        self.rows += written
        records = [decode_record(row) for row in written]
        self.records += records
        self.logged = apply(self.logged, records)
        self.history += step.changes
        self.group = apply(self.group, step.changes)
        assert self.group == step.state
        for change in step.timers:
            assert isinstance(change.timer, GroupTimer)
            if isinstance(change, SetTimer):
                self.deadlines[change.timer] = self.now_ms + change.after_ms
            else:
                self.deadlines.pop(change.timer, None)
        for reply in step.replies:
            if reply.answer == Swept():
                continue
            del self.open[reply.request_id]
            self.answers[reply.request_id] = reply.answer
        self.notices += step.notices
        self.check(is_changed=bool(step.changes or step.records))

    def check(self, *, is_changed: bool = True) -> None:
        """A group that is not changed, nor the log, was checked before."""
        self.check_every_request_is_awaited()
        self.check_every_silence_ends()
        if is_changed:
            if self.group is not None:
                self.group.check()
            self.check_the_log_tells_what_is_committed()

    def check_every_request_is_awaited(self) -> None:
        members = [] if self.group is None else self.group.members.values()
        awaited = [m.awaiting_join for m in members] + [m.awaiting_sync for m in members]
        assert sorted(request_id for request_id in awaited if request_id is not None) == sorted(self.open)

    def check_every_silence_ends(self) -> None:
        if self.group is None:
            assert not self.deadlines, f"there is no group for {self.deadlines}"
            return
        for member in self.group.members.values():
            if member.awaiting_join is None and member.awaiting_sync is None:
                assert GroupTimer(TimerKind.SESSION, GROUP_ID, member.member_id) in self.deadlines
        for member_id in self.group.pending_members:
            assert GroupTimer(TimerKind.PENDING_MEMBER, GROUP_ID, member_id) in self.deadlines
        is_preparing = self.group.state is GroupState.PREPARING_REBALANCE
        assert (GroupTimer(TimerKind.REBALANCE, GROUP_ID) in self.deadlines) == is_preparing
        assert (GroupTimer(TimerKind.SYNC, GROUP_ID) in self.deadlines) == (self.group.unsynced_count > 0)
        known = self.group.members.keys() | self.group.pending_members.keys() | {""}
        assert {timer.member_id for timer in self.deadlines} <= known

    def check_the_history_makes_the_group(self) -> None:
        """Records make the same group all at once, one by one, and, those of the log, as the last of each key."""
        assert apply(self.born, self.history) == self.group
        one_by_one = self.born
        for record in self.history:
            one_by_one = apply(one_by_one, [record])
        assert one_by_one == self.group
        last: dict[bytes, LoggedRecord] = {}
        for record in self.records:
            key = encode_record(record).key
            last.pop(key, None)
            last[key] = record
        assert apply(None, last.values()) == self.loaded() == self.logged

    def check_the_log_tells_what_is_committed(self) -> None:
        """A group that is stable or empty is in the log as it is; in a rebalance, the log has the generation before."""
        loaded = self.logged
        live = self.group
        if live is None:
            assert loaded is None, "the log has a group that is gone"
            return
        offsets = {} if loaded is None else dict(loaded.offsets)
        assert dict(live.offsets) == offsets
        assert dict(live.pending_offsets) == ({} if loaded is None else dict(loaded.pending_offsets))
        if live.state in (GroupState.STABLE, GroupState.EMPTY) and live.protocol_type is not None:
            as_stored = stored_group(live, live.state, at_ms=live.state_ms)
            assert loaded == apply(None, [as_stored, *live.offsets.values(), *live.pending_offsets.values()])
        elif loaded is not None:
            assert loaded.generation <= live.generation


def load_groups(records: Iterable[LoggedRecord]) -> dict[str, Group]:
    """The groups after all of `records`, in the order of the log."""
    groups: dict[str, Group | None] = {}
    for record in records:
        groups[record.group_id] = apply(groups.get(record.group_id), [record])
    return {group_id: group for group_id, group in groups.items() if group is not None}


PROTOCOLS = (GroupProtocol("range", b"of orders", ("orders",)),)


def join(member_id: str = "", **changes: Any) -> JoinGroup:
    """A join of protocol type consumer to orders, with `changes`."""
    first = JoinGroup(GROUP_ID, member_id, None, "client", "/127.0.0.1", 10_000, 60_000, "consumer", PROTOCOLS)
    return replace(first, **changes)


def stable_bench(*instance_ids: str, rules: GroupRules | None = None) -> GroupBench:
    """A bench whose group is in generation 1 with two dynamic members, m-1 (it leads) and m-3, and static ones. The
    leader has given each its own id as bytes, and orders-0, orders-1 ... in their order."""
    bench = GroupBench(rules)
    for _ in range(2):
        bench.answer(join())
        bench.ask(join(f"m-{bench.last_request_id}"))
    for instance_id in instance_ids:
        bench.ask(join(group_instance_id=instance_id))
    bench.wait(6_000)
    assert bench.group is not None
    members = list(bench.group.members)
    given = {m: Assignment(m.encode(), (TopicPartition("orders", n),)) for n, m in enumerate(members)}
    for member in list(bench.group.members.values()):
        bench.ask(SyncGroup(GROUP_ID, 1, member.member_id, member.group_instance_id, None, None, given))
    assert bench.group.state is GroupState.STABLE
    bench.steps.clear()
    bench.notices.clear()
    return bench
