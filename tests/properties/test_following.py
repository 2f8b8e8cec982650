"""A table that is followed version by version has the same state as one that is opened afresh."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.model import TopicPartition
from bus.ports import Committed, ProducerProgress
from bus.records.log_schema import LOG_SCHEMA
from bus.storage_delta.files.data_files import EncodedFile, encode_data_file
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.actions import Signature, encode_add, encode_version
from bus.storage_delta.log.listing import LOG_FOLDER, partition_folder, version_name
from bus.storage_delta.log.snapshot import Snapshot
from bus.storage_delta.log.txns import HIGH_WATERMARK_APP, LEADER_EPOCH_APP, encode_txn
from bus.storage_delta.partition_reader import FollowingReader, TableView
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, log_batch

PARTITION = TopicPartition("orders", 0)
FOLDER = partition_folder(PARTITION)
STEPS = st.tuples(
    st.sampled_from(
        [
            *["append"] * 4,
            *["roll", "compact", "retain", "take over", "checkpoint", "drop versions"],
            *["several adds", "foreign rewrite", "foreign append", "foreign nothing"],
        ]
    ),
    st.integers(0, 3),
    st.integers(1, 3),
    st.booleans(),  # whether the followers look after it
)


class Log:
    """Led by one broker after another."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.epoch = 0
        self.now_ms = NOW_MS
        self.sequences: dict[int, int] = {}  # the next one of each producer
        open_storage_on(self.store, exclusive=False).create_partition(PARTITION, topic_id="id")
        self.take_over()

    def open(self) -> DeltaPartitionTable:
        return open_storage_on(self.store, exclusive=False).open_partition(PARTITION, topic_id="id")

    def reader(self) -> FollowingReader:
        return FollowingReader(self.store, FOLDER, LOG_SCHEMA, ReadCache(), topic_id="id")

    def take_over(self) -> None:
        self.epoch += 1
        self.table = self.open()
        assert isinstance(self.table.lead(self.epoch, self.now_ms, fence=True), Committed)

    def take(self, step: str, first: int, count: int) -> None:
        self.now_ms += 1_000
        files, state = self.table.rewrites.files[first : first + count], self.table.state
        match step:
            case "append":
                self._append(first, count)
            case "roll" if len(files) > 1:
                self._swap(
                    self.table.rewrites.prepare_roll(
                        files, compression="none", now_ms=self.now_ms, tombstone_retention_ms=1
                    )
                )
            case "compact":
                self._swap(self.table.rewrites.prepare_key_compaction(now_ms=self.now_ms, tombstone_retention_ms=1))
            case "retain" if (offset := min(state.log_start + 2 * count, state.high_watermark)) > state.log_start:
                done = self.table.cleanup.advance_log_start(offset, leader_epoch=self.epoch, now_ms=self.now_ms)
                assert isinstance(done, Committed)
            case "take over":
                self.take_over()
            case "checkpoint":
                self.table.cleanup.write_checkpoint()
            case "drop versions":
                self.table.cleanup.drop_old_versions(
                    committed_before_ms=2**62, count_max=count, removed_before_ms=2**62
                )
            case "several adds":
                self._commit_adds(count)
            case "foreign rewrite" if files and self.table.rewrites.compacted_to == 0:
                self._rewrite(files[0])
            case "foreign append":
                self._commit_foreign("MERGE", [self._write(state.high_watermark, count)], is_data_change=True)
            case "foreign nothing":
                self._commit_foreign("OPTIMIZE", [], is_data_change=False)

    def _append(self, producer_id: int, count: int) -> None:
        base = self.table.state.high_watermark
        batch = log_batch(
            base,
            [b"%d" % offset for offset in range(base, base + count)],
            keys=[b"k%d" % (offset % 3) for offset in range(base, base + count)],
            timestamp_ms=self.now_ms - 10_000 * producer_id,
            leader_epoch=self.epoch,
            producer=(producer_id, 0, self.sequences.get(producer_id, 0)),
        )
        self.sequences[producer_id] = self.sequences.get(producer_id, 0) + count
        progress = ProducerProgress(producer_id, 0, self.sequences[producer_id] - 1)
        done = self.table.append([batch], leader_epoch=self.epoch, now_ms=self.now_ms, producers=[progress])
        assert isinstance(done, Committed)

    def _swap(self, prepared: object) -> None:
        if prepared is not None:
            done = self.table.rewrites.swap(prepared, leader_epoch=self.epoch, now_ms=self.now_ms)  # type: ignore[arg-type]
            assert isinstance(done, Committed)

    def _write(self, base: int, count: int) -> EncodedFile:
        batch = log_batch(base, [b"v"] * count, timestamp_ms=self.now_ms, leader_epoch=self.epoch)
        encoded = encode_data_file([batch], LOG_SCHEMA, name_suffix=str(uuid.uuid4()), compression="none")
        self.store.write_unique(f"{FOLDER}/{encoded.file.path}", encoded.data)
        return encoded

    def _create(self, data: bytes) -> None:
        self.store.create(f"{FOLDER}/{LOG_FOLDER}/{version_name(self.table.state.version + 1)}", data)

    def _commit_adds(self, count: int) -> None:
        """One append with several files, by a leader that is gone again."""
        self.epoch += 1
        first = self._write(self.table.state.high_watermark, count)
        second = self._write(first.file.next_offset, 2)
        signature = Signature(self.epoch, self.now_ms, str(uuid.uuid4()), "another")
        lines = [
            encode_txn(HIGH_WATERMARK_APP, second.file.next_offset, self.now_ms),
            encode_txn(LEADER_EPOCH_APP, self.epoch, self.now_ms),
            *(encode_add(each.file, each.stats, self.now_ms, is_data_change=True) for each in (first, second)),
        ]
        self._create(
            encode_version("WRITE", lines, now_ms=self.now_ms, txn_id=signature.txn_id, author=signature.author)
        )
        self.take_over()

    def _rewrite(self, file: LiveFile) -> None:
        """The same rows in a file of another engine."""
        name = f"part-{uuid.uuid4()}.parquet"
        self.store.write_unique(f"{FOLDER}/{name}", self.store.get(f"{FOLDER}/{file.path}"))
        remove = {"path": file.path, "deletionTimestamp": self.now_ms, "dataChange": False}
        stats = {
            "numRecords": file.record_count,
            "minValues": {"offset": file.base_offset},
            "maxValues": {"offset": file.next_offset - 1},
        }
        add = self._foreign_add(name, file.size_bytes, json.dumps(stats), is_data_change=False)
        self._commit_lines("OPTIMIZE", [{"remove": remove}, add])

    def _commit_foreign(self, operation: str, files: Sequence[EncodedFile], *, is_data_change: bool) -> None:
        self._commit_lines(
            operation,
            [
                self._foreign_add(each.file.path, each.file.size_bytes, each.stats, is_data_change=is_data_change)
                for each in files
            ],
        )

    def _foreign_add(self, path: str, size_bytes: int, stats: str, *, is_data_change: bool) -> dict[str, object]:
        return {
            "add": {
                "path": path,
                "partitionValues": {},
                "size": size_bytes,
                "modificationTime": self.now_ms,
                "dataChange": is_data_change,
                "stats": stats,
            }
        }

    def _commit_lines(self, operation: str, actions: Sequence[dict[str, object]]) -> None:
        info = {"commitInfo": {"operation": operation, "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}}
        self._create("".join(json.dumps(action) + "\n" for action in [info, *actions]).encode())
        self.table.reload()


def shown(view: TableView) -> tuple[object, ...]:
    return view.state, list(view.live_files), view.timestamp_maxima_ms[: view.state.file_count], view.compacted_to


def stock(snapshot: Snapshot) -> tuple[object, ...]:
    """All that a leader begins with."""
    return (
        snapshot.version,
        list(snapshot.files),
        snapshot.removed.keys(),
        snapshot.txns,
        snapshot.checkpoint_version,
        list(snapshot.foreign_paths),
        snapshot.findings,
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=14))
def test_following_any_history_comes_to_what_opening_the_table_afresh_does(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    log = Log()
    reader, table = log.reader(), log.open()
    for place, (step, first, count, is_followed) in enumerate(steps):
        log.take(step, first, count)
        if is_followed or place == len(steps) - 1:
            afresh = log.reader()
            assert shown(reader.refresh()) == shown(afresh.refresh()) == shown(log.reader().reader.view)
            assert stock(reader.take_stock()) == stock(afresh.take_stock()) == stock(log.reader().load())
            reopened = log.open()
            assert table.follow() == reopened.state == log.table.state
            assert table.producers.progress == reopened.producers.progress == log.table.producers.progress
    before = log.table.state
    assert table.lead(log.epoch + 1, log.now_ms, fence=True) == Committed(before.version + 1, before.high_watermark)
    batch = log_batch(before.high_watermark, [b"own"], leader_epoch=log.epoch + 1)
    assert isinstance(table.append([batch], leader_epoch=log.epoch + 1, now_ms=log.now_ms), Committed)
    table.cleanup.write_checkpoint()
    table.cleanup.drop_old_versions(committed_before_ms=2**62, count_max=1, removed_before_ms=2**62)
    assert log.open().state == table.state
    breaches = verify_partition(log.store, PARTITION, topic_id="id").breaches
    assert [breach for breach in breaches if "statistics are true: part-" not in str(breach)] == []
