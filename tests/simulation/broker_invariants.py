"""Promises of a whole broker, each a class: it hears what programs are told and what comes to be on the disk, and is
asked at the end. What is on the disk is read by the verifier and by plain Parquet, not by the code under test."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from bus.cluster_metadata.cluster_state import ClusterState
from bus.errors import ErrorCode
from bus.model import TopicPartition
from bus.storage_delta.verify.replay import replay_table
from bus.storage_delta.verify.verification import load_cluster, verify_root
from tests.simulation.memos import read_rows
from tests.simulation.metadata_journal import Change, Version, version_of

if TYPE_CHECKING:
    from tests.simulation.broker_network import Answered
    from tests.simulation.broker_programs import Place, Sent, Told
    from tests.simulation.broker_world import BrokerLife, BrokerWorld


class Invariant:
    def __init__(self, world: BrokerWorld) -> None:
        self.world = world

    def on_created(self, key: str, data: bytes) -> None: ...

    def on_version(self, version: Version) -> None:
        """Note a version of any table, after `on_created`."""

    def on_metadata(self, change: Change) -> None:
        """A version of the metadata that has records; behind `on_version`."""

    def on_put(self, key: str) -> None: ...

    def on_lost(self, key: str) -> None: ...

    def on_deleted(self, key: str) -> None: ...

    def on_asked(self, who: str, method: str, message: Any) -> None:
        """A request sets out, perhaps to be lost; again with each that is sent again."""

    def on_answered(self, answered: Answered) -> None: ...

    def on_acknowledged(self, sent: Sent, offset: int) -> None: ...

    def on_not_sent(self, sent: Sent, error: BaseException) -> None: ...

    def on_fetched(self, told: Told) -> None: ...

    def on_offset_sent(self, group_id: str, offset: int) -> None: ...

    def on_offset_committed(self, group_id: str, offset: int) -> None: ...

    def on_timed_out(self, who: str, method: str) -> None: ...

    def on_left(self, life: BrokerLife, took_s: float) -> None:
        """A life that is told to stop has handed over what it leads, or given up waiting; its server stops next."""

    def on_tick(self) -> None: ...

    def check_end(self) -> None: ...


class Highest:
    """The highest of numbers up to a time; they come in the order of their times."""

    def __init__(self, lowest: int = 0) -> None:
        self._times, self._numbers = [float("-inf")], [lowest]

    def add(self, time: float, number: int) -> None:
        if number > self._numbers[-1]:
            self._times.append(time)
            self._numbers.append(number)

    def up_to(self, time: float) -> int:
        return self._numbers[bisect_right(self._times, time) - 1]


Row = tuple[bytes | None, bytes | None]  # key and value


def read_table(world: BrokerWorld, topic: str, partition: int) -> tuple[Any, dict[int, Row]]:
    """The table at its last version, and its records by offset: read from the files that the last version names."""
    folder, store = f"topics/{topic}/{partition}", world.disk.files

    def read() -> tuple[Any, dict[int, Row]]:
        table = replay_table(store, folder)
        rows: dict[int, Row] = {}
        for file in table.files_by_offset:
            for offset, key, value in read_rows(store.get(f"{folder}/{file.path}"), "offset", "key", "value"):
                assert offset not in rows, f"OffsetsAreGivenOnce: {topic}-{partition} has offset {offset} twice"
                rows[offset] = key, value
        return table, rows

    return world.disk.find(("table", folder), read)


class AcknowledgedIsInTheTable(Invariant):
    """Every record that was acknowledged is at its offset, with its bytes, in the last version of the table, unless
    retention, a deletion or key compaction may have let it go."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self.acknowledged: dict[Place, dict[int, Row]] = defaultdict(dict)

    def on_acknowledged(self, sent: Sent, offset: int) -> None:
        if offset < 0:
            return  # a repeat of what has been let go since
        row, known = (sent.key, sent.value), self.acknowledged[sent.place].get(offset)
        assert known is None, f"{sent.place}: offset {offset} was acknowledged for {known} and for {row}"
        self.acknowledged[sent.place][offset] = row

    def check_end(self) -> None:
        for place, rows in self.acknowledged.items():
            if place.topic_id not in self.world.live_topics:
                continue
            table, found = read_table(self.world, place.topic, place.partition)
            assert table.log_start == 0 or self.world.may_delete(place), f"{place} starts at offset {table.log_start}"
            last = {key: offset for offset, (key, _) in found.items() if key is not None}
            for offset, row in rows.items():
                if offset < table.log_start or found.get(offset) == row:
                    continue
                newest = last.get(row[0], -1) if row[0] is not None else -1
                assert newest > offset if place.topic in self.world.compacted_topics else False, (
                    f"{place}: {row} was acknowledged at offset {offset}, found {found.get(offset)} in version "
                    f"{table.version}, from {table.log_start} to {table.high_watermark}"
                )


