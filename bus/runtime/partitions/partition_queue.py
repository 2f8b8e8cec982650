"""The queue of a partition's writer, in order of arrival, with the futures of its answers.

Bounded by bytes: what finds no room is refused by name. What is taken out of the queue must get an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bus.errors import ErrorCode, Refused
from bus.model import RecordBatch
from bus.partition_log.appends import ACKS_LEADER
from bus.ports import AppliedTransaction

# The bytes of one commit: bounds memory while it is encoded, and the time the next one waits.
COMMIT_BYTES_MAX = 32 * 1024 * 1024
# The same of transactions, each of which is two lines of the version.
COMMIT_TRANSACTIONS_MAX = 1_000
# The size at which a request to resume a producer counts: about the memory that it takes.
_RESUMING_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Appended:
    """`version` is -1 while the records are not committed (acks=1), `base_offset` too if the producer does not want to
    know (0).

    `offsets`, where it is given, has the offset of each record, for they do not follow densely from `base_offset`: the
    table had some of an idempotent producer's records. -1: it was in the log, and has since been retired or compacted.
    """

    base_offset: int
    version: int
    log_append_time_ms: int
    log_start: int
    offsets: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class ProducerResumed:
    """The end of an idempotent producer's records: sequence and epoch of the last one, and a version that contains it;
    -1 if there is none."""

    last_sequence: int
    last_epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class TransactionWritten:
    """The rows of a transaction are in the log, from `base_offset` on, densely, in one version. `version` holds them.
    `base_offset` -1: an earlier leader wrote them, in this version or before, and none of them is left."""

    version: int
    base_offset: int


AppendResult = Appended | Refused
ResumeResult = ProducerResumed | Refused
ApplyResult = TransactionWritten | Refused


@dataclass(slots=True)
class WaitingBatch:
    batch: RecordBatch
    acks: int
    current_leader_epoch: int | None
    request_id: str
    answer: asyncio.Future[AppendResult]
    on_settled: Callable[[AppendResult], None] | None = None  # called once, when no commit holds the batch
    queued_ms: float | None = None  # when, by the monotonic clock, if commits are logged

    @property
    def size_bytes(self) -> int:
        return self.batch.size_bytes

    def settle(self) -> None:
        """It is committed, or dropped. Safe to repeat."""
        on_settled, self.on_settled = self.on_settled, None
        if on_settled is not None:
            on_settled(self.answer.result())


@dataclass(slots=True)
class WaitingResume:
    producer_id: int
    producer_epoch: int
    answer: asyncio.Future[ResumeResult]

    @property
    def size_bytes(self) -> int:
        return _RESUMING_BYTES


@dataclass(slots=True)
class WaitingTransaction:
    """A transaction that is committed: all its rows come with one version."""

    applied: AppliedTransaction
    batches: Sequence[RecordBatch]
    answer: asyncio.Future[ApplyResult]
    queued_ms: float | None = None  # as in a batch
    is_one_phase: bool = False  # its version is the decision

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)


WaitingItem = WaitingBatch | WaitingResume | WaitingTransaction


class PartitionQueue:
    """The queue. `size_bytes` counts everything that waits; at most `bytes_max`, except for a single item. Batches that
    got their offsets early count until the next commit takes everything."""

    def __init__(self, name: str, bytes_max: int) -> None:
        self._name = name
        self._bytes_max = bytes_max
        self._items: deque[WaitingItem] = deque()
        self.size_bytes = 0
        self._early_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: WaitingItem) -> Refused | None:
        """Refused if there is no room."""
        size_bytes = item.size_bytes
        if self._items and self.size_bytes + size_bytes > self._bytes_max:
            return Refused(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self._name} has {self.size_bytes} bytes waiting for a commit, {size_bytes} more would exceed "
                f"queued.max.bytes={self._bytes_max}; retry later",
            )
        self._items.append(item)
        self.size_bytes += size_bytes
        return None

    def take_resume(self) -> WaitingResume | None:
        """If it is the first that waits."""
        head = self._items[0] if self._items else None
        if not isinstance(head, WaitingResume):
            return None
        self._items.popleft()
        self.size_bytes -= head.size_bytes
        return head

    def take_transactions(self) -> list[WaitingTransaction]:
        """The next commit, if transactions are the first that wait: up to `COMMIT_BYTES_MAX`, or one larger one. Of a
        transactional id no more than one, since a version says one thing of it."""
        group: dict[str, WaitingTransaction] = {}
        size_bytes = 0
        while self._items and len(group) < COMMIT_TRANSACTIONS_MAX:
            head = self._items[0]
            if not isinstance(head, WaitingTransaction) or head.applied.transactional_id in group:
                break
            head_bytes = head.size_bytes
            if group and size_bytes + head_bytes > COMMIT_BYTES_MAX:
                break
            self._items.popleft()
            size_bytes += head_bytes
            group[head.applied.transactional_id] = head
        self.size_bytes -= size_bytes
        return [*group.values()]

    def take_for_offsets(self) -> list[WaitingBatch]:
        """The batches up to the last one with acks=1: those before it have to have their offsets first."""
        count = 0
        for position, item in enumerate(self._items):
            if not isinstance(item, WaitingBatch):
                break
            if item.acks == ACKS_LEADER:
                count = position + 1
        group = [item for _ in range(count) if isinstance(item := self._items.popleft(), WaitingBatch)]
        self._early_bytes += sum(item.size_bytes for item in group)
        return group

    def take_batches(self) -> list[WaitingBatch]:
        """Take the batches of the next commit, beside those with early offsets: up to `COMMIT_BYTES_MAX`, or one larger
        batch."""
        group: list[WaitingBatch] = []
        size_bytes = 0
        while self._items:
            head = self._items[0]
            if not isinstance(head, WaitingBatch) or (group and size_bytes + head.batch.size_bytes > COMMIT_BYTES_MAX):
                break
            self._items.popleft()
            size_bytes += head.batch.size_bytes
            group.append(head)
        self.size_bytes -= size_bytes + self._early_bytes
        self._early_bytes = 0
        return group

    def refuse_all(self, refusal: Refused) -> None:
        refuse(self._items, refusal)
        self._items.clear()
        self.size_bytes = self._early_bytes = 0


def refuse(waiting: Iterable[WaitingItem], refusal: Refused) -> None:
    """Those who have an answer already (acks 0 and 1), or have gone, get no other."""
    for item in waiting:
        if not item.answer.done():
            item.answer.set_result(refusal)
        if isinstance(item, WaitingBatch):
            item.settle()


def answer(waiting: WaitingBatch, result: AppendResult) -> None:
    """The last that the partition does for it."""
    answer_early(waiting, result)
    waiting.settle()


def answer_early(waiting: WaitingBatch, result: AppendResult) -> None:
    """Before the commit, which is still to come."""
    if not waiting.answer.done():
        waiting.answer.set_result(result)
