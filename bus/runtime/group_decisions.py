"""Decisions about a coordinator's groups that share one commit: taken one after another, carried out together.

Guards one promise: each decision sees the groups as the ones before it leave them, though nothing of them has happened
yet; and if the commit fails, nothing has. Also: what a decision of the same commit did to a timer counts, so that a
timer that expired while the member's sign of life was already here ends no member. And a record that cannot go into the
log costs the call that asked for it: the other decisions are taken again without it. Decides nothing itself, does no
I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from bus.consumer_groups.decisions import decide, decide_timeout
from bus.consumer_groups.group import Group
from bus.consumer_groups.group_rules import GroupRules
from bus.consumer_groups.records import GroupRecord, approximate_bytes
from bus.consumer_groups.requests import JoinGroup, JoinRefused
from bus.consumer_groups.steps import GroupCommand, GroupStep, GroupTimer, Reply
from bus.errors import Refused, count_of

_log = logging.getLogger(__name__)

DecideForGroup = Callable[[Group], GroupStep]


@dataclass(frozen=True, slots=True)
class WaitingCommand:
    command: GroupCommand
    request_id: int
    new_member_id: str  # for a join that has none


@dataclass(frozen=True, slots=True)
class WaitingTimeout:
    timer: GroupTimer


@dataclass(frozen=True, slots=True)
class WaitingSweep:
    """The same decision about several groups, as far as they are there."""

    request_id: int
    group_ids: tuple[str, ...]
    decide: DecideForGroup


Waiting = WaitingCommand | WaitingTimeout | WaitingSweep


@dataclass(frozen=True, slots=True)
class _Taken:
    waiting: Waiting
    now_ms: int


@dataclass(slots=True)
class GroupDecisions:
    """`groups` are those before the first decision; `steps` are to be carried out in order, each for its group."""

    groups: Mapping[str, Group]
    timers: Container[GroupTimer]  # that are set
    rules: GroupRules
    steps: list[tuple[str, GroupStep]] = field(default_factory=list)
    records: list[GroupRecord] = field(default_factory=list)
    record_bytes: int = 0  # about what `records` take
    request_ids: set[int] = field(default_factory=set)  # that asked for these decisions
    sweeps: list[int] = field(default_factory=list)  # request ids of those that are done with them
    _taken: list[_Taken] = field(default_factory=list)
    _origins: list[int] = field(default_factory=list)  # of each record, the position in `_taken`
    _staged: dict[str, Group | None] = field(default_factory=dict)
    _touched_timers: set[GroupTimer] = field(default_factory=set)

    def take(self, waiting: Waiting, *, now_ms: int) -> None:
        self._taken.append(_Taken(waiting, now_ms))
        match waiting:
            case WaitingCommand(command, request_id, new_member_id):
                self.request_ids.add(request_id)
                group = self._find(command.group_id)
                step = decide(
                    group,
                    command,
                    request_id=request_id,
                    new_member_id=new_member_id,
                    rules=self.rules,
                    now_ms=now_ms,
                )
                self._add(command.group_id, step)
            case WaitingTimeout(timer):
                group = self._find(timer.group_id)
                if group is not None and timer not in self._touched_timers and timer not in self.timers:
                    self._add(timer.group_id, decide_timeout(group, timer, rules=self.rules, now_ms=now_ms))
            case WaitingSweep(request_id, group_ids, decide_for):
                self.request_ids.add(request_id)
                self.sweeps.append(request_id)
                for group_id in group_ids:
                    group = self._find(group_id)
                    if group is not None:
                        self._add(group_id, decide_for(group))

    def without(self, faults: Mapping[int, Refused]) -> GroupDecisions:
        """The same decisions, but for those that gave the records at the positions of `faults`: their calls are
        refused, and nothing else of them happens."""
        refused = {self._origins[position]: fault for position, fault in faults.items()}
        others = GroupDecisions(self.groups, self.timers, self.rules)
        for number, taken in enumerate(self._taken):
            fault = refused.get(number)
            if fault is None:
                others.take(taken.waiting, now_ms=taken.now_ms)
            else:
                others._refuse(taken.waiting, fault)
        return others

    def _refuse(self, waiting: Waiting, fault: Refused) -> None:
        _log.error("%s is refused: %s", _name_of(waiting), fault.message)
        if isinstance(waiting, WaitingSweep):
            self.request_ids.add(waiting.request_id)
            self.sweeps.append(waiting.request_id)
        elif isinstance(waiting, WaitingCommand):
            command = waiting.command
            self.request_ids.add(waiting.request_id)
            answer = JoinRefused(fault, command.member_id) if isinstance(command, JoinGroup) else fault
            unchanged = self._find(command.group_id)
            self._add(command.group_id, GroupStep(unchanged, replies=(Reply(waiting.request_id, answer),)))

    def _find(self, group_id: str) -> Group | None:
        return self._staged[group_id] if group_id in self._staged else self.groups.get(group_id)

    def _add(self, group_id: str, step: GroupStep) -> None:
        self._staged[group_id] = step.group
        self._touched_timers.update(change.timer for change in step.timers)
        self.records.extend(step.records)
        self.record_bytes += sum(map(approximate_bytes, step.records))
        self._origins.extend([len(self._taken) - 1] * len(step.records))
        self.steps.append((group_id, step))


def _name_of(waiting: Waiting) -> str:
    match waiting:
        case WaitingCommand(command):
            return f"{type(command).__name__} of group {command.group_id!r}"
        case WaitingTimeout(timer):
            return f"the end of the {timer.kind.value} time of group {timer.group_id!r}"
        case WaitingSweep(_, group_ids):
            return f"a look at {count_of(len(group_ids), 'group')}"
