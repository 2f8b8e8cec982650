"""Bugs of transactions: each takes one rule out of the code, for the judges that must see it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from bus.consumer_groups import decisions as group_decisions
from bus.errors import ErrorCode, Refused
from bus.ports import AppliedTransaction
from bus.runtime.coordinators.shard import CoordinatorShard
from bus.runtime.coordinators.transaction_driver import TransactionParticipants
from bus.runtime.metadata.peers import StepKind, Stepped, StepRequest
from bus.runtime.partitions.partition_queue import TransactionWritten
from bus.runtime.partitions.partition_transactions import PartitionTransactions, ResolvedTransactions
from bus.transactions import decisions, endings, loading
from bus.transactions.changes import PartitionResolved, TransactionStep
from bus.transactions.requests import EndTransaction, TimerKind
from bus.transactions.state import Transaction, TransactionState


def broken_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is asked for again is answered as done, whatever was decided (KAFKA-20785)."""
    monkeypatch.setattr(endings, "_refuse_aborted", lambda transaction: endings._ended(transaction))


def broken_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what was said of an earlier transaction for the present one (KAFKA-17754)."""
    monkeypatch.setattr(decisions, "_check_adder", lambda transaction, identity: None)


def broken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of an end: it needs the producer id only (KAFKA-9600)."""
    decide = decisions.decide_end

    def decide_any(step: TransactionStep, command: EndTransaction, *, request_id: int) -> None:
        if step.transaction.state is TransactionState.ONGOING:
            command = replace(command, producer_epoch=step.transaction.producer_epoch)
        decide(step, command, request_id=request_id)

    monkeypatch.setattr(decisions, "decide_end", decide_any)


def broken_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new instance gets the epoch of the one before it (KAFKA-6119)."""
    change = TransactionStep.change

    def change_without(self: TransactionStep, **changes: Any) -> None:
        if changes.get("state") is TransactionState.EMPTY:
            changes["producer_epoch"] = self.transaction.producer_epoch
        change(self, **changes)

    monkeypatch.setattr(TransactionStep, "change", change_without)


def broken_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not take up every change that the log has."""
    carry_out, counts = CoordinatorShard._carry_out, itertools.count(1)

    def carry_out_most(self: Any, turn: Any) -> None:
        if turn.records and next(counts) % 4 == 0:
            turn.states.clear()
        carry_out(self, turn)

    monkeypatch.setattr(CoordinatorShard, "_carry_out", carry_out_most)


def broken_stability(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets that a transaction may still move are told as they are (KIP-447)."""
    fetch = group_decisions.fetch_offsets
    monkeypatch.setattr(
        group_decisions, "fetch_offsets", lambda group, command: fetch(group, replace(command, require_stable=False))
    )


def broken_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of a commit are dropped."""
    step = TransactionParticipants._step_group

    async def drop(self: TransactionParticipants, kind: StepKind, request: StepRequest, group: Any) -> Any:
        return await step(self, StepKind.DROP if kind is StepKind.APPLY else kind, request, group)

    monkeypatch.setattr(TransactionParticipants, "_step_group", drop)


def broken_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply what is to be dropped."""
    step = TransactionParticipants._step_partition

    async def apply_always(
        self: TransactionParticipants, kind: StepKind, request: StepRequest, name: Any, last_sequence: int
    ) -> Any:
        if kind is StepKind.DROP:
            voted = await step(self, StepKind.VOTE, request, name, -1)
            if isinstance(voted, Stepped) and voted.last_sequence >= 0:
                return await step(self, StepKind.APPLY, request, name, voted.last_sequence)
        return await step(self, kind, request, name, last_sequence)

    monkeypatch.setattr(TransactionParticipants, "_step_partition", apply_always)


def broken_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit leaves a partition out."""
    apply = PartitionTransactions.apply

    async def forget(self: PartitionTransactions, key: Any, *about: Any, **how: Any) -> Any:
        if self._name.partition == 1:
            return TransactionWritten(self._writer.state.version, -1)
        return await apply(self, key, *about, **how)

    monkeypatch.setattr(PartitionTransactions, "apply", forget)


def broken_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vote deletes what it has counted."""
    vote = PartitionTransactions.vote

    async def vote_and_drop(self: PartitionTransactions, key: Any, last_sequence: int) -> Any:
        voted = await vote(self, key, last_sequence)
        await self._calls.housekeep(lambda: self._table.transactions.staged.drop(key))
        return voted

    monkeypatch.setattr(PartitionTransactions, "vote", vote_and_drop)


def broken_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that was fenced is told something of which no client knows what it means."""
    monkeypatch.setattr(
        endings, "refuse_ended", lambda transaction, found: Refused(ErrorCode.POLICY_VIOLATION, "simulated")
    )


# ---------------------------------------------------------------- of commits that no record decides


def broken_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new coordinator believes its log, and asks no partition what came behind."""
    monkeypatch.setattr(loading, "find_anchor", lambda record: None)


def broken_taking_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition has told of later transactions, and their identities are given once more."""

    def forget(step: TransactionStep, command: Any, last_number: int) -> None: ...

    monkeypatch.setattr(loading, "_take_up", forget)


def broken_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out of a transaction, which is short, aborts it while its version is under way."""
    set_timer = TransactionStep.set_timer

    def set_early(self: TransactionStep, kind: TimerKind, after_ms: int, *, number: int = 0) -> None:
        set_timer(self, kind, min(after_ms, 30) if kind is TimerKind.TIMEOUT else after_ms, number=number)

    def cancel_nothing(self: TransactionStep, kind: TimerKind, *, number: int = 0) -> None: ...

    def time_out(step: TransactionStep, number: int) -> None:
        transaction = step.transaction
        if transaction.number == number and transaction.state is TransactionState.PREPARE_COMMIT:
            step._state = replace(  # as if it were open still
                transaction, state=TransactionState.ONGOING, producer_epoch=transaction.producer_epoch - 1
            )
        endings.time_out(step, number)

    monkeypatch.setattr(TransactionStep, "set_timer", set_early)
    monkeypatch.setattr(TransactionStep, "cancel_timer", cancel_nothing)
    monkeypatch.setattr(decisions, "time_out", time_out)


def broken_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that comes late is committed although a later coordinator has been told that it never will."""

    async def resolve_only(self: PartitionTransactions, unknown: AppliedTransaction) -> Any:
        last = (self._table.transactions.version_of(unknown.transactional_id) - 1) // 2
        rows = TransactionWritten(self._writer.state.version, -1)
        return ResolvedTransactions(max(last, unknown.number - 1), rows if last >= unknown.number else None)

    monkeypatch.setattr(PartitionTransactions, "resolve", resolve_only)


def broken_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version decides every transaction, also one of several partitions, and without an anchor in the log."""
    monkeypatch.setattr(endings, "_may_be_one_phase", lambda transaction, pinned: True)


def broken_giving_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer is fenced because the topic of its last transactions is deleted, and its coordinator has died."""
    monkeypatch.setattr(Transaction, "has_given_up", lambda transaction, identity: False)


def broken_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that a partition refuses for ever is used by the next transaction."""
    monkeypatch.setattr(
        loading, "PartitionResolved", lambda transactional_id, skipped: PartitionResolved(transactional_id, -1)
    )
