"""The plan of a repair: the contents of a damaged table, put together from everything that can still be read of it. And
the steps of a repair as lines for people and programs, and the quarantine for what it removes.

Guards the promise of a repair: whatever the log, later versions or the files themselves still have of the offsets from
the log start on is in the plan, and what nothing has is named. The planner reads all of it and never writes; the
quarantine removes nothing that it has not copied.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from bus.model import TopicPartition
from bus.ports import ProducerProgress
from bus.records.log_schema import is_same_schema
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.producer_matching import later_progress
from bus.storage_delta.files.producer_spans import PRODUCER_COLUMNS
from bus.storage_delta.files.proved_parquet import BytesSource, decode_sums, open_proved
from bus.storage_delta.log.actions import decode_metadata
from bus.storage_delta.log.listing import LogListing, partition_folder
from bus.storage_delta.log.table_metadata import encode_create
from bus.storage_delta.log.table_protocol import is_managed
from bus.storage_delta.log.txns import (
    COMPACTED_APP,
    HIGH_WATERMARK_APP,
    LEADER_EPOCH_APP,
    LOG_START_APP,
    Txn,
    decode_lost_ranges,
    decode_producers,
    decode_proofs,
    lost_app,
    producer_app,
)
from bus.storage_delta.repair.files import (
    BadFile,
    FoundFile,
    RepairedTable,
    check_named,
    choose_files,
    describe_rows,
    find_holes,
    find_misplaced,
    named_truly,
    rewrite,
    salvage_named,
    with_entry,
    without_overlaps,
)
from bus.storage_delta.repair.history import BeyondRepair, History, HistoryReader, NamedFile, Trouble, named_files
from bus.storage_delta.stores.store import KeyExists, KeyNotFound, ObjectStore

_NEVER_BACK = (HIGH_WATERMARK_APP, LEADER_EPOCH_APP, COMPACTED_APP, LOG_START_APP)


@dataclass(frozen=True, slots=True)
class RepairPlan:
    table: RepairedTable
    bad: Sequence[BadFile]  # among the files that the log names
    unusable: Sequence[str]  # files behind the end of the log that may have been acknowledged; none can be read
    unnamed_end: Sequence[str]  # files behind the end of a log that can be followed to it
    lost: Sequence[tuple[int, int]]  # newly given up: (first, one past the last)
    high_watermark: int

    @property
    def leader_epoch(self) -> int:
        return self.table.txns[LEADER_EPOCH_APP].version


class Planner:
    """Plans the repair of one partition."""

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: str,
        *,
        log: HistoryReader,
        reader: DataReader,
        schema: pa.Schema,
        listing: LogListing,
        now_ms: int,
    ) -> None:
        self._partition = partition
        self._topic_id = topic_id
        self._log = log
        self._reader = reader
        self._schema = schema
        self._listing = listing
        self._now_ms = now_ms

    def plan(self, history: History) -> RepairPlan:
        """Raises `BeyondRepair` if there is nothing to go by."""
        named, txns, end = _named_by_log(history, self._log)
        compacted_to = _version_of(txns, COMPACTED_APP, 0)
        checked = [check_named(self._reader, self._schema, one, compacted_to=compacted_to) for one in named.values()]
        sound = [one for one in checked if isinstance(one, FoundFile)]
        bad = [one for one in checked if isinstance(one, BadFile)]
        is_lossy = history.problem is not None and history.problem.trouble is Trouble.LOST
        apart = without_overlaps(sound)
        log_start = _version_of(txns, LOG_START_APP, 0)
        is_whole = (
            history.problem is None
            and len(apart) == len(named)
            and not find_holes([one.file for one in apart], start=log_start, end=end)
        )
        others, unusable = self._look_at_others(history, apart, compacted_to, is_whole=is_whole)
        back = [found for one in bad if (found := find_misplaced(one, named[one.path], others)) is not None]
        apart = without_overlaps([*apart, *back])
        others = [named_truly(one) for one in others if one.file.path not in {found.source for found in back}]
        start = _first_offset(history, named, others, is_lossy=is_lossy, log_start=log_start)
        cover = choose_files(apart, others, start=start, end=end, may_go_on=is_lossy, may_follow=True)
        if cover.holes:
            broken = [named[one.path] for one in bad if one.is_there]
            parts = [part for one in broken for part in salvage_named(self._reader, self._schema, one)]
            cover = choose_files(cover.files, parts, start=start, end=end, may_go_on=False)
        if not cover.files and not named and not history.metadata:
            raise BeyondRepair(
                f"{self._partition}: expected a version, a checkpoint or a data file to put the table together from, "
                "found none"
            )
        log_end = end
        end = max([end, *(found.file.next_offset for found in cover.files)])
        lost = _newly_lost(cover.files, cover.holes, txns, log_start=log_start)
        self._add_progress(txns, [one for one in cover.files if not _is_named(one, history)])
        self._add_proofs(txns, cover.files)
        files = [rewrite(self._reader, self._schema, found) for found in cover.files]
        _add_own(txns, cover.files, lost, end, self._now_ms)
        protocol, metadata = self._protocol_and_metadata(history)
        chosen = {found.file.path for found in cover.files}
        behind = [found.file.path for found in cover.files if found.file.base_offset >= log_end]
        return RepairPlan(
            table=RepairedTable(files, txns, metadata, protocol),
            bad=[one for one in bad if one.path not in chosen],
            unusable=unusable,
            unnamed_end=behind if history.problem is None else [],
            lost=lost,
            high_watermark=end,
        )

    def _look_at_others(
        self, history: History, live: Sequence[FoundFile], compacted_to: int, *, is_whole: bool
    ) -> tuple[list[FoundFile], list[str]]:
        """Data files of the folder that are not among the `live` ones; and those of the bus at or above the high
        watermark of the history that cannot be read. If the log `is_whole`, files that it has removed count for
        nothing, unless another one is not what its name says: then names tell nothing."""
        wanted = set(self._listing.data_files) - {one.file.path for one in live}
        if is_whole:
            gone = {*history.removed, *self._log.removed_before(history)}
            found, unusable = self._look_at_all(history, wanted - gone, compacted_to)
            if not unusable and all(named_truly(one).file.path == one.file.path for one in found):
                return found, unusable
        return self._look_at_all(history, wanted, compacted_to)

    def _look_at_all(
        self, history: History, paths: Iterable[str], compacted_to: int
    ) -> tuple[list[FoundFile], list[str]]:
        found: list[FoundFile] = []
        unusable: list[str] = []
        for path in sorted(paths):
            if not path.endswith(".parquet"):
                continue
            other = self._look_at(history, path, compacted_to)
            if other is not None:
                found.append(other)
            elif path[:20].isdigit() and int(path[:20]) >= history.high_watermark:
                unusable.append(path)
        return found, unusable

    def _look_at(self, history: History, path: str, compacted_to: int) -> FoundFile | None:
        recorded = history.removed.get(path)
        checked = None
        if recorded is not None:
            checked = check_named(self._reader, self._schema, recorded, compacted_to=compacted_to)
        if isinstance(checked, FoundFile) and (not history.is_gathered or checked.body is None):
            return checked
        described = describe_rows(self._reader, self._schema, path, compacted_to=compacted_to)
        if described is None or recorded is None or not isinstance(checked, FoundFile):
            return described
        # The log cannot be replayed, so its entries need not be true.
        return replace(with_entry(described, recorded.file), is_proved=checked.is_proved)

    def _add_progress(self, txns: dict[str, Txn], files: Sequence[FoundFile]) -> None:
        """Find where producers ended by the rows of `files`: the versions that said it may be lost."""
        recorded, ended = decode_producers(txns), dict[int, tuple[int, int]]()
        for found in files:
            for rows in self._producer_rows(found):
                ended.update(_last_of_producers(rows))
        for producer_id, (epoch, sequence) in ended.items():
            by_rows = ProducerProgress(producer_id, epoch, sequence)
            if later_progress(by_rows, recorded.get(producer_id)) is by_rows:
                known = recorded.get(producer_id)
                if known is None or (known.producer_epoch, known.last_sequence) != (epoch, sequence):
                    txns[producer_app(producer_id)] = Txn(epoch << 32 | sequence, self._now_ms)

    def _add_proofs(self, txns: dict[str, Txn], files: Sequence[FoundFile]) -> None:
        """Add the proofs of transactions whose rows return although the version that proved them is lost; otherwise the
        transactions would be applied again."""
        for found in files:
            if found.body is not None or found.data is not None:
                continue  # the log names it; or only a part of it is left
            parquet, _ = self._reader.open_unnamed(found.source or found.file.path)
            for app_id, version in decode_proofs(parquet.metadata.metadata or {}).items():
                if version > _version_of(txns, app_id, -1):
                    txns[app_id] = Txn(version, self._now_ms)

    def _producer_rows(self, found: FoundFile) -> Iterable[pa.Table]:
        if found.data is not None:
            source = BytesSource(found.data())
            return [open_proved(source, decode_sums(found.file.sums)).read(PRODUCER_COLUMNS)]
        return self._reader.scan(_at(found) if found.source else found.file, PRODUCER_COLUMNS)

    def _protocol_and_metadata(self, history: History) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Those of the table as far as any version tells them, else those of a new one."""
        data = encode_create(
            self._partition,
            topic_id=self._topic_id,
            table_id=str(uuid.uuid4()),
            txn_id=str(uuid.uuid4()),
            schema=self._schema,
            now_ms=self._now_ms,
            is_managed=is_managed(self._log.find_protocol(history)),
        )
        created = {name: body for line in data.splitlines() for name, body in json.loads(line).items()}
        metadata = history.metadata or self._log.find_metadata() or decode_metadata(created["metaData"])
        if metadata.topic_id != self._topic_id:
            raise BeyondRepair(
                f"{self._partition}: expected the table of topic id {self._topic_id}, found {metadata.topic_id}"
            )
        if is_same_schema(metadata.schema_string, self._schema):
            return created["protocol"], metadata.body
        return created["protocol"], {**metadata.body, "schemaString": created["metaData"]["schemaString"]}


