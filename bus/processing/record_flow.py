"""The processing loop without threads, clock and I/O: it is told what came, how it went and what time it is, and says
what to work on next, which partitions to pause, and what to commit.

Guards three promises. Records of one lane are worked on one after another, in the order in which they came, also over
errors: a record that is tried again stays at the head of its lane, and what is behind it waits; lanes are independent
of each other and take turns. An offset is committed only when everything below it is done, and only while the partition
is this consumer's: how work ends that was begun under an earlier assignment does not count. What is remembered is
bounded: a partition with too many records is paused.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from bus.client.values import ConsumerRecord
from bus.model import TopicPartition
from bus.processing.commits import CommitPacing, OffsetTracker
from bus.processing.settings import ProcessingSettings
from bus.processing.transactional_output import Cut, Outcome, WaitingOutcomes
from bus.processing.work import (
    Batch,
    Counts,
    FailureDecision,
    Pass,
    Stop,
    TryAgain,
    Work,
    decide_failure,
)


class RecordFlow:
    def __init__(self, settings: ProcessingSettings, now_ms: int) -> None:
        self.counts = Counts()
        self.failure: tuple[ConsumerRecord, BaseException] | None = None  # why nothing more is handed out
        self._settings = settings
        self._lanes: Lanes[Work] = Lanes()
        self._trackers: dict[TopicPartition, OffsetTracker] = {}
        self._pacing = CommitPacing(settings, now_ms)
        self._running: dict[int, Work] = {}  # the work that workers have, by its id()
        self._unfinished_in: dict[int, int] = {}  # poll -> how much of its work is waiting or with a worker
        self._poll = 0
        self._paused: set[TopicPartition] = set()
        self._to_pause: set[TopicPartition] = set()
        self._to_resume: set[TopicPartition] = set()
        self._committable: set[TopicPartition] = set()
        self._outcomes = WaitingOutcomes()
        self._leaving: frozenset[TopicPartition] = frozenset()  # let go, and not forgotten yet
        self._is_stopped = False

    # ------------------------------------------------------------ records in, work out

    def add(self, records: Sequence[ConsumerRecord], failure: Exception | None = None) -> None:
        """The records of one poll. With `failure` they could not be deserialized."""
        if self._begin_poll(len(records)):
            for record in records:
                self._add(record, None, failure)

    def add_batches(self, batches: Sequence[Batch]) -> None:
        """The records of one poll, those that one call of a handler gets in one batch."""
        if self._begin_poll(len(batches)):
            for batch in batches:
                self._add(batch.first, batch, None)

    def _begin_poll(self, count: int) -> bool:
        if self._is_stopped or not count:
            return False
        self._poll += 1
        self._unfinished_in[self._poll] = count
        return True

    def _add(self, record: ConsumerRecord, batch: Batch | None, failure: Exception | None) -> None:
        partition = TopicPartition(record.topic, record.partition)
        tracker = self._trackers.get(partition)
        if tracker is not None and record.offset <= tracker.last:
            self._begin_again(partition)
            tracker = None
        if tracker is None:
            tracker = self._trackers[partition] = OffsetTracker()
        if batch is None:
            tracker.deliver(record.offset)
        else:
            tracker.deliver(record.offset, batch.last_offset, batch.count)
        lane = self._lane_of(partition, record)
        self._lanes.add(lane, Work(record, partition, lane, self._poll, tracker, failure=failure, batch=batch))
        if tracker.span >= self._settings.queued_records_max and partition not in self._paused:
            self._to_pause.add(partition)

    def _begin_again(self, partition: TopicPartition) -> None:
        """Begin the partition again: its topic was deleted and created again, or the position was set, so its offsets
        went back. Unfinished records are abandoned, as when the partition is lost."""
        is_paused = partition in self._paused
        self.let_go([partition])
        self.forget([partition])
        if is_paused:
            self._to_resume.add(partition)

    def _lane_of(self, partition: TopicPartition, record: ConsumerRecord) -> Hashable:
        """Records without a key have no order among each other by key. A key that cannot be hashed shares one lane
        with all such keys of its partition."""
        if self._settings.order == "partition":
            return partition
        if self._settings.order == "none" or record.key is None:
            return (partition, None, record.offset)
        try:
            hash(record.key)
        except TypeError:
            return (partition, "unhashable", None)
        return (partition, "key", record.key)

    def take(self, now_ms: int) -> Work | None:
        """Take the next work; the caller has to finish it, or to let it fail, by the methods below."""
        if self._is_stopped:
            return None
        work = self._lanes.take(now_ms)
        if work is not None:
            self._running[id(work)] = work
        return work

    def next_retry_ms(self) -> int | None:
        return None if self._is_stopped else self._lanes.next_delayed_ms()

    # ------------------------------------------------------------ how work ended

    def succeed(self, work: Work, outcome: Outcome | None = None) -> None:
        """The handler returned. In the manual modes the record is not done before it is acknowledged. `outcome` waits
        for the commit of the record's offset."""
        self._leave(work)
        if self._is_ours(work):
            self.counts.handled += work.count
            if outcome is not None:
                self._outcomes.put(outcome)
            if not self._settings.is_manual:
                self._finish(work)
        else:
            self.counts.abandoned += work.count

    def decide(self, work: Work, error: BaseException) -> FailureDecision:
        """Decide about a record whose handler raised; `fail` carries the decision out. Calls the user's `on_error`, so
        no lock is held. A record that is no longer processed here needs no decision."""
        if not self._is_ours(work):
            return Pass.SKIP
        return decide_failure(self._settings, work.record, error, work.attempt, work.failed_at)

    def fail(self, work: Work, decision: FailureDecision, now_ms: int) -> FailureDecision:
        """Carry out the decision, and return it. After DEAD_LETTER the work is still under way: `pass_over` or `stop`
        it."""
        if not self._is_ours(work):
            self._leave(work)
            self.counts.abandoned += work.count
            return Pass.SKIP
        match decision:
            case TryAgain() if work.partition in self._leaving:
                self._leave(work)
            case TryAgain(after_ms):
                self.counts.retried += 1
                del self._running[id(work)]
                self._lanes.put_off(work.lane, replace(work, attempt=work.attempt + 1), now_ms + after_ms)
            case Stop(raised):
                self.stop_for(work, raised)
            case Pass.SKIP:
                self.pass_over(work, is_dead_letter=False)
            case Pass.DEAD_LETTER:
                pass
        return decision

    def pass_over(self, work: Work, *, is_dead_letter: bool, letter: Outcome | None = None) -> None:
        """Done without success: skipped, or durable in the dead letter topic, or with a letter that waits for the
        commit of the record's offset."""
        self._leave(work)
        if letter is not None and self._is_ours(work):
            self._outcomes.put(letter)
        if is_dead_letter:
            self.counts.dead_lettered += work.count
        else:
            self.counts.skipped += work.count
        if self._is_ours(work):
            self._finish(work)

    def stop_for(self, work: Work, error: BaseException) -> None:
        """The record is not done and never will be: nothing more is handed out."""
        self._leave(work)
        if self.failure is None:
            self.failure = (work.record, error)
        self.stop()

    def acknowledge(self, work: Work) -> bool:
        """Mark the record as done, in the manual modes. False if it was done before, or if the partition is no longer
        ours."""
        return self._is_ours(work) and self._finish(work)

    # ------------------------------------------------------------ output that its topic refuses

    def make_smaller(self, outcome: Outcome) -> bool:
        """It is too large to be committed: a smaller form takes its place, if there is one."""
        smaller = outcome.smaller()
        if smaller is not None:
            self._outcomes.put(smaller)
        return smaller is not None

    def decide_refused(self, outcome: Outcome, error: Exception) -> FailureDecision:
        """It can never be committed as it is; its record was done. As `decide`, for `refuse`."""
        work = outcome.work
        if outcome.is_letter:
            return Stop(error)
        failed_at = replace(work, is_output_refused=True).failed_at
        return decide_failure(self._settings, work.record, error, work.attempt, failed_at)

    def refuse(self, outcome: Outcome, decision: FailureDecision) -> FailureDecision:
        """Carry out the decision, and return it. After DEAD_LETTER a letter has to take the record's place, or the
        record has to `stop_for_output`."""
        work_count = outcome.work.count
        match decision:
            case Stop(raised):
                self.stop_for_output(outcome, raised)
            case Pass.SKIP:
                self._outcomes.drop(outcome)
                self.counts.handled -= work_count
                self.counts.skipped += work_count
            case Pass.DEAD_LETTER:
                pass
            case TryAgain():
                raise AssertionError("output that was refused is not tried again")
        return decision

    def replace_by_letter(self, letter: Outcome) -> None:
        self._outcomes.put(letter)
        self.counts.handled -= letter.work.count
        self.counts.dead_lettered += letter.work.count

    def stop_for_output(self, outcome: Outcome, error: BaseException) -> None:
        """Its record is not done after all: nothing more is handed out, and no commit passes it."""
        outcome.work.tracker.hold(outcome.work.record.offset)
        if self.failure is None:
            self.failure = (outcome.work.record, error)
        self.stop()

    # ------------------------------------------------------------ records that are done

    def _leave(self, work: Work) -> None:
        """A worker is free again."""
        del self._running[id(work)]
        self._lanes.finish(work.lane)
        if work.poll in self._unfinished_in:
            self._unfinished_in[work.poll] -= 1
            self._end_poll_if_over(work.poll)

    def _finish(self, work: Work) -> bool:
        is_new = work.tracker.finish(work.record.offset)
        if is_new:
            self._pacing.note_finished(work.count)
            if work.tracker.to_commit is not None:
                self._committable.add(work.partition)
            if work.partition in self._paused and work.tracker.span <= self._settings.queued_records_max // 2:
                self._to_resume.add(work.partition)
        return is_new

    def _end_poll_if_over(self, poll: int) -> None:
        if self._unfinished_in[poll] == 0:
            del self._unfinished_in[poll]
            self._pacing.note_batch_over()

    def _is_ours(self, work: Work) -> bool:
        return self._trackers.get(work.partition) is work.tracker

    # ------------------------------------------------------------ partitions that come and go

    def let_go(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the waiting records of these partitions; the member that gets the partitions reads them again. Workers
        continue with theirs, which count until `forget`."""
        gone = frozenset(partitions)
        self._leaving |= gone
        self._lanes.drop(lambda work: self._keep(work, gone))
        for poll in list(self._unfinished_in):
            self._end_poll_if_over(poll)

    def _keep(self, work: Work, gone: frozenset[TopicPartition]) -> bool:
        is_kept = work.partition not in gone
        if not is_kept and work.poll in self._unfinished_in:
            self._unfinished_in[work.poll] -= 1
        return is_kept

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are no longer ours: the end of work that is still under way does not count."""
        gone = frozenset(partitions)
        for partition in gone:
            self._trackers.pop(partition, None)
        for kept in (self._paused, self._to_pause, self._to_resume, self._committable):
            kept -= gone
        self._outcomes.forget(gone)
        self._leaving -= gone

    def running_count(self, partitions: Iterable[TopicPartition] | None = None) -> int:
        """How many records of these partitions, or of all, workers have."""
        if partitions is None:
            return sum(work.count for work in self._running.values())
        wanted = frozenset(partitions)
        ours = (work for work in self._running.values() if work.partition in wanted and self._is_ours(work))
        return sum(work.count for work in ours)

    def stop(self) -> None:
        """Nothing more is handed out."""
        self._is_stopped = True

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    # ------------------------------------------------------------ pauses

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Those that are paused because too much of them is queued."""
        return frozenset(self._paused)

    def changed_pauses(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the partitions to pause and those to resume since the last call."""
        enough = self._settings.queued_records_max // 2
        full = sorted(p for p in self._to_pause if self._trackers[p].span > enough)  # it may have been worked off
        freed = sorted(self._to_resume)
        self._paused.update(full)
        self._paused.difference_update(freed)
        self._to_pause.clear()
        self._to_resume.clear()
        return full, freed

    # ------------------------------------------------------------ commits

    def due_offsets(self, now_ms: int) -> Mapping[TopicPartition, int]:
        """Return the offsets to commit now; empty if the ack mode says not yet."""
        return self.all_offsets() if self._is_commit_due(now_ms) else {}

    def all_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the offsets that could be committed, of these partitions or of all."""
        wanted = self._committable if partitions is None else self._committable.intersection(partitions)
        offsets = {partition: self._trackers[partition].to_commit for partition in sorted(wanted)}
        return {partition: offset for partition, offset in offsets.items() if offset is not None}

    def cut(self, offsets: Mapping[TopicPartition, int], bytes_max: int) -> Cut:
        """Return the part of `offsets`, all of which can be committed, that the next transaction commits."""
        return self._outcomes.cut(offsets, bytes_max)

    def note_committed(self, offsets: Mapping[TopicPartition, int], now_ms: int) -> None:
        self.counts.commits += 1
        self._pacing.note_committed(now_ms)
        for partition, offset in offsets.items():
            tracker = self._trackers.get(partition)
            if tracker is not None:
                tracker.note_committed(offset)
                self._outcomes.note_committed(partition, offset)
                if tracker.to_commit is None:
                    self._committable.discard(partition)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset to continue from for each partition, if unfinished records are to be read again."""
        positions = {partition: tracker.position for partition, tracker in self._trackers.items()}
        return {partition: position for partition, position in positions.items() if position is not None}

    def next_commit_ms(self) -> int | None:
        return self._pacing.next_due_ms()

    def needs_attention(self, now_ms: int) -> bool:
        """True if the polling thread has something to do."""
        return self._is_stopped or bool(self._to_resume) or self._is_commit_due(now_ms)

    def _is_commit_due(self, now_ms: int) -> bool:
        return bool(self._committable) and self._pacing.is_due(now_ms, is_idle=self._lanes.is_empty)


ItemT = TypeVar("ItemT")


class Lanes(Generic[ItemT]):
    def __init__(self) -> None:
        self._items: dict[Hashable, deque[ItemT]] = {}  # no lane is empty; the first one of a lane may be handed out
        self._ready: deque[Hashable] = deque()  # lanes whose first item may be taken
        self._delayed: list[tuple[int, int, Hashable]] = []  # lanes whose first item waits: until when, serial number
        self._taken: set[Hashable] = set()  # lanes whose first item is being worked on
        self._serial = 0

    def add(self, lane: Hashable, item: ItemT) -> None:
        items = self._items.get(lane)
        if items is None:
            self._items[lane] = deque((item,))
            self._ready.append(lane)
        else:
            items.append(item)

    def take(self, now_ms: int) -> ItemT | None:
        """The next item that may be worked on. It stays in its lane until it is finished or put off."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, _, lane = heapq.heappop(self._delayed)
            self._ready.append(lane)
        if not self._ready:
            return None
        lane = self._ready.popleft()
        self._taken.add(lane)
        return self._items[lane][0]

    def finish(self, lane: Hashable) -> None:
        """The item taken from `lane` is done; the next one may be taken."""
        assert lane in self._taken, f"lane {lane!r}: nothing was taken from it"
        self._taken.remove(lane)
        items = self._items[lane]
        items.popleft()
        if items:
            self._ready.append(lane)
        else:
            del self._items[lane]

    def put_off(self, lane: Hashable, item: ItemT, until_ms: int) -> None:
        """Try the work that was taken from `lane` again as `item`, at `until_ms`, before everything behind it."""
        assert lane in self._taken, f"lane {lane!r}: nothing was taken from it"
        self._taken.remove(lane)
        self._items[lane][0] = item
        self._serial += 1
        heapq.heappush(self._delayed, (until_ms, self._serial, lane))

    def next_delayed_ms(self) -> int | None:
        """When the first of the items that wait may be taken."""
        return self._delayed[0][0] if self._delayed else None

    def drop(self, is_wanted: Callable[[ItemT], bool]) -> int:
        """Forget unwanted items, except those that are being worked on; return how many."""
        dropped = 0
        for lane in list(self._items):
            items = self._items[lane]
            first = [items[0]] if lane in self._taken else []
            kept = deque([*first, *(item for item in list(items)[len(first) :] if is_wanted(item))])
            dropped += len(items) - len(kept)
            self._items[lane] = kept
        self._ready = deque(lane for lane in self._ready if self._items[lane])
        self._delayed = [entry for entry in self._delayed if self._items[entry[2]]]
        heapq.heapify(self._delayed)
        self._items = {lane: items for lane, items in self._items.items() if items}
        return dropped

    @property
    def is_empty(self) -> bool:
        return not self._items
