"""Following changes nothing; taking the lead changes nothing before its own fence is in the log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.errors import StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.ports import Committed, Conflicted, Unknown
from bus.storage_delta.log.actions import Commit, decode_commit
from bus.storage_delta.log.listing import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    checkpoint_name,
    partition_folder,
    replaced_name,
    version_name,
)
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import TEMPORARY_PREFIX, KeyExists, OutcomeUnknown
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.stores import NOW_MS, ScriptedStore, led, log_batch

PARTITION = TopicPartition("orders", 0)
FOLDER = partition_folder(PARTITION)
LOG = f"{FOLDER}/{LOG_FOLDER}"
OPTIMIZE = b'{"commitInfo":{"operation":"OPTIMIZE","engineInfo":"Apache-Spark/4.2.0"}}\n'


class Brokers:
    """On one root; each opening is another life of a broker."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = LocalStore(str(root))
        self.store, self.old = self.open(create=True)
        led(self.old, 1)
        for value in (b"a", b"b", b"c"):
            self.append(self.old, value, epoch=1)

    def open(self, *, create: bool = False) -> tuple[ScriptedStore, DeltaPartitionTable]:
        store = ScriptedStore(LocalStore(str(self.root)))
        storage = open_storage_on(store, exclusive=False)  # type: ignore[arg-type]
        return store, (storage.create_partition if create else storage.open_partition)(PARTITION, topic_id="id")

    def append(self, table: DeltaPartitionTable, value: bytes, *, epoch: int) -> object:
        batch = log_batch(table.state.high_watermark, [value], leader_epoch=epoch)
        return table.append([batch], leader_epoch=epoch, now_ms=NOW_MS)

    def content(self) -> dict[str, tuple[int, bytes]]:
        """The content of the folder of the root: each file with its inode and its bytes."""
        paths = [path for path in sorted(self.root.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.root)): (path.stat().st_ino, path.read_bytes()) for path in paths}

    def commit(self, version: int) -> Commit:
        return decode_commit(version, self.files.get(f"{LOG}/{version_name(version)}"))

    def leave_what_a_crash_leaves(self) -> None:
        (self.root / LOG / LAST_CHECKPOINT).write_bytes(b"{}")
        leave_unfinished(self.root / LOG, hours_ago=2)
        (self.root / LOG / version_name(4)).write_bytes(b'{"commitInfo"')
        (self.root / LOG / checkpoint_name(3)).write_bytes(b"PAR1")


@pytest.fixture
def brokers(tmp_path: Path) -> Brokers:
    return Brokers(tmp_path)


def test_a_follower_changes_nothing_whatever_a_crash_has_left(brokers: Brokers) -> None:
    brokers.leave_what_a_crash_leaves()
    before = brokers.content()
    _, table = brokers.open()
    table.follow()
    assert table.state.high_watermark == 3
    assert len(table.log.read(0, end_offset=3, max_bytes=1 << 20)) == 3
    assert table.cleanup.find_orphans() == frozenset()
    with pytest.raises(StorageFault, match="found it followed"):
        table.cleanup.write_checkpoint()
    assert brokers.content() == before


def test_a_follower_leaves_a_table_of_earlier_columns_as_it_is(tmp_path: Path) -> None:
    storage = open_storage_on(LocalStore(str(tmp_path)), exclusive=False)
    metadata = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
    log = storage.open_metadata()
    path = tmp_path / partition_folder(metadata) / LOG_FOLDER / version_name(0)
    lines = [line for line in path.read_bytes().splitlines() if b"commitInfo" not in line]
    path.write_bytes(b"\n".join(lines).replace(b'"delta.deletedFileRetentionDuration"', b'"delta.other"') + b"\n")
    log = storage.open_metadata()
    assert log.state.version == 0
    assert list(log.replay()) == []
    assert led(log).state.version == 1  # its properties were set by the leader