def _at(found: FoundFile) -> LiveFile:
    """Return the file under its present path."""
    return replace(found.file, path=found.source)


def _is_named(found: FoundFile, history: History) -> bool:
    """Return True if the log, followed to its end, says where the producers of this file ended."""
    return history.problem is None and found.body is not None and found.file.path in history.files


def _last_of_producers(rows: pa.Table) -> dict[int, tuple[int, int]]:
    """Epoch and sequence of each producer's last row; `rows` are in offset order."""
    stamped = rows.select(list(PRODUCER_COLUMNS)).drop_null()
    ids, epochs, sequences = (stamped.column(name).to_numpy()[::-1] for name in PRODUCER_COLUMNS)
    producers, last = np.unique(ids, return_index=True)
    return {
        int(producer_id): (int(epochs[at]), int(sequences[at])) for producer_id, at in zip(producers, last, strict=True)
    }


def _named_by_log(history: History, log: HistoryReader) -> tuple[dict[str, NamedFile], dict[str, Txn], int]:
    """Files, `txn`s and the high watermark of the history, and of what can be read behind it."""
    files, txns, end = dict(history.files), dict(history.txns), history.high_watermark
    has_later = history.problem is not None and not history.is_gathered
    later = log.later_commits(history.version) if has_later else ()
    for commit in chain(later, log.displaced_commits(history)):
        for remove in commit.removes:
            files.pop(remove.path, None)
        files.update(named_files(commit.adds))
        for app_id, txn in commit.txns.items():
            if app_id not in _NEVER_BACK or txn.version >= _version_of(txns, app_id, -1):
                txns[app_id] = txn
    return files, txns, max(end, _version_of(txns, HIGH_WATERMARK_APP, 0))


