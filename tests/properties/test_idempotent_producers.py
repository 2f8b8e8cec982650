"""Any run of sends, repeats, gaps, epochs, failed commits, forgetting and new leaders: every accepted record is in the
log exactly once and in order, and what the partition answers is what a naive model answers.

The model keeps every record that ever was in the log, (producer id, epoch, sequence) -> offset, and forgets nothing; of
one that was retired it knows that it was there. It sees each batch after all before it, so its answers are exact where
no commit fails; where one does, the log itself says what became of the batches.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import SEQUENCE_MODULUS, ProducerStamp, sequence_after
from bus.ports import Conflicted, Unknown
from bus.runtime.partitions.partition_queue import Appended, AppendResult, ProducerResumed
from tests.support.fake_table import FakeTable, Scripted
from tests.support.partition_bench import Bench, InlineCalls

DAY_MS = 86_400_000
FAULTS = ("fault", "unknown", "lost reply", "conflict")


@dataclass(frozen=True)
class Send:
    """Relative to where the producer stands, so that most batches are near its end: `distance` 0 is in order."""

    producer_id: int
    epoch_step: int
    distance: int | None  # None: sequence 0
    count: int
    acks: int


@dataclass(frozen=True)
class Group:
    """Batches that wait together, and what becomes of their commits."""

    sends: list[Send]
    faults: list[str]


@dataclass(frozen=True)
class Resume:
    producer_id: int
    epoch_step: int


SENDS = st.builds(
    Send,
    producer_id=st.sampled_from([3, 7, 9]),
    epoch_step=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
    distance=st.sampled_from([0, 0, 0, 0, -1, -2, -3, -4, -6, -9, -20, 1, 5, None]),
    count=st.integers(1, 6),
    acks=st.sampled_from([-1, -1, -1, 1]),
)
GROUPS = st.builds(
    Group,
    st.lists(SENDS, min_size=1, max_size=8),
    st.just([]) | st.lists(st.sampled_from(FAULTS), min_size=1, max_size=2),
)
RESUMES = st.builds(Resume, st.sampled_from([3, 7, 9]), st.sampled_from([0, 1, -1]))
EVENTS = st.lists(GROUPS | RESUMES | st.sampled_from(["forget", "new leader", "rebuild", "retire"]), max_size=14)


@dataclass
class Model:
    """All records that ever were in the log; the offset -1 is of one that was retired. `fences`: the lowest epoch of
    each producer that may write."""

    log_end: int = 0
    offsets: dict[tuple[int, int, int], int] = field(default_factory=dict)
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)  # producer -> epoch, sequence of its last record
    fences: dict[int, int] = field(default_factory=dict)

    def add(self, producer_id: int, epoch: int, sequence: int) -> int:
        assert (producer_id, epoch, sequence) not in self.offsets
        self.offsets[producer_id, epoch, sequence] = offset = self.log_end
        self.ends[producer_id] = (epoch, sequence)
        self.fences[producer_id] = max(epoch, self.fences.get(producer_id, 0))
        self.log_end += 1
        return offset

    def take(self, stamp: ProducerStamp, count: int, *, forgotten_max: int) -> list[int] | ErrorCode:
        """The offsets of the batch's records, or the refusal. A producer without rows begins with any sequence if it
        may have been forgotten."""
        producer_id, epoch = stamp.producer_id, stamp.producer_epoch
        if epoch < self.fences.get(producer_id, 0):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        last_epoch, last = self.ends.get(producer_id, (-1, -1))
        following = (last + 1) % SEQUENCE_MODULUS
        keys = [(producer_id, epoch, sequence_after(stamp.base_sequence, position)) for position in range(count)]
        known = [key in self.offsets for key in keys]
        begins = stamp.base_sequence == following or (epoch > last_epoch and stamp.base_sequence == 0)
        begins |= last_epoch < 0 and producer_id <= forgotten_max
        # What is known is a prefix: nothing is behind the end, and an epoch has no gaps.
        if not begins and not known[0]:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not begins and all(self.offsets.get(key, -1) < 0 for key in keys):
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER if all(known) else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not all(known) and any(self.offsets.get(key) == -1 for key in keys):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return [self.offsets[key] if key in self.offsets else self.add(*key) for key in keys]


class World:
    def __init__(self, first_sequence: int) -> None:
        self.bench = Bench(table=FakeTable(), calls=InlineCalls())
        self.model = Model()
        # Epochs that this leader saw begin: only of these it knows that what is before them was not appended.
        self.seen_to_begin: set[tuple[int, int]] = set()
        if first_sequence:
            self.bench.table.commit_stamped(ProducerStamp(7, 0, first_sequence), 4, now_ms=self.bench.clock.time_ms)
            self.bench = self.bench.reopened()
            for position in range(4):
                self.model.add(7, 0, sequence_after(first_sequence, position))

    @property
    def table(self) -> FakeTable:
        return self.bench.table

    @property
    def forgotten_max(self) -> int:
        """While nothing was retired, the table knows that a producer without rows never wrote."""
        is_retired = self.table.state.log_start > 0
        return self.bench.partition.writer._producers.states.forgotten_max if is_retired else -1

    def stamp_of(self, send: Send, base: dict[int, tuple[int, int]]) -> ProducerStamp:
        epoch, last = base.get(send.producer_id, (0, -1))
        epoch = max(0, epoch + send.epoch_step)
        following = last + 1
        first = 0 if send.distance is None else (following + send.distance) % SEQUENCE_MODULUS
        if following + (send.distance or 0) < 0 and following < SEQUENCE_MODULUS // 2:
            first = 0  # a producer near its beginning has nothing behind it
        return ProducerStamp(send.producer_id, epoch, first)

    async def send_group(self, group: Group) -> None:
        self.table.producers.asked.clear()
        self.table.script = [_fault(name, self.table) for name in group.faults]
        ends = dict(self.model.ends)
        stamps = []
        for send in group.sends:
            stamp = self.stamp_of(send, ends)
            stamps.append(stamp)
            if send.distance == 0:  # the next one of the group goes on behind it, as a pipelining client does
                ends[send.producer_id] = (stamp.producer_epoch, sequence_after(stamp.base_sequence, send.count - 1))
        answers = await asyncio.gather(
            *(
                self.bench.send(
                    stamp.producer_id, stamp.base_sequence, send.count, epoch=stamp.producer_epoch, acks=send.acks
                )
                for stamp, send in zip(stamps, group.sends, strict=True)
            )
        )
        await self.bench.tasks.join()
        faults_met = len(group.faults) - len(self.table.script)
        self.table.script = []
        if faults_met == 0:
            for stamp, send, answer in zip(stamps, group.sends, answers, strict=True):
                self.check_exact(stamp, send.count, answer)
        else:
            event("a commit failed")
            self.seen_to_begin.clear()
        self.follow_log()
        for stamp, send, answer in zip(stamps, group.sends, answers, strict=True):
            if isinstance(answer, Appended) and answer.version >= 0:
                self.check_offsets(stamp, send.count, answer)

    def check_exact(self, stamp: ProducerStamp, count: int, answer: AppendResult) -> None:
        epoch_before = self.model.ends.get(stamp.producer_id, (-1, -1))[0]
        is_ambiguous = self.is_before_its_epoch(stamp)
        expected = self.model.take(stamp, count, forgotten_max=self.forgotten_max)
        if self.model.ends.get(stamp.producer_id, (-1, -1))[0] > epoch_before:
            self.seen_to_begin.add((stamp.producer_id, stamp.producer_epoch))
        if not isinstance(expected, ErrorCode):
            assert isinstance(answer, Appended), (stamp, count, expected, answer)
            assert offsets_of(answer, count) == expected
            event("asked the table" if self.table.producers.asked else "in order, or repeated")
            return
        event(expected.name)
        if is_ambiguous:
            event("before its epoch")
            is_duplicate = isinstance(answer, Refused) and answer.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            if is_duplicate or (isinstance(answer, Appended) and answer.base_offset == -1):
                return
        assert isinstance(answer, Refused), (stamp, count, expected, answer)
        assert answer.code is expected, (stamp, count, expected, answer)

    def is_before_its_epoch(self, stamp: ProducerStamp) -> bool:
        """The batch begins with a sequence from before the epoch, or from before the first one of a producer without
        rows. A leader that did not see that beginning cannot know it from a record that was retired."""
        key = (stamp.producer_id, stamp.producer_epoch, stamp.base_sequence)
        return (
            self.table.state.log_start > 0
            and key not in self.model.offsets
            and (stamp.producer_id, stamp.producer_epoch) not in self.seen_to_begin
        )

    def check_offsets(self, stamp: ProducerStamp, count: int, answer: Appended) -> None:
        """Wherever the answer says that the records are, there they are."""
        for position, offset in enumerate(offsets_of(answer, count)):
            if offset == -1:
                continue  # was retired
            key = (stamp.producer_id, stamp.producer_epoch, sequence_after(stamp.base_sequence, position))
            assert self.model.offsets[key] == offset, (stamp, answer)

    def follow_log(self) -> None:
        """The model takes what is in the log and was not in it; it must be new to the model, and in order."""
        known = set(self.model.offsets.values())
        for row in self.table.rows:
            if row.offset in known:
                continue
            epoch, last = self.model.ends.get(row.producer_id, (-1, -1))
            goes_on = row.sequence == sequence_after(last, 1) or (last < 0 and row.producer_id <= self.forgotten_max)
            assert row.producer_epoch >= epoch, f"{row} behind epoch {epoch}"
            assert goes_on or (row.producer_epoch > epoch and row.sequence == 0), f"{row} behind sequence {last}"
            self.model.log_end = row.offset
            assert self.model.add(row.producer_id, row.producer_epoch, row.sequence) == row.offset
        for row in self.table.rows:
            key = (row.producer_id, row.producer_epoch, row.sequence)
            assert self.model.offsets[key] == row.offset, f"{key} is in the log twice"
        assert len(self.table.rows) == sum(offset >= 0 for offset in self.model.offsets.values()), (
            "the model has records that the log has not"
        )
        self.model.log_end = self.table.state.high_watermark

    async def resume(self, resume: Resume) -> None:
        epoch, last = self.model.ends.get(resume.producer_id, (-1, -1))
        lowest = self.model.fences.get(resume.producer_id, 0)
        wanted = max(0, lowest + resume.epoch_step)
        answer = await self.bench.resume(resume.producer_id, wanted)
        if wanted < lowest:
            assert isinstance(answer, Refused)
            assert answer.code is ErrorCode.INVALID_PRODUCER_EPOCH
        else:
            version = self.table.state.version if epoch >= 0 else -1
            assert answer == ProducerResumed(last, epoch, version)
            self.model.fences[resume.producer_id] = wanted

    def retire(self) -> None:
        """About a half of what may go without the table losing every trace of a producer."""
        state = self.table.state
        ends = [(producer_id, *end) for producer_id, end in self.model.ends.items()]
        last = [self.model.offsets[end] for end in ends]
        log_start = (state.log_start + min(last, default=state.log_start)) // 2
        self.table.retire(log_start)
        for key, offset in self.model.offsets.items():
            self.model.offsets[key] = offset if offset >= log_start else -1

    def lose_fences(self) -> None:
        self.model.fences = {producer_id: epoch for producer_id, (epoch, _) in self.model.ends.items()}

    async def close(self) -> None:
        await self.bench.close()


def offsets_of(answer: Appended, count: int) -> list[int]:
    return list(answer.offsets or range(answer.base_offset, answer.base_offset + count))


def _fault(name: str, table: FakeTable) -> object:
    version = table.state.version + 1
    match name:
        case "fault":
            return StorageFault("the disk does not answer")
        case "unknown":
            return Unknown(version, "sync of the folder failed")
        case "lost reply":
            return Scripted.LOST_REPLY
        case _:
            return Conflicted(version, leader_epoch=None, operation="OPTIMIZE")


async def live(first_sequence: int, events: list[Group | Resume | str]) -> None:
    world = World(first_sequence)
    try:
        for happening in events:
            match happening:
                case Group():
                    await world.send_group(happening)
                case Resume():
                    await world.resume(happening)
                case "forget":
                    world.bench.clock.time_ms += DAY_MS + 1
                    await world.bench.append()  # idle producers are looked for after a commit
                    world.model.log_end += 1
                    world.seen_to_begin.clear()
                    world.lose_fences()
                case "new leader":
                    world.bench = world.bench.reopened()
                    world.seen_to_begin.clear()
                    world.lose_fences()
                case "rebuild":
                    await world.bench.partition.writer.rebuild()
                    world.seen_to_begin.clear()
                case "retire":
                    world.retire()
                    await world.bench.partition.writer.rebuild()
                    world.seen_to_begin.clear()
    finally:
        await world.close()


@settings(max_examples=3 * settings.default.max_examples)
@given(st.sampled_from([0, 0, SEQUENCE_MODULUS - 7]), EVENTS)
def test_every_record_is_in_the_log_once_and_in_order(first_sequence: int, events: list[Group | Resume | str]) -> None:
    asyncio.run(live(first_sequence, events))