@pytest.mark.parametrize("change", ["append", "swap", "log start"])
def test_a_table_that_is_not_led_is_not_committed_to(brokers: Brokers, change: str) -> None:
    _, table = brokers.open()
    prepared = table.rewrites.prepare_roll(
        table.rewrites.files, compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
    )
    before = brokers.content()
    changes: dict[str, Callable[[], object]] = {
        "append": lambda: brokers.append(table, b"d", epoch=9),
        "swap": lambda: table.rewrites.swap(prepared, leader_epoch=9, now_ms=NOW_MS),
        "log start": lambda: table.cleanup.advance_log_start(1, leader_epoch=9, now_ms=NOW_MS),
    }
    with pytest.raises(AssertionError, match="expected a table that is led"):
        changes[change]()
    assert brokers.content() == before


def test_nothing_is_appended_under_an_older_epoch_than_the_log_has(brokers: Brokers) -> None:
    _, table = brokers.open()
    assert isinstance(table.lead(7, NOW_MS, fence=True), Committed)
    with pytest.raises(AssertionError, match="expected a commit under leader epoch 7"):
        brokers.append(table, b"d", epoch=6)


def test_repairs_come_behind_the_fence(brokers: Brokers) -> None:
    brokers.leave_what_a_crash_leaves()
    store, table = brokers.open()
    calls: list[str] = []
    store.before_next("create", lambda: calls.extend(store.calls))
    assert table.lead(2, NOW_MS, fence=True) == Committed(4, 3)
    # What stood in the place of the fence was moved out of its way; else nothing was changed before it.
    assert [call for call in calls if call in ("put", "delete", "sync", "create", "write_unique")] == [
        "put",
        "delete",
        "create",
    ]
    fence = brokers.commit(4)
    assert (fence.operation, fence.leader_epoch, fence.adds) == ("FENCE", 2, [])
    names = {path.name for path in (brokers.root / LOG).iterdir()}
    assert f".damaged-{version_name(4)}" in names
    assert checkpoint_name(3) not in names
    assert not any(name.startswith(TEMPORARY_PREFIX) for name in names)
    assert brokers.append(table, b"d", epoch=2) == Committed(5, 4)


@pytest.mark.parametrize("now_ms", [NOW_MS, 4_000_000_000_000])
def test_unfinished_files_that_are_young_by_the_clock_of_the_store_stay(brokers: Brokers, now_ms: int) -> None:
    """Their writer may be at work. The clocks of the machines are years behind it, or ahead."""
    leave_unfinished(brokers.root / LOG, hours_ago=2)
    young = leave_unfinished(brokers.root / LOG, hours_ago=0)
    _, table = brokers.open()
    assert isinstance(table.lead(2, now_ms, fence=True), Committed)
    assert list((brokers.root / LOG).glob(f"{TEMPORARY_PREFIX}*")) == [young]


def leave_unfinished(log: Path, *, hours_ago: int) -> Path:
    path = log / f"{TEMPORARY_PREFIX}{hours_ago}-hours-old"
    path.write_bytes(b"{")
    written_s = path.stat().st_mtime - hours_ago * 3_600
    os.utime(path, (written_s, written_s))
    return path


def test_a_followed_table_is_led_without_reading_its_versions_again(brokers: Brokers) -> None:
    brokers.old.cleanup.write_checkpoint()
    store, table = brokers.open()
    for value in (b"d", b"e", b"f"):
        brokers.append(brokers.old, value, epoch=1)
    table.follow()
    calls = len(store.calls)
    assert table.lead(2, NOW_MS, fence=True) == Committed(7, 6)
    # Who led last, what the fence is to follow, the fence, who leads now, the hint, the checkpoint, the last version.
    assert store.calls[calls:].count("get") <= 8
    assert store.calls[calls:].count("sizes") == 0
    assert not {"put", "delete"} & {*store.calls[calls:]}
    assert brokers.append(table, b"g", epoch=2) == Committed(8, 7)


def test_leading_without_a_fence_adds_no_version(brokers: Brokers) -> None:
    _, table = brokers.open()
    before = brokers.content()
    assert table.lead(2, NOW_MS, fence=False) == Committed(3, 3)
    assert brokers.content() == before
    assert brokers.append(table, b"d", epoch=2) == Committed(4, 4)


