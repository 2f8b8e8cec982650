"""Any run of commits within transactions and without, of ends, repeats, deleted topics and crashes, against a model
that knows only what was said: an offset is committed when its transaction is, is never seen before, and is never lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bus.consumer_groups import requests as rq
from bus.consumer_groups.records import TxnOffsetsEnded
from bus.consumer_groups.requests import GroupCommand, OffsetToCommit, TransactionKey
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, GroupBench

PARTITIONS = [TopicPartition(topic, number) for topic in ("orders", "audit") for number in range(2)]
OFFSETS = st.lists(st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 9)), min_size=1, max_size=3)
TRANSACTIONS = [TransactionKey(producer_id, epoch) for producer_id in (7, 8) for epoch in (0, 1)]
WEEK_MS = 7 * 24 * 3_600_000


@dataclass
class Known:
    """The knowledge about one transaction, from its first commit until it has ended."""

    sequence: int = -1
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    said: list[rq.TxnOffsetCommit] = field(default_factory=list)


class TransactionalOffsetsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = GroupBench()
        self.committed: dict[TopicPartition, int] = {}
        self.open: dict[TransactionKey, Known] = {}

    # ---------------------------------------------------------------- commits

    @rule(transaction=st.sampled_from(TRANSACTIONS), offsets=OFFSETS)
    def commit_in_transaction(self, transaction: TransactionKey, offsets: list[tuple[TopicPartition, int]]) -> None:
        known = self.open.setdefault(transaction, Known())
        known.sequence += 1
        command = rq.TxnOffsetCommit(GROUP_ID, transaction, known.sequence, -1, "", None, as_said(offsets))
        known.said.append(command)
        known.offsets.update(offsets)
        assert self.bench.answer(command) == rq.OffsetsCommitted((None,) * len(offsets))

    @rule(data=st.data(), transaction=st.sampled_from(TRANSACTIONS))
    def commit_again(self, data: st.DataObject, transaction: TransactionKey) -> None:
        """Any that was sent before, as the network likes it."""
        if transaction in self.open:
            self.ask_in_vain(data.draw(st.sampled_from(self.open[transaction].said)))

    @rule(offsets=OFFSETS)
    def commit_alone(self, offsets: list[tuple[TopicPartition, int]]) -> None:
        self.bench.answer(rq.OffsetCommit(GROUP_ID, -1, "", None, as_said(offsets)))
        self.committed.update(offsets)
        for known in self.open.values():
            for partition, _ in offsets:
                known.offsets.pop(partition, None)

    # ---------------------------------------------------------------- ends

    @rule(transaction=st.sampled_from(TRANSACTIONS))
    def apply(self, transaction: TransactionKey) -> None:
        known = self.open.pop(transaction, Known())
        assert self.bench.answer(rq.ApplyOffsets(GROUP_ID, transaction)) == rq.TxnOffsetsSettled()
        self.committed.update(known.offsets)
        self.ask_in_vain(rq.ApplyOffsets(GROUP_ID, transaction), rq.DropOffsets(GROUP_ID, transaction))

    @rule(transaction=st.sampled_from(TRANSACTIONS))
    def drop(self, transaction: TransactionKey) -> None:
        self.open.pop(transaction, None)
        assert self.bench.answer(rq.DropOffsets(GROUP_ID, transaction)) == rq.TxnOffsetsSettled()
        self.ask_in_vain(rq.DropOffsets(GROUP_ID, transaction), rq.ApplyOffsets(GROUP_ID, transaction))

    def ask_in_vain(self, *commands: GroupCommand) -> None:
        before = self.bench.group
        for command in commands:
            self.bench.ask(command)
            assert all(isinstance(record, TxnOffsetsEnded) for record in self.bench.steps[-1].records)
        assert self.bench.group == before

    # ---------------------------------------------------------------- what else happens

    @rule(topic=st.sampled_from(["orders", "audit"]))
    def delete_topic(self, topic: str) -> None:
        self.bench.delete_topic(topic, "id")
        for offsets in (self.committed, *(known.offsets for known in self.open.values())):
            for partition in [of for of in offsets if of.topic == topic]:
                del offsets[partition]

    @rule(partition=st.sampled_from(PARTITIONS))
    def delete_offset(self, partition: TopicPartition) -> None:
        answer = self.bench.answer(rq.OffsetDelete(GROUP_ID, (partition,)))
        if isinstance(answer, Refused):
            assert answer.code is ErrorCode.GROUP_ID_NOT_FOUND
            return
        assert isinstance(answer, rq.OffsetsDeleted)
        (refused,) = answer.partitions
        if self.is_unstable(partition):
            assert refused is not None
            assert refused.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        else:
            assert refused is None
            self.committed.pop(partition, None)

    @rule()
    def delete_group(self) -> None:
        answer = self.bench.answer(rq.DeleteGroup(GROUP_ID))
        if self.open:
            assert isinstance(answer, Refused)
            assert answer.code is ErrorCode.NON_EMPTY_GROUP
        else:
            self.committed = {}

    @rule()
    def expire(self) -> None:
        self.bench.wait(WEEK_MS)
        self.bench.expire_offsets()
        self.committed = {of: offset for of, offset in self.committed.items() if self.is_unstable(of)}

    @rule()
    def crash(self) -> None:
        """T12: memory is the log replayed."""
        before = self.bench.group
        self.bench.crash()
        assert self.bench.group == before

    # ---------------------------------------------------------------- promises

    @invariant()
    def only_what_is_committed_is_seen(self) -> None:
        """T9: and for who wants stable offsets, nothing that may yet be replaced."""
        assert self.fetched(PARTITIONS, require_stable=False) == [self.committed.get(of, -1) for of in PARTITIONS]
        expected = ["unstable" if self.is_unstable(of) else self.committed.get(of, -1) for of in PARTITIONS]
        assert self.fetched(PARTITIONS, require_stable=True) == expected

    @invariant()
    def all_that_are_there_are_those_that_may_be_seen(self) -> None:
        answer = self.bench.answer(rq.OffsetFetch(GROUP_ID, None, require_stable=True))
        assert isinstance(answer, rq.OffsetsFetched)
        unstable = {of for known in self.open.values() for of in known.offsets}
        assert {offset.partition for offset in answer.offsets} == unstable | self.committed.keys()

    @invariant()
    def every_open_transaction_may_be_committed(self) -> None:
        for transaction in TRANSACTIONS:
            answer = self.bench.answer(rq.VoteOffsets(GROUP_ID, transaction))
            assert answer == rq.OffsetsVoted(transaction in self.open)

    def fetched(self, partitions: Sequence[TopicPartition], *, require_stable: bool) -> list[int | str]:
        answer = self.bench.answer(rq.OffsetFetch(GROUP_ID, tuple(partitions), require_stable=require_stable))
        assert isinstance(answer, rq.OffsetsFetched)
        return ["unstable" if offset.refused is not None else offset.offset for offset in answer.offsets]

    def is_unstable(self, partition: TopicPartition) -> bool:
        return any(partition in known.offsets for known in self.open.values())

    def teardown(self) -> None:
        self.bench.check_the_history_makes_the_group()


def as_said(offsets: list[tuple[TopicPartition, int]]) -> tuple[OffsetToCommit, ...]:
    return tuple(OffsetToCommit(partition, "id", offset) for partition, offset in offsets)


TestTransactionalOffsets = TransactionalOffsetsMachine.TestCase
TestTransactionalOffsets.settings = settings(
    max_examples=settings.default.max_examples * 3 // 5, stateful_step_count=40
)