class TablesAreSound(Invariant):
    """Versions without a gap, offsets dense and given once, files that are what their entries say, checkpoints that
    equal a replay, no file gone that a kept version names: all that the verifier judges."""

    def check_end(self) -> None:
        for report in self.world.disk.find("reports", lambda: list(verify_root(self.world.disk.files))):
            assert not report.breaches, "; ".join(map(str, report.breaches))


class VersionsOnlyGrow(Invariant):
    """Each version of a table follows the one before it: the next number, a leader epoch that is not lower, rows from
    the high watermark on. Seen when a version comes to be, so also of those that are dropped later."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._seen: dict[str, dict[int, tuple[int, int]]] = {}  # folder -> version -> leader epoch, high watermark

    def on_version(self, found: Version) -> None:
        folder, version, actions = found.folder, found.number, found.actions
        told = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
        if version == 0:
            self._seen[folder] = {}
        seen = self._seen[folder]
        before = seen.get(version - 1, (-1, 0))
        assert version == 0 or version - 1 in seen, f"{folder}: version {version} comes behind {max(seen, default=-1)}"
        epoch = max(
            [told.get("bus/leader_epoch", -1)]
            + [action["commitInfo"].get("leaderEpoch", -1) for action in actions if "commitInfo" in action]
        )
        epoch = before[0] if epoch == -1 else epoch
        assert epoch >= before[0], f"{folder}: version {version} has leader epoch {epoch} behind {before[0]}"
        high_watermark = before[1]
        for action in actions:
            if "add" in action and action["add"]["dataChange"]:
                stats = json.loads(action["add"]["stats"])
                first = stats["minValues"]["offset"]
                assert first == high_watermark, (
                    f"{folder}: version {version} gives offset {first}, expected {high_watermark}"
                )
                high_watermark = stats["maxValues"]["offset"] + 1
        seen[version] = epoch, high_watermark

    def on_lost(self, key: str) -> None:
        name = version_of(key)
        if name is not None:
            del self._seen[name[0]][name[1]]


class EpochsHaveOneLeader(Invariant):
    """All versions of a table that name one leader epoch come from one life of one broker."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._leaders: dict[str, dict[int, tuple[int, str]]] = {}  # folder -> version -> leader epoch, incarnation

    def on_version(self, version: Version) -> None:
        folder, epoch, leader = version.folder, version.leader_epoch, version.incarnation
        if version.number == 0:
            self._leaders[folder] = {}
        if epoch is not None and leader is not None:
            others = {other for other_epoch, other in self._leaders[folder].values() if other_epoch == epoch}
            assert others <= {leader}, (
                f"{folder}: version {version.number} of leader epoch {epoch} is of a second leader"
            )
            self._leaders[folder][version.number] = epoch, leader

    def on_lost(self, key: str) -> None:
        name = version_of(key)
        if name is not None:
            self._leaders[name[0]].pop(name[1], None)


class EachRecordOnce(Invariant):
    """An accepted record of an idempotent producer has one row, any other one at most; the rows of one producer in one
    partition are in the order of sending."""

    def check_end(self) -> None:
        from tests.simulation.broker_programs import Producer, by_place

        producers = [program for program in self.world.programs if isinstance(program, Producer)]
        for place, sent in by_place(producers).items():
            if place.topic_id not in self.world.live_topics:
                continue
            may_be_gone = self.world.may_delete(place) or place.topic in self.world.compacted_topics
            _, rows = read_table(self.world, place.topic, place.partition)
            counts = Counter(value for _, value in rows.values() if not (value or b"").startswith(b"tx:"))
            for each in sent:
                count, error = counts.pop(each.value, 0), each.future.exception(0)
                assert count == 1 or (count == 0 and (may_be_gone or error is not None)), (
                    f"{place}: {each.value!r} is there {count} times, its sending ended with {error}"
                )
            assert not counts, f"{place}: no producer has sent {counts}"
            values = [value for _, (_, value) in sorted(rows.items())]
            for name in {each.producer for each in sent}:
                there = set(values)
                expected = [each.value for each in sent if each.producer == name and each.value in there]
                known = set(expected)
                found = [value for value in values if value in known]
                assert found == expected, f"{place}: sent {expected}, found {found}"