@pytest.mark.parametrize("meanwhile", ["a former leader", "another engine"])
def test_a_fence_that_lost_its_place_takes_the_next(brokers: Brokers, meanwhile: str) -> None:
    store, table = brokers.open()

    def commit() -> None:
        if meanwhile == "a former leader":
            brokers.append(brokers.old, b"d", epoch=1)
        else:
            brokers.files.create(f"{LOG}/{version_name(4)}", OPTIMIZE)

    store.before_next("create", commit)
    outcome = table.lead(2, NOW_MS, fence=True)
    assert isinstance(outcome, Committed)
    assert outcome.version == 5
    assert brokers.commit(5).operation == "FENCE"
    assert table.state.high_watermark == (4 if meanwhile == "a former leader" else 3)
    brokers.append(table, b"e", epoch=2)


@pytest.mark.parametrize("epoch", [3, 2])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_lead_that_is_lost_to_another_leader_changes_nothing(brokers: Brokers, epoch: int, is_first: bool) -> None:
    """Epoch 2 is that of both: two brokers that read the same metadata."""
    store, table = brokers.open()
    _, successor = brokers.open()
    contents: list[object] = []

    def take_over() -> None:
        assert isinstance(successor.lead(epoch, NOW_MS, fence=True), Committed)
        contents.append(brokers.content())

    if is_first:
        take_over()
    else:
        store.before_next("create", take_over)
    outcome = table.lead(2, NOW_MS, fence=True)
    assert outcome == Conflicted(4, epoch, "a version of another leader")
    assert brokers.content() == contents[0]
    assert table.state.leader_epoch == epoch
    assert brokers.append(successor, b"d", epoch=epoch) == Committed(5, 4)
    assert table.follow().high_watermark == 4


