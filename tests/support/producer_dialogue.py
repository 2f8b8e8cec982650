"""The rules about sequences as a conversation: a partition whose log is a list, and the table's answers out of it.

7 send 0..3 epoch=1     a batch of producer 7, placed if it may be; what only the table can decide is asked at once
commit, fail            what is placed becomes a version, or never was
forget, restart         every producer leaves memory; or memory is what the log tells (`txn` actions)
7 resume epoch=2        lower epochs are fenced from now on
retire 4                records below offset 4 are gone
7 ends with 5..9        an earlier leader committed these
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bus.errors import Refused
from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, TimestampType
from bus.partition_log.appends import AppendDecision, AppendRules, NoTrace, TableAnswer, decide_append
from bus.partition_log.producers import (
    AskTable,
    Found,
    ProducerStates,
    Question,
    Repeat,
    complete_offsets,
    decide_resume,
)
from bus.partition_log.state import CommitFailed, CommitSucceeded, PartitionState, apply
from tests.support.fake_table import FakeTable, records

RULES = AppendRules(1_000_000, TimestampType.CREATE_TIME, 1_000_000_000, 1_000_000_000)
NOW_MS = 1_000_000
_NUMBERED = re.compile(
    r"(?P<producer>\d+) (?P<verb>\w+)(?: with)?(?: (?P<first>\d+)\.\.(?P<last>\d+))?(?: epoch=(?P<epoch>\d+))?"
)


class ProducerDialogue:
    def __init__(self) -> None:
        self.table = FakeTable()
        self.states = ProducerStates()
        self.state = PartitionState(0, 0, 0, leader_epoch=0, version=0)
        self.placed: list[LogBatch] = []

    def say(self, command: str) -> str:
        """The outcome of one command."""
        match command.split():
            case ["commit"]:
                return self._commit()
            case ["fail"]:
                self._fail()
                return "ok"
            case ["forget"]:
                self.states.forget(idle_since_ms=NOW_MS + 1)
                return "ok"
            case ["restart"]:
                self._fail()
                self.states = ProducerStates()
                self.states.reload(self.table.producers.progress, forgotten_max=-1)
                return "ok"
            case ["retire", offset]:
                self.table.retire(int(offset))
                self._follow_table()
                return "ok"
        spoken = _NUMBERED.fullmatch(command)
        assert spoken is not None, f"no such command: {command}"
        producer_id, epoch = int(spoken["producer"]), int(spoken["epoch"] or 0)
        if spoken["verb"] == "resume":
            return self._resume(producer_id, epoch)
        first, last = int(spoken["first"]), int(spoken["last"])
        count = (last - first) % SEQUENCE_MODULUS + 1
        stamp = ProducerStamp(producer_id, epoch, first)
        if spoken["verb"] == "ends":
            self.table.commit_stamped(stamp, count, now_ms=NOW_MS)
            self._follow_table()
            self.states.reload(self.table.producers.progress, forgotten_max=-1)
            return f"version {self.state.version}"
        assert spoken["verb"] == "send", f"no such command: {command}"
        return " ".join(self._send(stamp, count))

    def _send(self, stamp: ProducerStamp, count: int) -> Iterator[str]:
        answer: TableAnswer | None = None
        decision = self._decide(stamp, count, answer)
        while isinstance(decision, AskTable):
            if self.placed:
                yield "waits for the commit, to ask the table"
                return
            if decision.question is Question.MATCH_PRODUCER:
                answer = self.table.producers.match(records(count, producer=stamp))
                missing = 0 if answer.missing is None else answer.missing.record_count
                yield f"match_producer: {count - missing} of {count};"
            else:
                progress = self.table.producers.find_last_sequence(stamp.producer_id)
                if progress is None:
                    answer = NoTrace()
                    yield "find_last_sequence: no rows;"
                else:
                    self.states.remember(progress, now_ms=NOW_MS)
                    yield f"find_last_sequence: {progress.last_sequence} epoch={progress.producer_epoch};"
            decision = self._decide(stamp, count, answer)
        match decision:
            case LogBatch():
                self.states.place(decision, version=self.state.version + 1, now_ms=NOW_MS)
                self.placed.append(decision)
                yield f"append at {decision.base_offset}"
                if decision.record_count < count:
                    assert answer is not None
                    assert not isinstance(answer, NoTrace)
                    yield f"the rest, offsets {complete_offsets(answer.offsets, base_offset=decision.base_offset)}"
            case Repeat(batch):
                yield f"repeat of offset {batch.base_offset} version {batch.version}"
            case Found(offsets):
                yield f"found at {list(offsets)}"
            case Refused(code, message):
                yield f"{code.name} {message}"

    def _decide(self, stamp: ProducerStamp, count: int, answer: TableAnswer | None) -> AppendDecision:
        step = decide_append(
            self.state,
            records(count, producer=stamp),
            RULES,
            now_ms=NOW_MS,
            current_leader_epoch=None,
            producers=self.states,
            answer=answer,
        )
        for event in step.records:
            self.state = apply(self.state, event)
        return step.response

    def _commit(self) -> str:
        committed = self.table.commit(self.placed, self.states.placed_progress(), NOW_MS)
        self.placed = []
        self.state = apply(self.state, CommitSucceeded(committed.version, committed.high_watermark))
        self.states.commit(committed.version)
        return f"version {committed.version}"

    def _fail(self) -> None:
        self.placed = []
        self.state = apply(self.state, CommitFailed())
        self.states.roll_back()

    def _resume(self, producer_id: int, epoch: int) -> str:
        decision = decide_resume(
            self.states.get(producer_id),
            producer_id=producer_id,
            producer_epoch=epoch,
            fence=self.states.fence_of(producer_id),
        )
        if isinstance(decision, Refused):
            return f"{decision.code.name} {decision.message}"
        self.states.fence(producer_id, producer_epoch=epoch, now_ms=NOW_MS)
        return f"ends with {decision.last_sequence} epoch={decision.producer_epoch}"

    def _follow_table(self) -> None:
        log = self.table.state
        self.state = PartitionState(
            log.log_start, log.high_watermark, log.high_watermark, leader_epoch=0, version=log.version
        )