def _version_of(txns: Mapping[str, Txn], app_id: str, default: int) -> int:
    return txns[app_id].version if app_id in txns else default


def _first_offset(
    history: History,
    named: Mapping[str, NamedFile],
    others: Sequence[FoundFile],
    *,
    is_lossy: bool,
    log_start: int,
) -> int:
    """Return the first offset of the table: the log start, or the first offset of a file that reaches across it. If
    versions are lost that may have named the first file, every existing file counts."""
    files = [one.file for one in named.values()]
    if is_lossy and history.base < 0:
        files += [found.file for found in others]
    return min([log_start, *(file.base_offset for file in files if file.next_offset > log_start)])


def _newly_lost(
    files: Sequence[FoundFile], holes: Sequence[tuple[int, int]], txns: Mapping[str, Txn], *, log_start: int
) -> list[tuple[int, int]]:
    """Return the newly lost offsets: without those given up before, those below the log start, and those that key
    compaction may have removed beside a file of another engine, whose entry covers its rows only."""
    compacted_to = _version_of(txns, COMPACTED_APP, 0)
    known = decode_lost_ranges(txns)
    lost = []
    for first, past_last in holes:
        beside = [one.file for one in files if one.file.next_offset == first or one.file.base_offset == past_last]
        if past_last <= compacted_to and not all(file.is_ours for file in beside):
            continue
        first = max(first, log_start)
        for known_first, known_past_last in known:
            if known_first <= first < known_past_last:
                first = known_past_last
        if first < past_last:
            lost.append((first, past_last))
    return lost


