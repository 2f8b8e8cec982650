"""Does a partition keep every promise of the log? Reads all of it and tells each breach; prints and mends nothing.

The log is judged by log_verification.py; then what is live has to be dense from the log start to the high watermark,
each data file to be what its entry says (data_file_verification.py), the records of each idempotent producer to follow
each other, and transactions to be whole (producer_verification.py). Shares no code with the path that commits and
opens, and may run beside a broker: it takes no lock and judges the versions that were there when it began.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from bus.cluster_metadata.cluster_mending import FoundTable, Mended, find_topics, mend_cluster
from bus.cluster_metadata.cluster_records import replay_cluster
from bus.cluster_metadata.cluster_state import ClusterState
from bus.errors import StorageDamaged, count_of, first_line
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.storage_delta.files.trials import UnreadableFile, open_data_file
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore
from bus.storage_delta.verify.data_file_verification import check_data_file
from bus.storage_delta.verify.log_verification import Breach, LogCheck, LogMoved, check_start
from bus.storage_delta.verify.producer_verification import ProducerCheck
from bus.storage_delta.verify.replay import (
    BOUNDARY,
    LOG_FOLDER,
    LOG_START_APP,
    PRODUCER_APPS,
    AddedFile,
    Boundary,
    LogListing,
    ReplayedTable,
    Unreadable,
    list_log,
    partition_folder,
    read_boundary,
    replay_table,
    version_file,
)

_PARTITION_NAME = re.compile(r"0|[1-9][0-9]*")
_FOLDER = partition_folder(TopicPartition(CLUSTER_METADATA_TOPIC, 0))


def find_contradictions(store: ObjectStore) -> Mended | None:
    """Replay the cluster's metadata, and compare them with the topics' tables if the records contradict each other.
    None if they replay as they are. Raises `StorageDamaged` if the metadata's table itself is not whole."""
    rows = list(_rows(store))
    if not mend_cluster(rows).contradictions:
        return None
    found, producer_id_max = find_topics(_find_tables(store))
    return mend_cluster(rows, found, producer_id_max=producer_id_max)


def load_cluster(store: ObjectStore) -> ClusterState:
    """Raises `StorageDamaged`."""
    rows = list(_rows(store))
    try:
        return replay_cluster((row for _, row in rows), first_offset=rows[0][0] if rows else 0)
    except ValueError as error:
        way_out = f"`bus log repair {CLUSTER_METADATA_TOPIC}` says what can be mended"
        raise StorageDamaged(f"{_FOLDER}: {error}; {way_out}") from None


def _rows(store: ObjectStore) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """From the log's start on, with their offsets."""
    listing = list_log(store, _FOLDER)
    if not listing.versions and not listing.checkpoints:
        return
    table = replay_table(store, _FOLDER, listing)
    log_start = table.txns.get(LOG_START_APP, 0)
    for file in table.files_by_offset:
        try:
            rows = open_data_file(store, _FOLDER, file.path).read(["offset", "value"])
        except (UnreadableFile, KeyNotFound, pa.ArrowException, OSError, ValueError) as error:
            raise StorageDamaged(f"{_FOLDER}/{file.path}: {first_line(error)}") from None
        for offset, value in zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True):
            if offset >= log_start:
                yield offset, value


def _find_tables(store: ObjectStore) -> Mapping[str, Sequence[FoundTable]]:
    """Return the tables by topic. Tables that cannot be read are left out."""
    names = store.list("topics", with_sizes=False).folders
    return {name: list(_tables_of(store, name)) for name in names if name != CLUSTER_METADATA_TOPIC}


def _tables_of(store: ObjectStore, name: str) -> Iterator[FoundTable]:
    for number in filter(_PARTITION_NAME.fullmatch, store.list(f"topics/{name}", with_sizes=False).folders):
        try:
            table = replay_table(store, partition_folder(TopicPartition(name, int(number))))
        except (StorageDamaged, KeyNotFound):
            continue
        ids = [app_id.removeprefix(PRODUCER_APPS) for app_id in table.txns if app_id.startswith(PRODUCER_APPS)]
        producer_id_max = max((int(named) for named in ids if named.isdecimal()), default=-1)
        topic_id = table.configuration.get("bus.topic_id")
        yield FoundTable(int(number), topic_id, table.high_watermark, table.leader_epoch, producer_id_max)


_REPLAYED = "metadata can be replayed"
_ATTEMPTS = 5  # to read a log that a broker cleans up meanwhile


@dataclass(frozen=True, slots=True)
class Report:
    """The scope and the result of a verification. `notes` are harmless, but worth knowing."""

    partition: TopicPartition
    version: int
    version_count: int
    checkpoint_count: int
    file_count: int
    record_count: int
    size_bytes: int
    leader_epoch: int
    breaches: Sequence[Breach]
    notes: Sequence[str]


