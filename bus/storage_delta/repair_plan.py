"""What a damaged table is to hold, from everything that can still be read of it.

Guards the promise of a repair: whatever the log, later versions or the files themselves still have of the offsets from
the log start on is in the plan, and what nothing has is named. Reads all of it; never writes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bus.model import TopicPartition
from bus.storage_delta.actions import (
    COMPACTED_APP,
    HIGH_WATERMARK_APP,
    LEADER_EPOCH_APP,
    LOG_START_APP,
    Txn,
    decode_lost_ranges,
    encode_create,
    lost_app,
)
from bus.storage_delta.data_reader import DataReader
from bus.storage_delta.log_replay import LogListing, producer_app
from bus.storage_delta.producer_columns import PRODUCER_COLUMNS
from bus.storage_delta.repair_commit import RepairedTable
from bus.storage_delta.repair_files import (
    BadFile,
    FoundFile,
    check_named,
    check_unnamed,
    choose_files,
    without_overlaps,
)
from bus.storage_delta.repair_history import BeyondRepair, History, HistoryReader, NamedFile, Trouble

_NEVER_BACK = (HIGH_WATERMARK_APP, LEADER_EPOCH_APP, COMPACTED_APP, LOG_START_APP)


@dataclass(frozen=True, slots=True)
class RepairPlan:
    table: RepairedTable
    bad: Sequence[BadFile]  # of those that the log names
    unusable: Sequence[str]  # files that may have been acknowledged, and of which nothing can be read
    lost: Sequence[tuple[int, int]]  # newly given up: (first, one past the last)
    high_watermark: int

    @property
    def leader_epoch(self) -> int:
        return self.table.txns[LEADER_EPOCH_APP].version


def plan_repair(
    partition: TopicPartition,
    topic_id: str,
    *,
    history: History,
    log: HistoryReader,
    reader: DataReader,
    schema: pa.Schema,
    listing: LogListing,
    now_ms: int,
) -> RepairPlan:
    """Raises `BeyondRepair` if there is nothing to go by."""
    named, txns, end = _all_that_is_told(history, log)
    checked = [check_named(reader, one) for one in named.values()]
    sound = [one for one in checked if isinstance(one, FoundFile)]
    bad = [one for one in checked if isinstance(one, BadFile)]
    is_lossy = history.problem is not None and history.problem.trouble is Trouble.LOST
    apart = without_overlaps(sound)
    others, unusable = _look_at_others(history, reader, schema, listing, {one.file.path for one in apart})
    log_start = _version_of(txns, LOG_START_APP, 0)
    start = _first_offset(history, named, others, log_start=log_start, end=end)
    cover = choose_files(apart, others, start=start, end=end, may_go_on=is_lossy)
    if not cover.files and not named and not history.metadata:
        raise BeyondRepair(
            f"{partition}: expected a version, a checkpoint or a data file to put the table together from, found none"
        )
    end = max([end, *(found.file.next_offset for found in cover.files)])
    lost = _newly_lost(cover.files, cover.holes, txns, log_start=log_start)
    _add_progress(txns, history, cover.files, reader)
    _add_own(txns, cover.files, lost, end, now_ms)
    protocol, metadata = _protocol_and_metadata(partition, topic_id, history, log, schema, now_ms)
    chosen = {found.file.path for found in cover.files}
    return RepairPlan(
        table=RepairedTable(cover.files, txns, metadata, protocol),
        bad=[one for one in bad if one.path not in chosen],
        unusable=unusable if is_lossy else [],
        lost=lost,
        high_watermark=end,
    )


def _all_that_is_told(history: History, log: HistoryReader) -> tuple[dict[str, NamedFile], dict[str, Txn], int]:
    """Files, `txn`s and the high watermark of the history, and of what can be read behind it."""
    files, txns, end = dict(history.files), dict(history.txns), history.high_watermark
    for commit, added in log.later_commits(history.version) if history.problem is not None else ():
        for remove in commit.removes:
            files.pop(remove.path, None)
        files.update({one.file.path: one for one, _ in added})
        for app_id, txn in commit.txns.items():
            if app_id not in _NEVER_BACK or txn.version >= _version_of(txns, app_id, -1):
                txns[app_id] = txn
    return files, txns, max(end, _version_of(txns, HIGH_WATERMARK_APP, 0))


def _version_of(txns: Mapping[str, Txn], app_id: str, default: int) -> int:
    return txns[app_id].version if app_id in txns else default


def _look_at_others(
    history: History, reader: DataReader, schema: pa.Schema, listing: LogListing, known: Iterable[str]
) -> tuple[list[FoundFile], list[str]]:
    """Data files of the folder that are not among `known`; and those of the bus at or above the high watermark of the
    history that cannot be read."""
    found: list[FoundFile] = []
    unusable: list[str] = []
    for path in sorted(set(listing.data_files) - set(known)):
        if not path.endswith(".parquet"):
            continue
        checked = check_named(reader, history.removed[path]) if path in history.removed else None
        other = checked if isinstance(checked, FoundFile) else check_unnamed(reader, schema, path)
        if other is not None:
            found.append(other)
        elif path[:20].isdigit() and int(path[:20]) >= history.high_watermark:
            unusable.append(path)
    return found, unusable


def _first_offset(
    history: History, named: Mapping[str, NamedFile], others: Sequence[FoundFile], *, log_start: int, end: int
) -> int:
    """Where the table's files begin; if no version tells, with what is there."""
    files = [one.file for one in named.values()]
    if history.version < 0:
        files += [found.file for found in others]
    return min((file.base_offset for file in files if file.next_offset > log_start), default=max(end, log_start))


