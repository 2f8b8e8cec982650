"""Uses of transactions, as programs that are judged by what they mean: money that is moved between accounts, lists that
are read and appended to, and records that are consumed, transformed and produced."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bus.client.connection.metadata_cache import TopicInfo
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.tables.topics import TopicTables
from bus.tables.transaction_cuts import find_cut
from tests.simulation.broker_invariants import read_table
from tests.simulation.broker_programs import Place, ask, leader_of, records_of
from tests.simulation.coordinator_journal import CoordinatorJournal, Identity, journal_of
from tests.simulation.transaction_invariants import TransactionsAreWhole, WrittenRow
from tests.simulation.transaction_programs import VALUE_PREFIX, Attempt, Outcome, Transactor, find_group

if TYPE_CHECKING:
    from bus.transactions.records import TransactionLogged
    from tests.simulation.broker_world import BrokerLife, BrokerWorld

# ---------------------------------------------------------------- a bank


class Teller(Transactor):
    """Moves money from an account in one topic to one in another: two rows, whose sum is nothing."""

    def __init__(self, world: BrokerWorld, name: str, transactional_id: str, topics: list[TopicInfo]) -> None:
        super().__init__(world, name, transactional_id, topics)
        self.only_whole = True

    async def _fill(self, attempt: Attempt) -> bool:
        self._number += 1
        amount = self.world.random.randrange(1, 100)
        is_whole = True
        for topic, change in zip(self._topics, (-amount, amount), strict=True):
            value = b"%sbank:%s:%d:%d" % (VALUE_PREFIX, self.name.encode(), self._number, change)
            number = self.world.random.randrange(len(topic.partitions))
            is_whole = is_whole and await self._send(attempt, topic, number, [value])
        return is_whole


def check_bank(world: BrokerWorld, folder: Path) -> None:
    """Money neither comes nor goes: at the cut of every committed transaction, among what its id has moved, and at the
    end, among all. `folder` gets a copy of the disk, for the reader of cuts."""
    judge = next(found for found in world.invariants if isinstance(found, TransactionsAreWhole))
    topics = world.journal.state.topics
    places = [
        Place(name, topics[name].topic_id, number)
        for name in ("t", "u")
        for number in range(len(topics[name].partitions))
    ]
    rows = [(place, who, row) for place in places for who, found in judge.read(place).items() for row in found]
    assert sum(_amount_of(row.value) for _, _, row in rows) == 0, "BankKeepsItsMoney: the sum at the end is not 0"
    for history in journal_of(world).ids.values():
        own = {record.producer_id for record in history.records}
        for record in history.records:
            if record.state.value == "CompleteCommit":
                cut = {partition.name: found.version for partition, found in record.results.items()}
                seen = [
                    _amount_of(row.value)
                    for place, who, row in rows
                    if who[0] in own
                    and _is_in(
                        journal_of(world), cut.get(TopicPartition(place.topic, place.partition)), row, who, record
                    )
                ]
                assert sum(seen) == 0, f"BankKeepsItsMoney: {sum(seen)} at the cut {cut} of {record}"
    _check_last_cuts(world, folder)


def _is_in(
    journal: CoordinatorJournal, version: int | None, row: WrittenRow, who: Identity, record: TransactionLogged
) -> bool:
    """True if the row is in the cut. A partition that took no part has the rows that were complete by then."""
    if version is not None:
        return row.version <= version
    found = journal.find(who)
    assert found is not None, f"{row} is of {who}, which no transaction ever had"
    return found[2] <= record.number


def _amount_of(value: bytes) -> int:
    return int(value.rpartition(b":")[2])


def _check_last_cuts(world: BrokerWorld, folder: Path) -> None:
    for key in world.disk.keys_below("topics"):
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(world.disk.files.get(key))
    (folder / "bus-root.json").write_bytes(world.disk.files.get("bus-root.json"))
    for name, history in journal_of(world).ids.items():
        committed = [record for record in history.records if record.state.value == "CompleteCommit"]
        found = find_cut(TopicTables(str(folder)), name)
        expected = {partition.name: rows.version for partition, rows in committed[-1].results.items()}
        assert found.number == committed[-1].number, f"BankKeepsItsMoney: {found}, expected {committed[-1]}"
        assert found.versions == expected, f"BankKeepsItsMoney: {found}, expected {expected}"


# ---------------------------------------------------------------- lists


@dataclass(frozen=True, slots=True)
class ListRead:
    """A list as it was read, by whom and when; `end` is the high watermark that was told."""

    place: Place
    asked_at: float
    life: BrokerLife
    values: list[bytes]
    end: int


class Appender(Transactor):
    """Each transaction reads the lists that it appends to: a list is the values of a partition."""

    def __init__(self, world: BrokerWorld, name: str, transactional_id: str, topics: list[TopicInfo]) -> None:
        super().__init__(world, name, transactional_id, topics)
        self.reads: list[ListRead] = []
        self.committed_at: list[tuple[float, Attempt]] = []

    async def _transact(self, end: str) -> Attempt:
        attempt = await super()._transact(end)
        if attempt.outcome is Outcome.COMMITTED:
            self.committed_at.append((self.world.now, attempt))
        return attempt

    async def _fill(self, attempt: Attempt) -> bool:
        world, is_whole = self.world, True
        for _ in range(world.random.randrange(1, 4)):
            topic = world.random.choice(self._topics)
            number = world.random.randrange(len(topic.partitions))
            await self._read_list(topic, number)
            is_whole = is_whole and await self._send(attempt, topic, number, self._new_values())
        return is_whole

    async def _read_list(self, topic: TopicInfo, number: int) -> None:
        world, broker = self.world, leader_of(self.world, topic, number)
        asked = pb.FetchPartition(topic=topic.name, partition=number, fetch_offset=0)
        request = pb.FetchRequest(
            correlation_id=1, max_bytes=1 << 24, partitions=[asked], columns=["offset", "key", "value"]
        )
        asked_at, life = world.now, broker.life
        answer = await ask(world, self.name, "FetchOnce", request, broker=broker)
        if isinstance(answer, BusError) or answer.partitions[0].error_code or life is None:
            await self._refresh(topic)
            return
        (share,) = answer.partitions
        values = [value or b"" for _, _, value in records_of(share)]
        place = Place(topic.name, topic.topic_id, number)
        self.reads.append(ListRead(place, asked_at, life, values, share.high_watermark))


def check_lists(world: BrokerWorld) -> None:
    """Check that a read list is a beginning of the list as it is now, so nothing that was read was aborted, lost, or in
    another order; that it ends at the end of a transaction; and that it has everything that was committed before it was
    read."""
    appenders = [program for program in world.programs if isinstance(program, Appender)]
    committed = [(at, attempt) for appender in appenders for at, attempt in appender.committed_at]
    lists: dict[Place, list[tuple[bytes | None, Any]]] = {}
    for appender in appenders:
        for read in appender.reads:
            place = read.place
            if place not in lists:
                _, rows = read_table(world, place.topic, place.partition)
                lists[place] = [(value, offset) for offset, (_, value) in sorted(rows.items())]
            now = [value or b"" for value, _ in lists[place]]
            assert read.values == now[: len(read.values)], f"ListsOnlyGrow: {read}, now {now}"
            _check_committed(read, [attempt for each in appenders for attempt in each.attempts])
            if len(read.values) == read.end:
                _check_end_of(read, now, committed)
            if not world.may_be_stale(read.life, TopicPartition(place.topic, place.partition), read.asked_at):
                _check_seen(read, committed)


def _check_committed(read: ListRead, attempts: list[Attempt]) -> None:
    for attempt in attempts:
        if attempt.outcome is Outcome.ABORTED or not attempt.is_commit_asked:
            aborted = set(attempt.sent.get(read.place, [])).intersection(read.values)
            assert not aborted, f"ListsOnlyGrow: {read} has {aborted} of {attempt}"


def _check_end_of(read: ListRead, now: list[bytes], committed: list[tuple[float, Attempt]]) -> None:
    for _, attempt in committed:
        values = attempt.sent.get(read.place, [])[: attempt.acknowledged.get(read.place, 0)]
        there = [value in read.values for value in values]
        assert all(there) or not any(there), f"ListsOnlyGrow: {read} ends in the middle of {attempt}, now {now}"


def _check_seen(read: ListRead, committed: list[tuple[float, Attempt]]) -> None:
    for at, attempt in committed:
        if at < read.asked_at and len(read.values) == read.end:
            values = attempt.sent.get(read.place, [])[: attempt.acknowledged.get(read.place, 0)]
            missing = [value for value in values if value not in read.values]
            assert not missing, f"ListsOnlyGrow: {read} lacks {missing}, which was committed at {at:.3f}"


# ---------------------------------------------------------------- consume, transform, produce

_SESSION_MS = 3_000
_GROUP = "tx-copiers"


class Copier(Transactor):
    """A member of a group that copies each record of a topic once: the copies and the offsets of what it has read are
    one transaction (KIP-447). It may be a zombie: it stands still for longer than its session, and goes on."""

    def __init__(self, world: BrokerWorld, name: str, source: TopicInfo, target: TopicInfo) -> None:
        super().__init__(world, name, name, [source, target])
        self._member_id = ""
        self._generation = -1
        self._positions: dict[int, int] = {}  # of the partitions that it owns

    @property
    def _source(self) -> TopicInfo:
        return self._topics[0]

    async def do_something(self) -> None:
        if self.world.chance(40):
            self._identity, self._member_id, self._generation = None, "", -1  # another process goes on
        if self._identity is None:
            await self._init()
            await asyncio.sleep(0.05)
        elif self._generation < 0:
            await self._join()
            await asyncio.sleep(0.1)
        elif not await self._copy():
            await asyncio.sleep(0.2)

    # ------------------------------------------------------------ membership

    async def _ask_group(self, method: str, request: Any) -> Any:
        """None: there was no answer."""
        broker = await find_group(self.world, self.name, _GROUP)
        answer = await self._call(method, request, broker)
        return None if isinstance(answer, BusError) else answer

    def _is_refused(self, answer: Any) -> bool:
        code = ErrorCode(answer.error_code) if answer is not None else ErrorCode.NETWORK_EXCEPTION
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id, self._generation = "", -1
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS):
            self._generation = -1
        return code is not ErrorCode.NONE

    async def _join(self) -> None:
        request = pb.JoinGroupRequest(
            group_id=_GROUP,
            member_id=self._member_id,
            session_timeout_ms=_SESSION_MS,
            protocol_type="copiers",
            protocols=[pb.GroupProtocol(name="all")],
        )
        answer = await self._ask_group("JoinGroup", request)
        if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED.value:
            self._member_id = answer.member_id
            return
        if self._is_refused(answer):
            return
        self._member_id = answer.member_id
        sync = pb.SyncGroupRequest(group_id=_GROUP, generation=answer.generation, member_id=answer.member_id)
        if answer.leader_id == answer.member_id:
            sync.assignments.extend(self._assign([member.member_id for member in answer.members]))
        synced = await self._ask_group("SyncGroup", sync)
        if not self._is_refused(synced):
            await self._find_positions(answer.generation, json.loads(synced.assignment or b"[]"))

    def _assign(self, members: list[str]) -> list[Any]:
        owned: dict[str, list[int]] = {member: [] for member in members}
        for number in range(len(self._source.partitions)):
            owned[members[number % len(members)]].append(number)
        return [
            pb.MemberAssignment(member_id=member, assignment=json.dumps(numbers).encode())
            for member, numbers in owned.items()
        ]

    async def _find_positions(self, generation: int, owned: list[int]) -> None:
        """Once no transaction of an earlier owner may move them."""
        topics = [pb.TopicPartitions(topic=self._source.name, partitions=owned)]
        group = pb.OffsetFetchGroup(
            group_id=_GROUP, topics=topics if owned else [], member_id=self._member_id, generation=generation
        )
        request = pb.OffsetFetchRequest(groups=[group], require_stable=True)
        for _ in range(20):
            answer = await self._ask_group("OffsetFetch", request)
            if answer is not None:
                (found,) = answer.groups
                if found.error_code:
                    self._is_refused(found)
                    return
                if not any(offset.error_code for offset in found.offsets):
                    self._positions = {offset.partition: max(0, offset.offset) for offset in found.offsets}
                    self._generation = generation
                    return
            await asyncio.sleep(0.2)

    # ------------------------------------------------------------ copying

    async def _copy(self) -> bool:
        """Copy the next records; True if there were any."""
        heartbeat = pb.HeartbeatRequest(group_id=_GROUP, generation=self._generation, member_id=self._member_id)
        if self._is_refused(await self._ask_group("Heartbeat", heartbeat)):
            return False
        found = {number: await self._fetch(number, position) for number, position in self._positions.items()}
        if not any(found.values()) or self._identity is None:
            return False
        attempt = Attempt(self.transactional_id, *self._identity)
        self.attempts.append(attempt)
        is_whole = True
        for number, offsets in found.items():
            values = [b"%scopy:%d/%d" % (VALUE_PREFIX, number, offset) for offset in offsets]
            target = self._topics[1]
            if values:
                place = number % len(target.partitions)
                is_whole = is_whole and await self._send(attempt, target, place, values)
        ends = {number: offsets[-1] + 1 for number, offsets in found.items() if offsets}
        is_whole = is_whole and await self._send_positions(attempt, ends)
        await self._end(attempt, is_commit=is_whole)
        if attempt.outcome is Outcome.COMMITTED:
            self._positions.update(ends)
        else:
            self._generation = -1  # where the group has come is asked for again
        return True

    async def _fetch(self, number: int, position: int) -> list[int]:
        """Offsets of the next records."""
        topic = self._source
        asked = pb.FetchPartition(topic=topic.name, partition=number, fetch_offset=position)
        request = pb.FetchRequest(
            correlation_id=1, max_bytes=1 << 20, partitions=[asked], columns=["offset", "key", "value"]
        )
        answer = await ask(self.world, self.name, "FetchOnce", request, broker=leader_of(self.world, topic, number))
        if isinstance(answer, BusError) or answer.partitions[0].error_code:
            await self._refresh(topic)
            return []
        return [offset for offset, _, _ in records_of(answer.partitions[0]) if offset >= position][:5]

    async def _send_positions(self, attempt: Attempt, ends: dict[int, int]) -> bool:
        request = pb.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=_GROUP,
            producer_id=attempt.producer_id,
            producer_epoch=attempt.producer_epoch,
            generation=self._generation,
            member_id=self._member_id,
            partitions=[
                pb.OffsetCommitPartition(topic=self._source.name, partition=number, offset=offset, leader_epoch=-1)
                for number, offset in ends.items()
            ],
        )
        return await self._commit_offsets(attempt, request)

    async def check_end(self) -> None:
        """All is copied, soon, each record once."""
        deadline = self.world.now + 120.0
        while (missing := self._find_missing()) is not None:
            assert self.world.now < deadline, f"EverythingEnds: {missing} is not copied"
            await self.do_something()

    def _find_missing(self) -> str | None:
        world = self.world
        copies: Counter[bytes] = Counter()
        for number in range(len(self._topics[1].partitions)):
            _, rows = read_table(world, self._topics[1].name, number)
            copies.update(value or b"" for _, value in rows.values())
        twice = {value for value, count in copies.items() if count > 1}
        assert not twice, f"EachRecordIsCopiedOnce: {twice} are there more than once"
        for number in range(len(self._source.partitions)):
            table, _ = read_table(world, self._source.name, number)
            for offset in range(table.high_watermark):
                value = b"%scopy:%d/%d" % (VALUE_PREFIX, number, offset)
                if value not in copies:
                    return f"{self._source.name}-{number} offset {offset}"
        return None
