"""One file of a table is lost, cut, emptied, overwritten, renamed, copied or swapped with its neighbour: it is found,
and repairing gives back every record that can still be read, or changes nothing and says why."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.errors import StorageDamaged
from bus.storage_delta.files import data_files
from bus.storage_delta.repair.plan import RepairReport
from bus.storage_delta.repair.repair import repair_partition
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.verify.verification import Report, verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.single_damages import LOG, SHAPES, Damage, files_of, healthy, single_damages, store_of
from tests.support.stores import led
from tests.support.table_bench import FOLDER, NAME, Row, TableBench
from tests.support.version_files import without_sum

NOW_MS = 1_700_000_000_000
# Each damage of each shape is hundreds: every so many of them are tried here. All are tried with a step of one.
STEP = 23


class Reopened(TableBench):
    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.storage = open_storage_on(store, exclusive=False)
        self.table = led(self.storage.open_partition(NAME, topic_id="id"))
        self.now_ms = NOW_MS

    @property
    def progress(self) -> dict[int, tuple[int, int]]:
        told = self.table.producers.progress
        return {producer: (one.producer_epoch, one.last_sequence) for producer, one in told.items()}


def verify(store: MemoryStore) -> Report:
    return verify_partition(store, NAME, topic_id="id")


def repair(store: MemoryStore, *, is_rehearsal: bool) -> RepairReport:
    return repair_partition(store, NAME, topic_id="id", now_ms=NOW_MS, is_rehearsal=is_rehearsal)


def told(report: RepairReport) -> list[tuple[str, str]]:
    return [(step.action, step.subject) for step in report.steps]


def content(store: MemoryStore) -> dict[str, bytes]:
    return {
        f"{folder}/{entry.name}": bytes(store.get(f"{folder}/{entry.name}"))
        for folder in (FOLDER, LOG)
        for entry in store.list(folder).files
    }


def may_cost_records(damage: Damage) -> bool:
    """True if the bytes of a data file have changed or are gone."""
    is_moved = any(word in damage.name for word in ("rename", "swap", "copy"))
    return not is_moved and any(key.endswith(".parquet") and LOG not in key for key in damage.keys)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_single_damage_is_found_and_mended_with_the_least_loss(shape: str) -> None:
    bench = healthy(shape)
    sound = Reopened(store_of(bench, files_of(bench)))
    rows, progress, end = sound.rows(), sound.progress, sound.table.state.high_watermark
    damages = list(single_damages(files_of(bench)))
    for damage in damages[len(shape) % STEP :: STEP]:
        store = store_of(bench, damage.files)
        report = verify(store)
        if not report.breaches and not any("behind the end of the log" in note for note in report.notes):
            harmless = Reopened(store_of(bench, damage.files))
            assert (harmless.rows(), harmless.progress) == (rows, progress), damage.name
        check_mended(store, damage, rows, progress, end)


def check_mended(
    store: MemoryStore, damage: Damage, rows: list[Row], progress: dict[int, tuple[int, int]], end: int
) -> None:
    before = content(store)
    rehearsed = repair(store, is_rehearsal=True)
    assert content(store) == before, damage.name
    done = repair(store, is_rehearsal=False)
    assert (told(done), done.error) == (told(rehearsed), None), damage.name
    mended = Reopened(store)
    assert verify(store).breaches == [], damage.name
    found = mended.rows()
    # What compaction took may come back with the files that it read, which are kept for a while.
    assert all(row == (row[0], b"key %d" % (row[0] % 4), b"value %d" % row[0]) for row in found), damage.name
    missing = {row[0] for row in set(rows) - set(found)}
    given_up = {
        offset
        for step in done.steps
        if step.action == "give up"
        for offset in range(step.first_offset, step.last_offset + 1)
    }
    assert missing <= given_up, damage.name
    assert not missing or may_cost_records(damage), damage.name
    assert mended.table.state.high_watermark == end, damage.name
    assert all(mended.progress[producer] >= ended for producer, ended in progress.items()), damage.name
    assert repair(store, is_rehearsal=False).steps == [], damage.name


def test_a_repair_that_cannot_be_proved_is_not_executed() -> None:
    bench = healthy("plain")
    key = f"{LOG}/{0:020d}.json"
    other = without_sum(files_of(bench)[key]).replace(b'"bus.topic_id":"id"', b'"bus.topic_id":"other"')
    files = {**files_of(bench), key: other}
    store = store_of(bench, files)
    report = repair(store, is_rehearsal=False)
    assert "expected the table of topic id id, found other" in str(report.error)
    assert "nothing was changed" in str(report.error)
    assert content(store) == files


def test_the_end_of_the_log_is_told_and_comes_back() -> None:
    bench = healthy("plain")
    files = {key: data for key, data in files_of(bench).items() if key != f"{LOG}/{3:020d}.json"}
    store = store_of(bench, files)
    assert any("behind the end of the log, 6" in note for note in verify(store).notes)
    report = repair(store, is_rehearsal=False)
    assert any(step.action == "find" and "behind the end of the log" in step.detail for step in report.steps)
    mended = Reopened(store)
    assert [row[0] for row in mended.rows()] == list(range(9))
    assert mended.progress == {7: (0, 5), 8: (0, 2)}


@pytest.mark.parametrize("lost_files", [[0], [0, 1]])
def test_first_files_that_are_lost_with_the_version_of_the_first_are_given_up(lost_files: list[int]) -> None:
    """No version tells any more that the log began before the files that are left."""
    bench = healthy("plain")
    files, paths = files_of(bench), [file.path for file in bench.table.log.view.live_files]
    files[f"{LOG}/{1:020d}.json"] = b""
    for number in lost_files:
        del files[f"{FOLDER}/{paths[number]}"]
    store = store_of(bench, files)
    report = repair(store, is_rehearsal=False)
    assert report.error is None
    given_up = [step for step in report.steps if step.action == "give up"]
    lost = range(3 * len(lost_files))
    assert [n for step in given_up for n in range(step.first_offset, step.last_offset + 1)] == list(lost)
    mended = Reopened(store)
    assert [row[0] for row in mended.rows()] == [offset for offset in range(9) if offset not in lost]
    assert mended.table.state.high_watermark == 9
    assert verify(store).breaches == []
    assert repair(store, is_rehearsal=False).steps == []


@pytest.mark.parametrize("is_version_there", [False, True])
def test_an_end_of_which_version_and_file_are_damaged_is_told_by_its_first_offset(is_version_there: bool) -> None:
    bench = healthy("plain")
    files = files_of(bench)
    version = f"{LOG}/{3:020d}.json"
    last = next(key for key in files if key.startswith(f"{FOLDER}/{6:020d}-"))
    files[last] = bytes(len(files[last]))
    if is_version_there:
        files[version] = b""
    else:
        del files[version]
    store = store_of(bench, files)
    report = repair(store, is_rehearsal=False)
    assert any(step.action == "find" and "records from offset 6 on are lost" in step.detail for step in report.steps)
    assert ("quarantine", last.rsplit("/", 1)[1]) in told(report)
    assert [row[0] for row in Reopened(store).rows()] == list(range(6))
    assert repair(store, is_rehearsal=False).steps == []


@pytest.mark.parametrize("is_file_lost", [False, True])
def test_a_version_that_changed_places_with_that_of_the_checkpoint_is_found_and_its_records_are_told(
    is_file_lost: bool,
) -> None:
    """The checkpoint hides the append, and what retention removed then removes nothing: the log looked whole."""
    bench = healthy("retired")
    files = files_of(bench)
    removal, append = f"{LOG}/{6:020d}.json", f"{LOG}/{7:020d}.json"
    files[removal], files[append] = files[append], files[removal]
    last = next(key for key in files if key.startswith(f"{FOLDER}/{15:020d}-"))
    if is_file_lost:
        files[last] = bytes(len(files[last]))
    store = store_of(bench, files)
    with pytest.raises(StorageDamaged, match=r"0007\.json: DELETE .* which was not there"):
        Reopened(store)
    report = repair(store, is_rehearsal=False)
    given_up = [(step.first_offset, step.last_offset) for step in report.steps if step.action == "give up"]
    assert (report.error, given_up) == (None, [(15, 17)] if is_file_lost else [])
    mended = Reopened(store)
    assert [row[0] for row in mended.rows(7)] == list(range(7, 15 if is_file_lost else 18))
    assert (mended.table.state.high_watermark, mended.progress) == (18, {7: (0, 8), 8: (0, 8)})
    assert verify(store).breaches == []
    assert repair(store, is_rehearsal=False).steps == []


def test_a_producer_whose_versions_were_lost_appends_nothing_twice() -> None:
    bench = healthy("plain")
    files = files_of(bench)
    store = store_of(bench, {**files, f"{LOG}/{2:020d}.json": files[f"{LOG}/{2:020d}.json"][:100]})
    assert repair(store, is_rehearsal=False).error is None
    mended = Reopened(store)
    assert mended.progress == {7: (0, 5), 8: (0, 2)}
    assert mended.table.producers.find_last_sequence(8) is not None


def damage_of_column(bench: TableBench, path: str, group: int, column: str) -> bytes:
    """The file's bytes with a page of one column spoiled, its header included."""
    data = bytearray(bench.store.get(f"{FOLDER}/{path}"))
    told = pq.read_metadata(pa.BufferReader(bytes(data))).row_group(group)
    chunk = next(told.column(n) for n in range(told.num_columns) if told.column(n).path_in_schema == column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 20] = b"\xff" * 20
    return bytes(data)


