"""Records of idempotent producers in the table: written, found again, told from those that are missing, forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import deltalake
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, RecordBatch, TimestampType, TopicPartition
from bus.ports import Committed, ProducerMatch, ProducerProgress
from bus.records.arrow_batches import check_records, complete_columns, sequences_of
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.root import DeltaStorage, open_storage, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, ScriptedStore, led
from tests.support.version_files import without_sum

PARTITION = TopicPartition("orders", 0)
Row = tuple[int, int, int]  # producer id, epoch, sequence


def records(stamp: ProducerStamp | None, count: int, *, timestamps_us: Sequence[int] | None = None) -> RecordBatch:
    """A producer's batch; each value tells whose it is."""
    base = 0 if stamp is None else stamp.base_sequence
    columns = {"value": pa.array([b"%d" % ((base + at) % SEQUENCE_MODULUS) for at in range(count)], pa.binary())}
    if timestamps_us is not None:
        columns["timestamp"] = pa.array(timestamps_us, pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = check_records(pa.RecordBatch.from_pydict(columns), default_timestamp_ms=NOW_MS)
    return replace(batch, producer=stamp)


def placed(batch: RecordBatch, base_offset: int, *, leader_epoch: int = 0) -> LogBatch:
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + batch.record_count,
        record_count=batch.record_count,
        size_bytes=batch.size_bytes,
        leader_epoch=leader_epoch,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_ms=None if batch.has_timestamps else batch.timestamp_min_ms,
        timestamp_max_ms=batch.timestamp_max_ms,
        columns=batch.columns,
        producer=batch.producer,
    )


def append(table: DeltaPartitionTable, *batches: RecordBatch, now_ms: int = NOW_MS) -> Committed:
    """One commit, with the progress that it makes."""
    offset = table.state.high_watermark
    log_batches, producers = [], {}
    for batch in batches:
        log_batches.append(placed(batch, offset))
        offset += batch.record_count
        if (stamp := batch.producer) is not None:
            last = int(sequences_of(batch)[-1])
            producers[stamp.producer_id] = ProducerProgress(stamp.producer_id, stamp.producer_epoch, last)
    outcome = table.append(log_batches, leader_epoch=0, now_ms=now_ms, producers=list(producers.values()))
    assert isinstance(outcome, Committed)
    return outcome


def stamped(producer_id: int, base_sequence: int, count: int, *, epoch: int = 0) -> RecordBatch:
    return records(ProducerStamp(producer_id, epoch, base_sequence), count)


@pytest.fixture
def storage(tmp_path: Path) -> DeltaStorage:
    return open_storage(str(tmp_path), exclusive=False)