@pytest.mark.parametrize("after", ["take_stock", "load"])
def test_a_lead_is_lost_to_a_fence_that_comes_behind_the_own_one(
    brokers: Brokers, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair makes the table be read once more."""
    _, table = brokers.open()
    _, successor = brokers.open()
    brokers.leave_what_a_crash_leaves()
    following = table._following
    read = getattr(following, after)
    is_taken: list[object] = []

    def read_later() -> object:
        is_fenced = any(b'"FENCE"' in path.read_bytes() for path in (brokers.root / LOG).glob("*.json"))
        if is_fenced and not is_taken:
            is_taken.append(successor.lead(3, NOW_MS, fence=True))
        return read()

    monkeypatch.setattr(following, after, read_later)
    outcome = table.lead(2, NOW_MS, fence=True)
    assert isinstance(outcome, Conflicted)
    assert (outcome.leader_epoch, outcome.is_rival) == (3, True)
    assert isinstance(is_taken[0], Committed)
    with pytest.raises(AssertionError, match="expected a table that is led"):
        brokers.append(table, b"d", epoch=2)
    assert isinstance(brokers.append(successor, b"d", epoch=3), Committed)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_fence_of_unknown_outcome_is_settled_by_taking_the_lead_again(brokers: Brokers, is_there: bool) -> None:
    store, table = brokers.open()
    store.fail_next("create", OutcomeUnknown("no answer"), after_doing_it=is_there)
    assert isinstance(table.lead(2, NOW_MS, fence=True), Unknown)
    assert table.lead(2, NOW_MS, fence=True) == Committed(4, 3)
    assert brokers.commit(4).operation == "FENCE"
    assert brokers.append(table, b"d", epoch=2) == Committed(5, 4)


def test_a_former_leader_loses_what_it_commits_behind_the_fence(brokers: Brokers) -> None:
    """It slept with its data file written; then it is told, changes nothing more, and can follow."""
    _, table = brokers.open()
    brokers.store.before_next("create", lambda: table.lead(2, NOW_MS, fence=True))
    assert brokers.append(brokers.old, b"late", epoch=1) == Conflicted(4, 2, "FENCE")
    before = brokers.content()
    assert brokers.old.reload().is_overtaken
    assert brokers.append(table, b"d", epoch=2) == Committed(5, 4)
    assert brokers.old.follow().high_watermark == 4
    assert brokers.content().keys() - before.keys() == {
        f"{LOG}/{version_name(5)}",
        f"{FOLDER}/{table.rewrites.files[-1].path}",
    }


def test_a_former_leader_that_leads_again_is_overtaken_no_longer(brokers: Brokers) -> None:
    """It was paused in a commit, and its partition came back to it."""
    _, table = brokers.open()
    brokers.store.before_next("create", lambda: table.lead(2, NOW_MS, fence=True))
    assert brokers.append(brokers.old, b"late", epoch=1) == Conflicted(4, 2, "FENCE")
    assert brokers.old.reload().is_overtaken
    assert brokers.append(table, b"d", epoch=2) == Committed(5, 4)
    assert brokers.old.follow().is_overtaken
    assert brokers.old.lead(3, NOW_MS, fence=True) == Committed(6, 4)
    assert not brokers.old.state.is_overtaken
    assert brokers.append(brokers.old, b"e", epoch=3) == Committed(7, 5)


def test_a_deposed_leader_does_not_confirm_its_doubtful_version_again(brokers: Brokers) -> None:
    """Its successor has read that version, and builds on it."""
    brokers.store.fail_next("create", OutcomeUnknown("no answer"), after_doing_it=True)
    assert isinstance(brokers.append(brokers.old, b"d", epoch=1), Unknown)
    _, table = brokers.open()
    assert table.lead(2, NOW_MS, fence=True) == Committed(5, 4)
    before = brokers.content()
    assert brokers.old.reload().is_overtaken
    assert brokers.content() == before


def test_a_foreign_version_before_the_fence_of_a_successor_hides_it_not(brokers: Brokers) -> None:
    brokers.files.create(f"{LOG}/{version_name(4)}", OPTIMIZE)
    _, table = brokers.open()
    assert table.lead(2, NOW_MS, fence=True) == Committed(5, 3)
    assert brokers.append(brokers.old, b"late", epoch=1) == Conflicted(4, None, "OPTIMIZE")
    before = brokers.content()
    state = brokers.old.reload()
    assert (state.is_overtaken, state.leader_epoch) == (True, 2)
    with pytest.raises(AssertionError, match="expected a table that is led"):
        brokers.append(brokers.old, b"late", epoch=1)
    assert brokers.content() == before


def test_an_acknowledged_version_that_was_replaced_is_committed_again_under_the_new_leaders_epoch(
    brokers: Brokers,
) -> None:
    path = brokers.root / LOG / version_name(3)
    (brokers.root / LOG / replaced_name(3)).write_bytes(path.read_bytes())
    path.write_bytes(OPTIMIZE)
    _, table = brokers.open()
    assert table.state.high_watermark == 2
    assert table.lead(2, NOW_MS, fence=True) == Committed(5, 3)
    again = brokers.commit(5)
    assert (again.operation, again.leader_epoch, again.incarnation) == ("WRITE", 2, brokers.commit(4).incarnation)
    assert brokers.append(table, b"d", epoch=2) == Committed(6, 4)


def test_a_fence_is_given_up_after_many_versions_of_another_engine(brokers: Brokers) -> None:
    store, table = brokers.open()
    meanwhile: Callable[[], object] = lambda: brokers.files.create(  # noqa: E731
        f"{LOG}/{version_name(table.state.version + 1)}", OPTIMIZE
    )
    for _ in range(100):
        store.before_next("create", meanwhile)
    outcome = table.lead(2, NOW_MS, fence=True)
    assert isinstance(outcome, Conflicted)
    assert outcome.leader_epoch is None
    assert isinstance(table.lead(2, NOW_MS, fence=True), Committed)


def test_a_fence_whose_answer_was_lost_is_known_as_its_own(brokers: Brokers) -> None:
    store, table = brokers.open()
    store.fail_next("create", KeyExists("it exists"), after_doing_it=True)
    assert table.lead(2, NOW_MS, fence=True) == Committed(4, 3)