def _add_own(
    txns: dict[str, Txn], files: Sequence[FoundFile], lost: Sequence[tuple[int, int]], end: int, now_ms: int
) -> None:
    epochs = [found.file.leader_epoch for found in files]
    txns[HIGH_WATERMARK_APP] = Txn(end, now_ms)
    txns[LEADER_EPOCH_APP] = Txn(max([_version_of(txns, LEADER_EPOCH_APP, 0), *epochs]), now_ms)
    for first, past_last in lost:
        txns[lost_app(first)] = Txn(past_last, now_ms)


@dataclass(frozen=True, slots=True)
class RepairStep:
    """`action`: find, undo, quarantine, drop, bring back, give up, commit or checkpoint. Offsets are -1 where the step
    is about none."""

    action: str
    subject: str  # a file of the partition's folder, or offsets
    detail: str
    first_offset: int = -1
    last_offset: int = -1


@dataclass(frozen=True, slots=True)
class RepairReport:
    """`steps` empty: nothing was wrong. `error`: why the table would still not open, None if it does."""

    partition: TopicPartition
    is_rehearsal: bool
    steps: Sequence[RepairStep]
    error: str | None = None

    def to_lines(self) -> bytes:
        """One JSON object a step."""
        head = {"topic": self.partition.topic, "partition": self.partition.partition, "dry_run": self.is_rehearsal}
        lines = [{**head, **asdict(step)} for step in self.steps]
        if self.error is not None:
            lines.append({**head, "action": "fail", "subject": "", "detail": self.error})
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


class Steps:
    """Gathers them in their order."""

    def __init__(self) -> None:
        self.taken: list[RepairStep] = []

    def add(self, action: str, subject: str, detail: str, offsets: tuple[int, int] | None = None) -> None:
        """`offsets`: the first, and one past the last."""
        first, last = (-1, -1) if offsets is None else (offsets[0], offsets[1] - 1)
        self.taken.append(RepairStep(action, subject, detail, first, last))


class Quarantine:
    """The quarantine, <root>/quarantine/<topic>/<partition>/... Files that are taken out of a partition's folder are
    copied there first, durably, and an earlier copy is never overwritten. Reports of repairs are there too."""

    def __init__(self, store: ObjectStore, partition: TopicPartition) -> None:
        self._store = store
        self._from = partition_folder(partition)
        self.folder = f"quarantine/{partition.topic}/{partition.partition}"

    def keep(self, name: str) -> str | None:
        """Copy `name` of the partition's folder; where to, or None if it is not there."""
        try:
            data = self._store.get(f"{self._from}/{name}")
        except KeyNotFound:
            return None
        return self.write(name, data)

    def remove(self, name: str) -> None:
        """Out of the partition's folder, once it was copied."""
        self._store.delete(f"{self._from}/{name}")

    def write(self, name: str, data: bytes) -> str:
        """Under a name that is free."""
        key, number = f"{self.folder}/{name}", 0
        while True:
            try:
                self._store.create(key, data)
                return key
            except KeyExists:
                if self._store.get(key) == data:
                    return key
                number += 1
                key = f"{self.folder}/{name}.{number}"
