"""Decisions of a coordinator that share one commit: taken one after another, carried out together.

Guards one promise: each decision sees the states as the ones before it leave them, though nothing of them has happened
yet; and if the commit fails, nothing has. Also: what a decision of the same commit did to a timer counts, so that a
timer that expired while the sign of life was already here has no effect. And a record that cannot go into the log costs
the call that asked for it: the other decisions are taken again without it. Does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Generic

from bus.errors import Refused
from bus.machine import AnswerT, CancelTimer, CommandT, Machine, NoticeT, RecordT, Reply, SetTimer, StateT

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting(Generic[CommandT]):
    """`request_id` None: a timer has expired, and no caller awaits an answer."""

    command: CommandT
    request_id: int | None


class Turn(Generic[StateT, CommandT, RecordT, AnswerT, NoticeT]):
    """`states` are those before the first decision, `timers` those that are set."""

    def __init__(
        self,
        machine: Machine[StateT, CommandT, RecordT, AnswerT, NoticeT],
        states: Mapping[str, StateT],
        timers: Container[CommandT],
    ) -> None:
        self._machine = machine
        self._before = states
        self._set_timers = timers
        self.states: dict[str, StateT | None] = {}  # after the decisions
        self.records: list[RecordT] = []
        self.may_log_later = True  # all of it may happen before `records` are committed
        self.replies: list[Reply[AnswerT]] = []
        self.timers: list[SetTimer[CommandT] | CancelTimer[CommandT]] = []
        self.notices: list[NoticeT] = []
        self._taken: list[tuple[Waiting[CommandT], int]] = []  # each with the time of its decision
        self._origins: list[int] = []  # of each of `records`, the position in `_taken`
        self._touched_timers: set[CommandT] = set()

    @property
    def request_ids(self) -> frozenset[int]:
        """Of those who await the outcome of these decisions."""
        return frozenset(waiting.request_id for waiting, _ in self._taken if waiting.request_id is not None)

    def state_of(self, entity_id: str) -> StateT | None:
        """As the decisions leave it."""
        return self.states[entity_id] if entity_id in self.states else self._before.get(entity_id)

    def take(self, waiting: Waiting[CommandT], *, now_ms: int) -> None:
        self._taken.append((waiting, now_ms))
        command, request_id = waiting.command, waiting.request_id
        if request_id is None and (command in self._touched_timers or command in self._set_timers):
            return  # it was set again since it expired
        entity_id = self._machine.entity_id(command)
        step = self._machine.decide(self.state_of(entity_id), command, request_id=request_id or 0, now_ms=now_ms)
        self.states[entity_id] = step.state
        self.records += step.records
        self.may_log_later &= step.may_log_later
        self._origins += [len(self._taken) - 1] * len(step.records)
        self.replies += step.replies
        self.notices += step.notices
        for change in step.timers:
            self.timers.append(change)
            self._touched_timers.add(change.timer)

    def without(self, faults: Mapping[int, Refused]) -> Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]:
        """The same decisions, but for those that gave the records at the positions of `faults`: their calls are
        refused, and nothing else of them happens."""
        refused = {self._origins[position]: fault for position, fault in faults.items()}
        others = Turn(self._machine, self._before, self._set_timers)
        for number, (waiting, now_ms) in enumerate(self._taken):
            if number in refused:
                others._refuse(waiting, refused[number], now_ms)
            else:
                others.take(waiting, now_ms=now_ms)
        return others

    def _refuse(self, waiting: Waiting[CommandT], fault: Refused, now_ms: int) -> None:
        command, request_id = waiting.command, waiting.request_id
        _log.error("%s of %s is refused: %s", type(command).__name__, self._machine.entity_id(command), fault.message)
        self._taken.append((waiting, now_ms))
        if request_id is not None:
            self.replies.append(Reply(request_id, self._machine.refuse(command, fault)))
