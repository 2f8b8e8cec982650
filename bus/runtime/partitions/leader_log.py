"""A log that this broker leads: what the outcomes of taking the lead and of a commit mean, and when nothing may be
committed any more.

A partition's writer and the cluster metadata each have one. Guards three promises. Memory that may differ from the log
is never committed on: it is read again before (`is_reload_due`). A leader that finds another one of a higher epoch, or
of its own epoch but of another life, steps down at once, wherever it finds it: in the version that it lost a race for,
or in the log that it reads again. And the log is never read again while files or versions of it are looked through.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault, VersionReplaced
from bus.model import TopicPartition
from bus.ports import CommitOutcome, Committed, Conflicted, FenceLost, Leadable, LogState, Unknown

_log = logging.getLogger(__name__)

T = TypeVar("T")

# A change is refused after this many lost races in a row against writers without a higher epoch.
CONFLICTS_MAX = 10

# Conflicted: another writer has the version, and memory follows the log before anything else is committed.
ChangeOutcome = Committed | Conflicted | Refused


class Change(Protocol):
    """A commit that is not an append. It decides on the event loop, while no other commit is in flight."""

    def __call__(self, *, leader_epoch: int, now_ms: int) -> Callable[[], CommitOutcome] | Committed | Refused:
        """The call that commits, for a thread; or the answer, if there is nothing to commit."""
        ...


class InThread(Protocol):
    """One of the pools of `BlockingCalls`."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


def refuse_lead(name: str, outcome: CommitOutcome, leader_epoch: int, fenced: ErrorCode) -> Refused | None:
    """Why a log is not led after its `lead` under that epoch; None if it is. `fenced`: it has another leader, and this
    epoch is too low; after any other refusal it may be tried again."""
    match outcome:
        case Committed():
            return None
        case Conflicted(_, epoch, _) if epoch is not None:
            return Refused(fenced, f"{name}: {_fenced_by(leader_epoch, epoch)}")
        case Conflicted(version, _, operation):
            reason = f"the fence of leader epoch {leader_epoch} came after {operation}, the last one version {version}"
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {reason}")
        case Unknown(version, reason):
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {_unknown_outcome(version, reason)}")


def _fenced_by(leader_epoch: int, by: int) -> str:
    return f"leader epoch {leader_epoch} was fenced by a leader of epoch {by}"


def _unknown_outcome(version: int, reason: str) -> str:
    return f"the outcome of committing version {version} is unknown: {reason}"