def _newly_lost(
    files: Sequence[FoundFile], holes: Sequence[tuple[int, int]], txns: Mapping[str, Txn], *, log_start: int
) -> list[tuple[int, int]]:
    """Without what was given up before, what lies below the log start, and what key compaction may have taken from
    beside a file of another engine, which tells its rows and no more."""
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


def _add_progress(txns: dict[str, Txn], history: History, files: Sequence[FoundFile], reader: DataReader) -> None:
    """Where producers ended, by the rows that came back behind what the log tells of."""
    for found in files:
        if found.body is not None or found.file.base_offset < history.high_watermark:
            continue
        for rows in reader.scan(found.file, PRODUCER_COLUMNS):
            columns = (rows.column(name).to_pylist() for name in PRODUCER_COLUMNS)
            for producer_id, epoch, sequence in zip(*columns, strict=True):
                if producer_id is not None:
                    txns[producer_app(producer_id)] = Txn(epoch << 32 | sequence)


def _add_own(
    txns: dict[str, Txn], files: Sequence[FoundFile], lost: Sequence[tuple[int, int]], end: int, now_ms: int
) -> None:
    epochs = [found.file.leader_epoch for found in files]
    txns[HIGH_WATERMARK_APP] = Txn(end, now_ms)
    txns[LEADER_EPOCH_APP] = Txn(max([_version_of(txns, LEADER_EPOCH_APP, 0), *epochs]), now_ms)
    for first, past_last in lost:
        txns[lost_app(first)] = Txn(past_last, now_ms)


def _protocol_and_metadata(
    partition: TopicPartition,
    topic_id: str,
    history: History,
    log: HistoryReader,
    schema: pa.Schema,
    now_ms: int,
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Those of the table as far as any version tells them, else those of a new one."""
    data = encode_create(
        partition,
        topic_id=topic_id,
        table_id=str(uuid.uuid4()),
        txn_id=str(uuid.uuid4()),
        schema=schema,
        now_ms=now_ms,
    )
    created = {name: body for line in data.splitlines() for name, body in json.loads(line).items()}
    metadata = history.metadata or log.find_metadata() or created["metaData"]
    found = (metadata.get("configuration") or {}).get("bus.topic_id")
    if found != topic_id:
        raise BeyondRepair(f"{partition}: expected the table of topic id {topic_id}, found {found}")
    return history.protocol or created["protocol"], metadata