@pytest.mark.parametrize("column", ["offset", "timestamp", "timestamp_type", "leader_epoch", "producer_id", "sequence"])
def test_a_damaged_column_that_the_file_tells_otherwise_costs_no_record(column: str) -> None:
    bench = healthy("plain")
    file = bench.table.log.view.live_files[1]
    sound = Reopened(store_of(bench, files_of(bench)))
    spoiled = damage_of_column(bench, file.path, 0, column)
    store = store_of(bench, {**files_of(bench), f"{FOLDER}/{file.path}": spoiled})
    report = repair(store, is_rehearsal=False)
    assert report.error is None
    assert not any(step.action == "give up" for step in report.steps), report.steps
    mended = Reopened(store)
    assert (mended.rows(), mended.progress) == (sound.rows(), sound.progress)
    assert verify(store).breaches == []
    assert repair(store, is_rehearsal=False).steps == []


def test_a_damaged_row_group_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 200)
    monkeypatch.setattr(data_files, "SMALL_ROWS_MAX", 0)  # small files have one row group
    bench = TableBench()
    bench.append(*((b"key %d" % n, b"value %d" % n) for n in range(40)))
    (file,) = bench.table.log.view.live_files
    spoiled = damage_of_column(bench, file.path, 1, "value")
    store = store_of(bench, {**files_of(bench), f"{FOLDER}/{file.path}": spoiled})
    report = repair(store, is_rehearsal=False)
    assert report.error is None
    (lost,) = [range(step.first_offset, step.last_offset + 1) for step in report.steps if step.action == "give up"]
    assert 0 < len(lost) < 20
    assert [row[0] for row in Reopened(store).rows()] == [offset for offset in range(40) if offset not in lost]
    assert verify(store).breaches == []