def verify_partition(
    store: ObjectStore,
    partition: TopicPartition,
    *,
    topic_id: str | None = None,
    has_data_files: bool = True,
    stops_at_log: bool = False,
) -> Report:
    """Judge one partition; `topic_id`, if it is known, has to be the table's. Without `has_data_files` the data files'
    presence and size are checked, but not what is in them; nor with `stops_at_log` where the log has a breach. Raises
    `StorageFault` only if the store cannot be read."""
    folder = partition_folder(partition)
    boundary = read_boundary(store, folder)  # before the log, which only grows: it never is above what is found there
    log = _check_log(store, folder, partition, topic_id)
    listing = log.listing
    breaches = list(log.breaches)
    if log.is_judged and partition.topic == CLUSTER_METADATA_TOPIC:
        breaches += _check_metadata(store, partition)
    if log.is_judged:
        breaches += _check_boundary(partition, boundary, log.table)
        breaches += _check_live_files(partition, log.table)
        is_read = has_data_files and not (stops_at_log and breaches)
        breaches += _check_data_files(store, folder, partition, log, is_read)
    return Report(
        partition=partition,
        version=log.table.version,
        version_count=len(listing.versions),
        checkpoint_count=len(listing.checkpoints),
        file_count=len(log.table.files),
        record_count=sum(file.record_count for file in log.table.files.values()),
        size_bytes=sum(file.size_bytes for file in log.table.files.values()),
        leader_epoch=log.table.leader_epoch,
        breaches=breaches,
        notes=[*log.notes, *_notes(listing, log.table)] if log.is_judged else (),
    )


def _check_log(store: ObjectStore, folder: str, partition: TopicPartition, topic_id: str | None) -> LogCheck:
    for attempt in itertools.count(1):
        log = LogCheck(store, folder, partition, topic_id, list_log(store, folder))
        try:
            log.check()
            break
        except LogMoved as moved:
            if attempt == _ATTEMPTS:
                log.breaches.append(
                    Breach(partition, "versions are contiguous", LOG_FOLDER, None, "a log that stays", str(moved))
                )
                break
    return log


def verify_root(store: ObjectStore, *, has_data_files: bool = True) -> Iterator[Report]:
    """Judge the cluster's metadata, then every partition that it knows, one report each."""
    metadata = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
    report = verify_partition(store, metadata, has_data_files=has_data_files)
    try:
        cluster = load_cluster(store)
    except StorageDamaged as error:
        if not any(breach.promise == _REPLAYED for breach in report.breaches):
            damage = Breach(metadata, _REPLAYED, LOG_FOLDER, None, "a log of known records", str(error))
            report = replace(report, breaches=[*report.breaches, damage])
        yield report
        return
    yield replace(report, notes=[*report.notes, *_unknown_folders(store, cluster)])
    for topic in list(cluster.topics.values()):
        for number in range(len(topic.partitions)):
            partition = TopicPartition(topic.name, number)
            found = verify_partition(store, partition, topic_id=topic.topic_id, has_data_files=has_data_files)
            yield replace(found, breaches=[*found.breaches, *_check_leadership(store, cluster, found)])


def _check_metadata(store: ObjectStore, partition: TopicPartition) -> Iterator[Breach]:
    """Every record that cannot be read, or that contradicts those before it."""
    try:
        mended = find_contradictions(store)
    except StorageDamaged:
        return  # the data files tell
    for contradiction in mended.contradictions if mended is not None else ():
        where = f"offset {contradiction.offset}" if contradiction.offset >= 0 else LOG_FOLDER
        yield Breach(
            partition,
            _REPLAYED,
            where,
            None,
            "records that follow from one another",
            f"{contradiction.message}; `bus log repair {partition.topic}` mends it: {contradiction.remedy}",
        )


def _unknown_folders(store: ObjectStore, cluster: ClusterState) -> list[str]:
    known = {*cluster.topics, CLUSTER_METADATA_TOPIC}
    return [
        f"the folder topics/{name} belongs to no topic" for name in store.list("topics").folders if name not in known
    ]


def _check_leadership(store: ObjectStore, cluster: ClusterState, report: Report) -> list[Breach]:
    """A leader's epoch is in the metadata before it commits anything."""
    leadership = cluster.leadership(report.partition)
    if leadership is None or report.leader_epoch <= leadership.leader_epoch:
        return []
    # A broker may have started since the metadata was read.
    leadership = load_cluster(store).leadership(report.partition)
    if leadership is None or report.leader_epoch <= leadership.leader_epoch:
        return []
    return [
        Breach(
            report.partition,
            "leader epochs come from the metadata",
            LOG_FOLDER,
            report.version,
            f"a leader epoch of at most {leadership.leader_epoch}",
            str(report.leader_epoch),
        )
    ]


