"""Decisions about a coordinator's groups that share one commit: taken one after another, carried out together.

Guards one promise: each decision sees the groups as the ones before it leave them, though nothing of them has happened
yet; and if the commit fails, nothing has. Also: what a decision of the same commit did to a timer counts, so that a
timer that expired while the member's sign of life was already here ends nobody. Decides nothing itself, does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from bus.consumer_groups.decisions import decide, decide_timeout
from bus.consumer_groups.group import Group
from bus.consumer_groups.group_rules import GroupRules
from bus.consumer_groups.records import GroupRecord
from bus.consumer_groups.steps import GroupCommand, GroupStep, GroupTimer

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


@dataclass(slots=True)
class GroupDecisions:
    """`groups` are those before the first decision; `steps` are to be carried out in order, each for its group."""

    groups: Mapping[str, Group]
    timers: Container[GroupTimer]  # that are set
    rules: GroupRules
    steps: list[tuple[str, GroupStep]] = field(default_factory=list)
    records: list[GroupRecord] = field(default_factory=list)
    request_ids: set[int] = field(default_factory=set)  # that asked for these decisions
    sweeps: list[int] = field(default_factory=list)  # request ids of those that are done with them
    _staged: dict[str, Group | None] = field(default_factory=dict)
    _touched_timers: set[GroupTimer] = field(default_factory=set)

    def take(self, waiting: Waiting, *, now_ms: int) -> None:
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

    def _find(self, group_id: str) -> Group | None:
        return self._staged[group_id] if group_id in self._staged else self.groups.get(group_id)

    def _add(self, group_id: str, step: GroupStep) -> None:
        self._staged[group_id] = step.group
        self._touched_timers.update(change.timer for change in step.timers)
        self.records.extend(step.records)
        self.steps.append((group_id, step))
