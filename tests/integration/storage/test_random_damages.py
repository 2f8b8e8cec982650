"""Several faults of a disk at once, as a seed decides: what a repair keeps is read whole by every reader, and only what
is torn goes. BUS_SEED and BUS_SEEDS play others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.storage_delta.repair.plan import RepairReport
from bus.storage_delta.repair.repair import repair_partition
from bus.storage_delta.stores.local import LocalStore
from tests.integration.storage.test_single_damages import Reopened, repair, verify
from tests.support.log_root import COUNT, PARTITION, TOPIC_ID, LogRoot
from tests.support.memory_store import MemoryStore
from tests.support.seeds import seeds
from tests.support.single_damages import LOG, SHAPES, files_of, healthy, store_of
from tests.support.stores import NOW_MS
from tests.support.table_bench import FOLDER

# The first is one after which delta-rs could not read what had been kept: a bit of a footer had changed.
_Files = dict[str, bytes]


def truncate(chance: random.Random, files: _Files, key: str) -> None:
    files[key] = files[key][: chance.randrange(len(files[key]) or 1)]


def flip(chance: random.Random, files: _Files, key: str, size: int | None = None) -> None:
    """Bits of the last `size` bytes, or of all."""
    data = bytearray(files[key])
    for _ in range(chance.choice((1, 1, 2, 5)) if data else 0):
        data[-1 - chance.randrange(min(size or len(data), len(data)))] ^= 1 << chance.randrange(8)
    files[key] = bytes(data)


def flip_footer(chance: random.Random, files: _Files, key: str) -> None:
    flip(chance, files, key, int.from_bytes(files[key][-8:-4], "little") + 8)


def lose(chance: random.Random, files: _Files, key: str) -> None:
    del files[key]


def zero(chance: random.Random, files: _Files, key: str) -> None:
    data = files[key]
    at = chance.randrange(len(data) or 1)
    files[key] = data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]


def grow(chance: random.Random, files: _Files, key: str) -> None:
    files[key] += chance.randbytes(chance.choice((1, 8, 100)))


def swap(chance: random.Random, files: _Files, key: str) -> None:
    other = chance.choice(sorted(other for other in files if _kind(other) == _kind(key)))
    files[key], files[other] = files[other], files[key]


def _kind(key: str) -> tuple[bool, str]:
    return key.startswith(LOG), key.rsplit(".", 1)[-1]


FAULTS: Sequence[Callable[[random.Random, _Files, str], None]] = (
    truncate,
    flip,
    flip_footer,
    flip_footer,
    lose,
    zero,
    grow,
    swap,
    swap,
)


def damage(chance: random.Random, files: _Files) -> list[str]:
    done = []
    for _ in range(chance.choice((1, 2, 3, 3, 4, 5))):
        fault = chance.choice(FAULTS)
        keys = sorted(key for key in files if fault is not flip_footer or len(files[key]) > 8)
        if fault is truncate and chance.random() < 0.5:
            keys = [max(key for key in keys if key.endswith(".json"))] if any(".json" in key for key in keys) else keys
        if not keys:
            continue
        key = chance.choice(keys)
        done.append(f"{fault.__name__} {key}")
        fault(chance, files, key)
    return done


def read_by_others(store: MemoryStore, root: Path) -> tuple[list[int], list[int]]:
    """Offsets of the live table by delta-rs and by its files alone; every column of every file is decoded."""
    for folder in (FOLDER, LOG):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for entry in store.list(folder).files:
            (root / folder / entry.name).write_bytes(bytes(store.get(f"{folder}/{entry.name}")))
    table = deltalake.DeltaTable(str(root / FOLDER))
    query = deltalake.QueryBuilder().register("log", table).execute("SELECT * FROM log").read_all()
    by_files = [pq.read_table(path).column("offset").to_pylist() for path in table.file_uris()]
    return sorted(pa.table(query).column("offset").to_pylist()), sorted(chain.from_iterable(by_files))


@pytest.mark.parametrize("seed", seeds(5, first=20))
def test_what_a_repair_keeps_of_random_damages_is_read_whole_by_every_reader(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    bench = healthy(chance.choice(list(SHAPES)))
    files = files_of(bench)
    done = damage(chance, files)
    store = store_of(bench, files)
    report = repair(store, is_rehearsal=False)
    if report.error is not None:
        assert report.error.endswith("nothing was changed"), (done, report)
        return
    assert verify(store).breaches == [], done
    mended = Reopened(store)
    start = mended.table.state.log_start
    offsets = [row[0] for row in mended.rows(start)]
    for found in read_by_others(store, tmp_path):
        assert [offset for offset in found if offset >= start] == offsets, done
    assert repair(store, is_rehearsal=False).steps == [], done


def test_a_file_of_other_bytes_than_were_written_is_written_anew_from_its_rows() -> None:
    """Arrow reads it, but it goes by other fields of a footer than another reader does."""
    bench = healthy("plain")
    path = bench.table.log.view.live_files[1].path
    files, key = files_of(bench), f"{FOLDER}/{path}"
    files[key] = files[key].replace(b"parquet-cpp-arrow", b"parquet-cpp-arroW")
    store = store_of(bench, files)
    before = Reopened(store_of(bench, files_of(bench)))
    report = repair(store, is_rehearsal=False)
    assert report.error is None
    assert ("quarantine", path) in [(step.action, step.subject) for step in report.steps]
    mended = Reopened(store)
    assert path not in [file.path for file in mended.table.log.view.live_files]
    assert (mended.rows(), mended.progress) == (before.rows(), before.progress)
    assert verify(store).breaches == []
    assert repair(store, is_rehearsal=False).steps == []


def mend(log: LogRoot) -> RepairReport:
    store = LocalStore(str(log.root))
    return repair_partition(store, PARTITION, topic_id=TOPIC_ID, now_ms=NOW_MS, is_rehearsal=False)


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    """Versions 0 to 8, checkpoints of 2, 4 and 6."""
    log = LogRoot(tmp_path / "root")
    for _ in range(3):
        log.append(2)
        log.table.cleanup.write_checkpoint()
    log.append(2)
    return log


def checkpoint(log: LogRoot, version: int) -> Path:
    return log.log / f"{version:020d}.checkpoint.parquet"


@pytest.mark.parametrize("torn", [2, 4])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_an_older_checkpoint_that_is_torn_or_untrue_goes_alone(log: LogRoot, torn: int, is_swapped: bool) -> None:
    if is_swapped:
        checkpoint(log, torn).write_bytes(checkpoint(log, 6).read_bytes())
    else:
        checkpoint(log, torn).write_bytes(checkpoint(log, torn).read_bytes()[:-100])
    report = mend(log)
    name = f"_delta_log/{torn:020d}.checkpoint.parquet"
    assert [(step.action, step.subject) for step in report.steps] == [("quarantine", name)]
    assert report.error is None
    assert log.verify().breaches == []
    for version in range(9):
        offsets = deltalake.DeltaTable(str(log.folder), version=version).to_pyarrow_table().column("offset")
        assert len(offsets) == version * COUNT
    assert mend(log).steps == []


def test_a_torn_older_version_costs_the_versions_before_the_next_checkpoint_alone(log: LogRoot) -> None:
    (log.log / f"{3:020d}.json").write_bytes(b"{")
    report = mend(log)
    assert report.error is None
    assert log.verify().breaches == []
    kept = sorted(path.name for path in log.log.iterdir() if path.name[:20].isdigit())
    versions = [f"{version:020d}.json" for version in range(4, 9)]
    assert kept == sorted([*versions, checkpoint(log, 4).name, checkpoint(log, 6).name])
    for version in range(4, 9):
        assert deltalake.DeltaTable(str(log.folder), version=version).version() == version
    log.open()
    assert log.values() == [b"%d" % offset for offset in range(8 * COUNT)]
    assert mend(log).steps == []


def test_versions_that_nothing_leads_to_go_with_the_first_one(log: LogRoot) -> None:
    (log.log / f"{0:020d}.json").unlink()
    report = mend(log)
    assert [(step.action, step.subject) for step in report.steps] == [("quarantine", f"_delta_log/{1:020d}.json")]
    for version in range(2, 9):
        assert deltalake.DeltaTable(str(log.folder), version=version).version() == version
    assert log.verify().breaches == []
    assert mend(log).steps == []