class LeaderLog:
    """The owner holds `slot` from its decision until memory has followed the commit. `on_stopped` is called on the loop
    whenever the log stops. `log` is led at `leader_epoch` already, or nothing is committed before `lead`."""

    def __init__(
        self,
        name: TopicPartition,
        log: Leadable,
        *,
        title: str,
        way_out: str,
        leader_epoch: int,
        fenced: ErrorCode,
        reload_in: InThread,
        housekeep_in: InThread,
        on_stopped: Callable[[Refused], None],
    ) -> None:
        self._name = name
        self._log = log
        self._title = title
        self._way_out = way_out
        self._fenced = fenced
        self._reload_in = reload_in
        self._housekeep_in = housekeep_in
        self._on_stopped = on_stopped
        self._housekeeping = asyncio.Lock()  # meanwhile the log is not read again
        self.slot = asyncio.Lock()
        self.is_reload_due = False
        self.stopped: Refused | None = None
        self.leader_epoch = leader_epoch
        self._version = self._log.state.version

    async def lead(self, leader_epoch: int, *, now_ms: int, fence: bool) -> Refused | None:
        """Commit from now on under that epoch: see `Leadable.lead`. The owner takes what the log says then. Raises
        `StorageFault`; after that, or a refusal, nothing may be committed."""
        call = functools.partial(self._log.lead, leader_epoch, now_ms, fence=fence)
        self.is_reload_due = True
        async with self._housekeeping:
            outcome = await self._reload_in(call)
        refused = refuse_lead(self._title, outcome, leader_epoch, self._fenced)
        if refused is None:
            self.leader_epoch, self._version = leader_epoch, self._log.state.version
            self.is_reload_due, self.stopped = False, None
        elif self.stopped is None:
            self.end(refused)
        return refused

    async def commit(self, call: Callable[[], CommitOutcome], in_thread: InThread) -> ChangeOutcome:
        """Commit; the caller holds the slot. After a refusal nothing was committed, unless `is_reload_due`."""
        self.is_reload_due = True  # if this is interrupted, only the log can tell the outcome
        try:
            outcome = await in_thread(call)
        except FenceLost as lost:
            outcome = lost.outcome
        except StorageFault as fault:
            self.is_reload_due = False  # nothing was committed
            self._stop_if_replaced(fault)
            return self.refuse(str(fault))
        match outcome:
            case Committed(version):
                self._version = version
                self.is_reload_due = False
            case Conflicted(version, None, operation) if version <= self._version:
                self.is_reload_due = False  # there is no other writer: the table itself has refused
                return self.refuse(operation, ErrorCode.INVALID_REQUEST)
            case Conflicted(version, epoch, operation):
                _log.warning(
                    "version %d was committed by another writer (%s, leader epoch %s)",
                    version,
                    operation,
                    epoch,
                    extra=self.fields(),
                )
                if epoch is not None and (
                    epoch > self.leader_epoch or (epoch == self.leader_epoch and outcome.is_rival)
                ):
                    self._step_down(epoch)
            case Unknown(version, reason):
                message = _unknown_outcome(version, reason)
                _log.error("%s: %s", self._title, message, extra=self.fields())
                return self.refuse(message)
        return outcome

    async def reload(self) -> LogState | None:
        """Read the log again; the owner takes what it says, and then sets `is_reload_due` to False. None: it cannot be
        read for now, or it must not be followed, and then the log is stopped."""
        self.is_reload_due = True
        try:
            async with self._housekeeping:
                log = await self._reload_in(self._log.reload)
        except StorageDamaged as damage:
            self.stop(ErrorCode.KAFKA_STORAGE_ERROR, f"{damage}; {self._way_out}")
        except StorageFault as fault:
            _log.error("the log cannot be read again for now: %s", fault, extra=self.fields())
        else:
            if self.may_follow(log):
                self._version = log.version
                return log
            self.is_reload_due = False  # it was read; a leader of a higher epoch may go on from there
        return None

    def may_follow(self, log: LogState) -> bool:
        """If it returns False, the log is led by another leader, and this one has stepped down."""
        is_overtaken = log.leader_epoch > self.leader_epoch or log.is_overtaken
        if is_overtaken and self.stopped is None:
            self._step_down(log.leader_epoch)
        return not is_overtaken

    async def housekeep(self, call: Callable[[], T]) -> T:
        """Look through files or versions, beside commits; `call` commits nothing. Raises `StorageFault`."""
        try:
            async with self._housekeeping:
                return await self._housekeep_in(call)
        except StorageFault as fault:
            self._stop_if_replaced(fault)
            raise

    def refuse_until_reloaded(self) -> Refused | None:
        """Why nothing can be committed now."""
        if self.stopped is None and self.is_reload_due:
            return self.refuse("the log could not be read again after a fault; retry later")
        return self.stopped

    def refuse(self, reason: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> Refused:
        return Refused(code, f"{self._title}: {reason}")

    def stop(self, code: ErrorCode, reason: str, *, level: int = logging.ERROR) -> None:
        """Commit nothing from now on."""
        _log.log(level, "%s stopped: %s", self._title, reason, extra=self.fields())
        self.end(self.refuse(reason, code))

    def end(self, reason: Refused) -> None:
        """End the log like `stop`, but not because of a fault of the log."""
        self.stopped = reason
        self._on_stopped(reason)

    def _stop_if_replaced(self, fault: StorageFault) -> None:
        if isinstance(fault, VersionReplaced):
            self.stop(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))

    def _step_down(self, leader_epoch: int) -> None:
        """Another broker leads: in a cluster that is no fault."""
        self.stop(self._fenced, _fenced_by(self.leader_epoch, leader_epoch), level=logging.WARNING)

    def fields(self, **more: object) -> dict[str, object]:
        """The fields for lines of the broker's own log."""
        return {"topic": self._name.topic, "partition": self._name.partition, "version": self._version, **more}