@pytest.fixture
def table(storage: DeltaStorage) -> DeltaPartitionTable:
    return led(storage.create_partition(PARTITION, topic_id="id"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / partition_folder(PARTITION))


def reopen(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> DeltaPartitionTable:
    return led(storage.open_partition(PARTITION, topic_id="id"))


def reopen_from_checkpoint(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> DeltaPartitionTable:
    table.cleanup.write_checkpoint()
    for version in Path(url, "_delta_log").glob("*[0-9].json"):
        version.unlink()
    return led(storage.open_partition(PARTITION, topic_id="id"))


def optimize(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> DeltaPartitionTable:
    deltalake.DeltaTable(url).optimize.compact()
    return led(storage.open_partition(PARTITION, topic_id="id"))


def go_on(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> DeltaPartitionTable:
    return table


AFTER: list[Callable[[DeltaPartitionTable, DeltaStorage, str], DeltaPartitionTable]] = [
    go_on,
    reopen,
    reopen_from_checkpoint,
    optimize,
]


def check_match(match: ProducerMatch, batch: RecordBatch, offsets: list[int]) -> None:
    """`offsets` are found, and what is missing are the other records, whole and in their order."""
    assert list(match.offsets) == offsets
    left = [at for at, offset in enumerate(offsets) if offset < 0]
    if not left:
        assert match.missing is None
        return
    assert match.missing is not None
    assert match.missing.record_count == len(left)
    assert sequences_of(match.missing).tolist() == sequences_of(batch)[left].tolist()
    assert match.missing.columns.column("value").to_pylist() == [
        batch.columns.column("value")[at].as_py() for at in left
    ]


# ------------------------------------------------------------------ what is there and what is not


@pytest.mark.parametrize("after", AFTER)
def test_a_batch_sent_again_is_found_where_it_is(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str, after: Callable[..., DeltaPartitionTable]
) -> None:
    append(table, records(None, 3))
    append(table, stamped(7, 0, 5), stamped(8, 100, 4))
    append(table, stamped(8, 104, 2), stamped(7, 5, 1), records(None, 2), stamped(7, 6, 2))
    append(table, stamped(7, 0, 3, epoch=1))
    table = after(table, storage, url)
    for batch, offsets in [
        (stamped(7, 0, 5), [3, 4, 5, 6, 7]),
        (stamped(8, 100, 6), [8, 9, 10, 11, 12, 13]),
        (stamped(7, 3, 5), [6, 7, 14, 17, 18]),
        (stamped(7, 0, 3, epoch=1), [19, 20, 21]),
        (stamped(7, 6, 4), [17, 18, -1, -1]),
        (stamped(7, 2, 3, epoch=1), [21, -1, -1]),
        (stamped(7, 8, 2), [-1, -1]),
        (stamped(7, 0, 2, epoch=2), [-1, -1]),
        (stamped(9, 0, 2), [-1, -1]),
        (stamped(8, 98, 4), [-1, -1, 8, 9]),
    ]:
        check_match(table.producers.match(batch), batch, offsets)


def test_a_batch_of_which_all_is_missing_is_handed_back_as_it_is(table: DeltaPartitionTable) -> None:
    batch = stamped(7, 0, 5)
    assert table.producers.match(batch).missing is batch


@pytest.mark.parametrize("after", AFTER)
def test_sequences_that_wrap_are_found(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str, after: Callable[..., DeltaPartitionTable]
) -> None:
    last = SEQUENCE_MODULUS - 1
    append(table, stamped(7, last - 4, 3))
    append(table, stamped(7, last - 1, 4), stamped(8, 0, 10))
    table = after(table, storage, url)
    for batch, offsets in [
        (stamped(7, last - 1, 4), [3, 4, 5, 6]),
        (stamped(7, last, 2), [4, 5]),
        (stamped(7, 1, 3), [6, -1, -1]),
        (stamped(7, last - 6, 10), [-1, -1, 0, 1, 2, 3, 4, 5, 6, -1]),
    ]:
        check_match(table.producers.match(batch), batch, offsets)
    assert table.producers.find_last_sequence(7) == ProducerProgress(7, 0, 1)


def test_what_is_missing_says_of_itself_what_is_true_and_completes_the_merge(
    table: DeltaPartitionTable, storage: DeltaStorage
) -> None:
    append(table, stamped(7, 2, 2))
    sent = replace(
        records(None, 6, timestamps_us=[6000, 9000, 9000, 9000, 2000, 7000]), producer=ProducerStamp(7, 0, 0)
    )
    missing = table.producers.match(sent).missing
    assert missing is not None
    assert missing.columns.column("sequence").type == pa.int32()
    assert missing.columns.column("sequence").to_pylist() == [0, 1, 4, 5]
    assert (missing.timestamp_min_ms, missing.timestamp_max_ms) == (2, 9)
    assert missing.size_bytes == missing.columns.nbytes < sent.size_bytes + 16
    append(table, missing, stamped(9, 0, 1))
    for opened in (table, led(storage.open_partition(PARTITION, topic_id="id"))):
        assert list(opened.producers.match(sent).offsets) == [2, 3, 0, 1, 4, 5]
        assert opened.producers.match(sent).missing is None


def test_a_batch_that_was_completed_once_may_be_matched_again(table: DeltaPartitionTable) -> None:
    append(table, stamped(7, 2, 2))
    missing = table.producers.match(stamped(7, 0, 6)).missing
    assert missing is not None
    append(table, stamped(7, 4, 1))
    check_match(table.producers.match(missing), missing, [-1, -1, 2, -1])


# ------------------------------------------------------------------ where a producer ended


@pytest.mark.parametrize("after", AFTER)
def test_the_last_row_of_the_highest_epoch_is_where_a_producer_ended(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str, after: Callable[..., DeltaPartitionTable]
) -> None:
    append(table, stamped(7, 0, 50), stamped(8, 5, 1))
    append(table, stamped(7, 0, 3, epoch=1), stamped(8, 6, 2, epoch=3))
    append(table, records(None, 4))
    table = after(table, storage, url)
    assert table.producers.find_last_sequence(7) == ProducerProgress(7, 1, 2)
    assert table.producers.find_last_sequence(8) == ProducerProgress(8, 3, 7)
    assert table.producers.find_last_sequence(9) is None


def test_progress_has_the_time_of_its_commit_also_out_of_a_checkpoint(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str
) -> None:
    append(table, stamped(7, 0, 5), now_ms=1_000)
    append(table, stamped(8, 0, 5), now_ms=2_000)
    append(table, stamped(7, 5, 1), now_ms=3_000)
    expected = {7: ProducerProgress(7, 0, 5, updated_ms=3_000), 8: ProducerProgress(8, 0, 4, updated_ms=2_000)}
    assert table.producers.progress == expected
    assert reopen(table, storage, url).producers.progress == expected
    assert reopen_from_checkpoint(table, storage, url).producers.progress == expected


def test_idle_producers_are_forgotten_and_come_back_with_the_log(
    table: DeltaPartitionTable, storage: DeltaStorage
) -> None:
    for at, producer_id in enumerate((3, 9, 5)):
        append(table, stamped(producer_id, 0, 2), now_ms=1_000 + at)
    assert table.producers.forget(updated_before_ms=1_000) == -1
    assert table.producers.forget(updated_before_ms=1_002) == 9
    assert set(table.producers.progress) == {5}
    assert table.producers.forget(updated_before_ms=0) == 9  # once forgotten, for ever
    assert table.producers.find_last_sequence(9) == ProducerProgress(9, 0, 1)
    opened = led(storage.open_partition(PARTITION, topic_id="id"))
    assert set(opened.producers.progress) == {3, 5, 9}
    assert opened.producers.forget(updated_before_ms=1_001) == 3
    assert opened.producers.forget(updated_before_ms=1_002) == 9
    table.reload()
    assert set(table.producers.progress) == {3, 5, 9}
    assert table.producers.forget(updated_before_ms=0) == 9


def checkpointed_producers(url: str, version: int) -> set[str]:
    table = pq.read_table(f"{url}/_delta_log/{version:020d}.checkpoint.parquet", columns=["txn"])
    return {txn["appId"] for txn in table.column("txn").to_pylist() if txn is not None}


OWN_TXNS = {"bus/high_watermark", "bus/leader_epoch", "bus/forgotten"}


def test_producers_that_were_idle_for_too_long_leave_the_checkpoints_and_their_rows_still_tell(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str
) -> None:
    """A million short-lived producers are not in every opening."""
    for producer_id in range(20):
        append(table, stamped(producer_id, 0, 3), now_ms=1_000 + producer_id)
    assert table.producers.forget(updated_before_ms=1_018) == 17
    append(table, stamped(50, 0, 1), now_ms=2_000)
    table.cleanup.write_checkpoint()
    assert checkpointed_producers(url, table.state.version) == OWN_TXNS | {"bus/18", "bus/19", "bus/50"}
    for _ in range(2):  # from this process's checkpoint, and from one that was made of that
        opened = led(storage.open_partition(PARTITION, topic_id="id"))
        assert set(opened.producers.progress) == {18, 19, 50}
        assert opened.producers.forget(updated_before_ms=0) == 17  # a lower id that is unknown may be back
        assert opened.producers.find_last_sequence(4) == ProducerProgress(4, 0, 2)
        check_match(opened.producers.match(stamped(4, 0, 3)), stamped(4, 0, 3), [12, 13, 14])
        append(opened, stamped(50, opened.producers.progress[50].last_sequence + 1, 1), now_ms=3_000)
        opened.cleanup.write_checkpoint()
    store = LocalStore(url.removesuffix(f"/{partition_folder(PARTITION)}"))
    assert verify_partition(store, PARTITION, topic_id="id").breaches == []


def test_a_forgotten_producer_that_is_back_is_named_again(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str
) -> None:
    append(table, stamped(3, 0, 2), now_ms=1_000)
    append(table, stamped(4, 0, 2), now_ms=1_000)
    table.producers.forget(updated_before_ms=1_001)
    append(table, stamped(3, 2, 1), now_ms=5_000)
    table.cleanup.write_checkpoint()
    assert checkpointed_producers(url, table.state.version) == OWN_TXNS | {"bus/3"}
    opened = led(storage.open_partition(PARTITION, topic_id="id"))
    assert opened.producers.progress[3].last_sequence == 2
    assert opened.producers.forget(updated_before_ms=0) == 4


def test_no_checkpoint_leaves_a_producer_out_before_the_log_says_that_it_was_forgotten(
    table: DeltaPartitionTable, url: str
) -> None:
    append(table, stamped(3, 0, 2), now_ms=1_000)
    table.producers.forget(updated_before_ms=1_001)
    table.cleanup.write_checkpoint()
    assert "bus/3" in checkpointed_producers(url, table.state.version)


def test_a_root_of_an_earlier_bus_forgets_too(table: DeltaPartitionTable, storage: DeltaStorage, url: str) -> None:
    """Its checkpoint names every producer there ever was, and says of none that it was forgotten."""
    for producer_id in range(5):
        append(table, stamped(producer_id, 0, 1), now_ms=1_000)
    table.cleanup.write_checkpoint()
    opened = led(storage.open_partition(PARTITION, topic_id="id"))
    assert len(opened.producers.progress) == 5
    opened.producers.forget(updated_before_ms=2_000)
    append(opened, stamped(9, 0, 1), now_ms=3_000)
    opened.cleanup.write_checkpoint()
    assert checkpointed_producers(url, opened.state.version) == OWN_TXNS | {"bus/9"}


def test_a_producer_that_another_engine_brought_without_a_txn_counts_as_forgotten(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str
) -> None:
    append(table, stamped(3, 0, 2))
    rows = complete_columns(placed(stamped(12, 0, 4), 2))
    deltalake.write_deltalake(url, pa.Table.from_batches([rows]), mode="append")
    opened = led(storage.open_partition(PARTITION, topic_id="id"))
    assert set(opened.producers.progress) == {3}
    assert opened.producers.forget(updated_before_ms=0) == 12
    check_match(opened.producers.match(stamped(12, 2, 4)), stamped(12, 2, 4), [4, 5, -1, -1])
    assert opened.producers.find_last_sequence(12) == ProducerProgress(12, 0, 3)


# ------------------------------------------------------------------ which files are opened


def opened_files(store: ScriptedStore, question: Callable[[], object]) -> int:
    store.calls.clear()
    question()
    return store.calls.count("size")  # once for each footer


def filled(store: ScriptedStore) -> DeltaPartitionTable:
    """Fifty files, each with a run of four producers out of a hundred."""
    table = led(open_storage_on(store, exclusive=False).create_partition(PARTITION, topic_id="id"))  # type: ignore[arg-type]
    for commit in range(50):
        append(table, *(stamped((commit * 4 + at) % 100, commit // 25 * 5, 5) for at in (0, 3, 1, 2)))
    return table


def test_only_the_files_that_hold_the_records_are_opened() -> None:
    store = ScriptedStore(MemoryStore())
    filled(store)
    table = led(open_storage_on(store, exclusive=False).open_partition(PARTITION, topic_id="id"))  # type: ignore[arg-type]
    assert opened_files(store, lambda: table.producers.match(stamped(42, 10, 100))) == 0
    assert opened_files(store, lambda: table.producers.match(stamped(100, 0, 5))) == 0
    assert opened_files(store, lambda: table.producers.match(stamped(42, 0, 5, epoch=1))) == 0
    assert opened_files(store, lambda: table.producers.match(stamped(42, 5, 5))) == 1
    assert opened_files(store, lambda: table.producers.match(stamped(61, 0, 10))) == 2
    assert opened_files(store, lambda: table.producers.find_last_sequence(50)) == 1
    assert opened_files(store, lambda: table.producers.find_last_sequence(100)) == 0


def test_the_newest_files_are_opened_first_and_no_more_once_all_is_found() -> None:
    """A file of more producers than it has spans for: two share one, and its sequences fit those of other files."""
    store = ScriptedStore(MemoryStore())
    table = led(open_storage_on(store).create_partition(PARTITION, topic_id="id"))  # type: ignore[arg-type]
    for commit in range(20):
        append(table, *(stamped(producer_id, 10 * producer_id + commit, 1) for producer_id in range(0, 200, 2)))
    newest, absent, oldest = (stamped(100, 1000 + at, 1) for at in (19, 20, 0))
    assert opened_files(store, lambda: check_match(table.producers.match(newest), newest, [1950])) == 1
    assert opened_files(store, lambda: check_match(table.producers.match(absent), absent, [-1])) > 1
    check_match(table.producers.match(oldest), oldest, [50])
    assert table.producers.find_last_sequence(100) == ProducerProgress(100, 0, 1019)
    assert table.producers.find_last_sequence(101) is None


def test_a_producer_ended_in_a_newer_file_than_that_of_another_engine(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str
) -> None:
    """The statistics of that file do not tell the epochs, so it is asked first."""
    for base in (0, 5, 10):
        append(table, stamped(7, base, 5))
    table = optimize(table, storage, url)
    assert table.state.file_count == 1
    append(table, stamped(7, 15, 1))
    assert table.producers.find_last_sequence(7) == ProducerProgress(7, 0, 15)
    append(table, stamped(7, 0, 1, epoch=1))
    append(table, stamped(8, 0, 1))
    assert table.producers.find_last_sequence(7) == ProducerProgress(7, 1, 0)


def test_files_without_spans_are_told_apart_by_their_statistics(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str
) -> None:
    """Tags from before there were producers have six numbers."""
    append(table, records(None, 2))
    append(table, stamped(7, 0, 5))
    for version in (1, 2):
        path = Path(url, "_delta_log", f"{version:020d}.json")
        lines = without_sum(path.read_bytes()).decode().splitlines(keepends=True)
        tag = json.loads(lines[-1])["add"]["tags"]["bus.file"]
        path.write_text("".join(lines).replace(tag, " ".join(tag.split()[:6])))
    for opened in (reopen(table, storage, url), reopen_from_checkpoint(table, storage, url)):
        files = opened.log.view.files
        assert [file.producers for file in files] == ["", "7 0 0 32767 0 4"]
        check_match(opened.producers.match(stamped(7, 3, 4)), stamped(7, 3, 4), [5, 6, -1, -1])
        assert opened.producers.find_last_sequence(7) == ProducerProgress(7, 0, 4)


def test_row_groups_are_skipped_by_their_statistics() -> None:
    """A file that another engine made of many: one span, but row groups that tell more."""
    store = ScriptedStore(MemoryStore())
    table = led(open_storage_on(store).create_partition(PARTITION, topic_id="id"))  # type: ignore[arg-type]
    large = [records(ProducerStamp(7, 0, at * 2000), 2000) for at in range(3)]
    large = [
        replace(batch, size_bytes=8 << 20, columns=batch.columns.set_column(0, "value", pa.array([bytes(4000)] * 2000)))
        for batch in large
    ]
    append(table, *large)
    file = table.log.view.files[0]
    sizes = []
    for sequence in (5990, 0):
        rows = list(
            table.log.data.read_columns(
                file,
                ["offset", "sequence"],
                lambda statistics, wanted=sequence: (
                    statistics["sequence"].min_raw <= wanted <= statistics["sequence"].max_raw
                ),
            )
        )
        assert len(rows) == 1
        assert sequence in rows[0].column("sequence").to_pylist()
        sizes.append(rows[0].num_rows)
    assert max(sizes) < 3000
    check_match(table.producers.match(stamped(7, 5998, 4)), stamped(7, 5998, 4), [5998, 5999, -1, -1])


def test_rows_that_another_engine_shuffled_are_found(
    table: DeltaPartitionTable, storage: DeltaStorage, url: str
) -> None:
    append(table, stamped(7, 0, 5), stamped(8, 0, 5))
    append(table, stamped(7, 5, 5))
    before = deltalake.DeltaTable(url).to_pyarrow_table()
    shuffled = before.take(np.random.default_rng(7).permutation(before.num_rows))
    name = "rewritten.parquet"
    pq.write_table(shuffled, Path(url, name))
    version = Path(url, "_delta_log", f"{3:020d}.json")
    removed = [file["path"] for file in pa.table(deltalake.DeltaTable(url).get_add_actions()).to_pylist()]
    actions = [
        {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "another"}},
        *({"remove": {"path": path, "dataChange": False, "deletionTimestamp": 1}} for path in removed),
        {
            "add": {
                "path": name,
                "partitionValues": {},
                "size": Path(url, name).stat().st_size,
                "modificationTime": 1,
                "dataChange": False,
            }
        },
    ]
    version.write_text("".join(json.dumps(action) + "\n" for action in actions))
    opened = led(storage.open_partition(PARTITION, topic_id="id"))
    check_match(opened.producers.match(stamped(7, 3, 8)), stamped(7, 3, 8), [3, 4, 10, 11, 12, 13, 14, -1])
    assert opened.producers.find_last_sequence(8) == ProducerProgress(8, 0, 4)
    assert opened.producers.forget(updated_before_ms=0) == 2**63 - 1  # nothing tells who else may be in there


# ------------------------------------------------------------------ the verification


@pytest.mark.parametrize("after", AFTER)
def test_producers_that_keep_to_the_rules_are_no_breach(
    table: DeltaPartitionTable,
    storage: DeltaStorage,
    url: str,
    tmp_path: Path,
    after: Callable[..., DeltaPartitionTable],
) -> None:
    """Interleaved, wrapping, with epochs that begin anew and epochs that go on, also where the front was retired."""
    last = SEQUENCE_MODULUS - 1
    append(table, stamped(7, 0, 5), records(None, 2), stamped(8, 100, 4))
    append(table, stamped(8, 104, 2), stamped(7, 5, 1), stamped(9, last - 1, 4), stamped(7, 6, 2))
    append(table, stamped(7, 0, 3, epoch=1), stamped(8, 106, 3, epoch=4))
    append(table, stamped(9, 2, 3), stamped(7, 3, 3, epoch=1))
    after(table, storage, url)
    store = LocalStore(str(tmp_path))
    assert verify_partition(store, PARTITION, topic_id="id").breaches == []
    if after is go_on:
        oldest = table.rewrites.files[0]
        assert isinstance(table.cleanup.advance_log_start(oldest.next_offset, leader_epoch=1, now_ms=NOW_MS), Committed)
        assert verify_partition(store, PARTITION, topic_id="id").breaches == []


# ------------------------------------------------------------------ against a naive model


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_matching_agrees_with_a_merge_over_all_rows(data: st.DataObject) -> None:
    """Producers send in order, most go on, some begin a new epoch; then anything is asked for."""
    storage = open_storage_on(MemoryStore(), exclusive=False)
    table = led(storage.create_partition(PARTITION, topic_id="id"))
    rows: dict[Row, int] = {}
    ends: dict[int, tuple[int, int]] = {}  # producer id -> epoch, next sequence
    start = st.sampled_from([0, SEQUENCE_MODULUS - 3])
    for _ in range(data.draw(st.integers(1, 6))):
        commit = []
        offset = table.state.high_watermark
        for producer_id in data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5)):
            epoch, base = ends.get(producer_id) or (0, data.draw(start))
            if data.draw(st.integers(0, 4)) == 0:
                epoch, base = epoch + 1, data.draw(st.sampled_from([0, base]))
            count = data.draw(st.integers(1, 5))
            commit.append(stamped(producer_id, base, count, epoch=epoch))
            for at in range(count):
                rows[producer_id, epoch, (base + at) % SEQUENCE_MODULUS] = offset + at
            offset += count
            ends[producer_id] = epoch, (base + count) % SEQUENCE_MODULUS
        append(table, *commit)
    for opened in (table, led(storage.open_partition(PARTITION, topic_id="id"))):
        for _ in range(6):
            producer_id, epoch = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3))
            base = data.draw(st.one_of(st.integers(0, 12), st.integers(SEQUENCE_MODULUS - 6, SEQUENCE_MODULUS - 1)))
            batch = stamped(producer_id, base, data.draw(st.integers(1, 12)), epoch=epoch)
            expected = [rows.get((producer_id, epoch, sequence), -1) for sequence in sequences_of(batch).tolist()]
            check_match(opened.producers.match(batch), batch, expected)
        for producer_id in range(5):
            of_producer = [(epoch, offset, seq) for (who, epoch, seq), offset in rows.items() if who == producer_id]
            last = max(of_producer, default=None)
            expected_last = None if last is None else ProducerProgress(producer_id, last[0], last[2])
            assert opened.producers.find_last_sequence(producer_id) == expected_last