class ViewsNeverGoBack(Invariant):
    """An answer to a consumer stays true: a high watermark and a log start never fall, an offset keeps its record, and
    no offset between the log start and an answered high watermark is out of range. Told means that the answer had come
    before the question was sent. A leader that was replaced may know less for a while, but not less than its reader
    says that it was told. What leaders answer never goes back for all consumers together; what followers answer, for
    each of them."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        # By place, and by reader, None for all that ask leaders only.
        self._high_watermarks: dict[tuple[Place, str | None], Highest] = defaultdict(Highest)
        self._log_starts: dict[tuple[Place, str | None], Highest] = defaultdict(Highest)
        self._rows: dict[Place, dict[int, Row]] = defaultdict(dict)

    def on_acknowledged(self, sent: Sent, offset: int) -> None:
        if offset >= 0:
            self._high_watermarks[sent.place, None].add(self.world.now, offset + 1)
            self._check_row(sent.place, offset, (sent.key, sent.value))

    def on_fetched(self, told: Told) -> None:
        if told.reader is not None or not self.world.may_be_stale(
            told.life, TopicPartition(told.place.topic, told.place.partition), told.asked_at
        ):
            self._check_ends(told)
        if told.code is ErrorCode.NONE:
            self._check_records(told)

    def _check_ends(self, told: Told) -> None:
        seen = told.place, told.reader
        high_watermark = self._high_watermarks[seen].up_to(told.asked_at)
        log_start = self._log_starts[seen].up_to(told.asked_at)
        if told.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            assert told.fetch_offset > high_watermark or self.world.may_delete(told.place), (
                f"{told.place}: offset {told.fetch_offset} is out of range ({told.message}), "
                f"the high watermark was {high_watermark}"
            )
        if told.code is not ErrorCode.NONE:
            return
        assert told.high_watermark >= high_watermark, (
            f"{told.place}: the high watermark went from {high_watermark} back to {told.high_watermark}"
        )
        assert told.log_start >= log_start, f"{told.place}: the log start went from {log_start} to {told.log_start}"
        self._high_watermarks[seen].add(self.world.now, told.high_watermark)
        self._log_starts[seen].add(self.world.now, told.log_start)

    def _check_records(self, told: Told) -> None:
        expected = told.fetch_offset
        for offset, key, value in told.records:
            assert offset < told.high_watermark, f"{told.place}: offset {offset} is beyond {told.high_watermark}"
            is_dense = told.place.topic not in self.world.compacted_topics
            assert offset == expected or not is_dense, f"{told.place}: expected offset {expected}, found {offset}"
            expected = offset + 1
            self._check_row(told.place, offset, (key, value))

    def _check_row(self, place: Place, offset: int, row: Row) -> None:
        known = self._rows[place].setdefault(offset, row)
        assert known == row, f"{place}: offset {offset} was {known} and is {row}"


class MetadataIsItsLog(Invariant):
    """A broker's state of the cluster equals a replay of the whole log."""

    def check_end(self) -> None:
        logged = load_cluster(self.world.disk.files)
        for broker in self.world.brokers:
            assert broker.life is not None
            known = broker.life.core.cluster.state
            for part in fields(ClusterState):
                expected, found = getattr(logged, part.name), getattr(known, part.name)
                assert found == expected, f"{part.name}: the log says {expected}, {broker.name} {found}"


INVARIANTS = (
    AcknowledgedIsInTheTable,
    TablesAreSound,
    VersionsOnlyGrow,
    EpochsHaveOneLeader,
    EachRecordOnce,
    ViewsNeverGoBack,
    MetadataIsItsLog,
)