def _check_boundary(partition: TopicPartition, boundary: Boundary | Unreadable, table: ReplayedTable) -> list[Breach]:
    expected = f"versions up to {table.version} at most, or no file"
    if isinstance(boundary, Boundary):
        if boundary.kept_from <= table.version or boundary.topic_id != table.configuration.get("bus.topic_id"):
            return []
        found = f"version {boundary.kept_from}: no leader commits below it, and there is none"
    else:
        found = str(boundary)
    return [
        Breach(
            partition,
            "dropped versions are behind the last one",
            f"{LOG_FOLDER}/{BOUNDARY}",
            table.version,
            expected,
            found,
        )
    ]


# ------------------------------------------------------------------ what is live


def _check_live_files(partition: TopicPartition, table: ReplayedTable) -> Iterator[Breach]:
    files = table.files_by_offset
    for path, (promise, expected, found) in check_start(table):
        yield Breach(partition, promise, path or LOG_FOLDER, table.version, expected, found)
    for before, file in itertools.pairwise(files):
        # Another engine's files tell nothing of the records that key compaction took between them and others.
        is_foreign_hole = None in (before.tag, file.tag) and before.last_offset < file.base_offset <= table.compacted_to
        is_lost = table.is_lost(before.last_offset + 1, file.base_offset)
        if file.base_offset != before.last_offset + 1 and not is_foreign_hole and not is_lost:
            expected = f"offset {before.last_offset + 1} after {before.path}"
            yield Breach(partition, "offsets are dense", file.path, file.version, expected, str(file.base_offset))
    end = files[-1].last_offset + 1 if files else table.high_watermark
    if end != table.high_watermark and not table.is_lost(end, table.high_watermark):
        found = f"{files[-1].last_offset}, and a high watermark of {table.high_watermark}"
        last = f"the last offset to be {table.high_watermark - 1}"
        yield Breach(partition, "the high watermark is true", files[-1].path, files[-1].version, last, found)


def _check_data_files(
    store: ObjectStore, folder: str, partition: TopicPartition, log: LogCheck, is_read: bool
) -> Iterator[Breach]:
    table, transactions = log.table, log.transactions
    live: Mapping[str, AddedFile] | None = None
    schema_string = str((table.metadata or {}).get("schemaString"))
    epoch, producers, is_all_there = -1, ProducerCheck(), is_read
    losses = [first for first, _ in table.lost_ranges]
    for file in table.files_by_offset:
        try:
            check = check_data_file(
                store,
                folder,
                file,
                schema_string,
                epoch_min=epoch,
                is_read=is_read,
                may_have_holes=table.may_have_holes(file),
            )
        except KeyNotFound:
            # A broker may have rewritten it, or deleted it by retention, and removed it later: then it is no longer
            # live.
            live = replay_table(store, folder).files if live is None else live
            if file.path in live:
                expected = f"a file of {file.size_bytes} bytes"
                yield Breach(partition, "live files are there", file.path, file.version, expected, "none")
            is_all_there = False
            continue
        epoch = max(epoch, check.leader_epoch_max)
        rows = check.producer_rows
        is_all_there = is_all_there and rows is not None
        if rows is not None:
            if losses and losses[0] <= file.last_offset:
                losses = [first for first in losses if first > file.last_offset]
                producers.pass_loss()
            check.breaches += producers.add_file(file, rows, may_have_holes=table.may_have_holes(file))
            check.breaches += transactions.add_file(rows)
        for promise, expected, found in check.breaches:
            yield Breach(partition, promise, file.path, file.version, expected, found)
    if is_all_there:
        if losses:
            producers.pass_loss()
        yield from _check_txns(partition, producers, table)
        for version, (promise, expected, found) in transactions.finish(table):
            yield Breach(partition, promise, version_file(version), version, expected, found)


def _check_txns(partition: TopicPartition, producers: ProducerCheck, table: ReplayedTable) -> Iterator[Breach]:
    record_count = sum(file.record_count for file in table.files.values())
    for path, (promise, expected, found) in producers.check_txns(
        table.txns, is_whole=record_count == table.high_watermark
    ):
        version = table.version if path is None else table.files[path].version
        yield Breach(partition, promise, path or LOG_FOLDER, version, expected, found)


def _notes(listing: LogListing, table: ReplayedTable) -> list[str]:
    unnamed = [path for path in listing.data_files if path not in table.files]
    behind = [path for path in unnamed if path[:20].isdigit() and int(path[:20]) >= table.high_watermark]
    notes = [
        f"offsets {first} to {following - 1} were given up by a repair: no record of theirs is left"
        for first, following in table.lost_ranges
    ]
    if unnamed:
        size = sum(listing.data_files[path] for path in unnamed)
        notes.append(
            f"{count_of(len(unnamed), 'file')} ({size} bytes) that the current version does not name, such as "
            f"{unnamed[0]}"
        )
    if behind:
        notes.append(
            f"{behind[0]} lies behind the end of the log, {table.high_watermark}: an interrupted commit left it, or "
            "the version that named it is lost; `bus log repair` brings its records back"
        )
    if listing.others:
        notes.append(f"other files in {LOG_FOLDER}: {', '.join(sorted(listing.others)[:5])}")
    return notes
