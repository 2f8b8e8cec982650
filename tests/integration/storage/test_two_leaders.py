"""Two leaders on one table, no lock between them: whatever one of them does meanwhile, what the other acknowledges is
there, and what is deleted is in no version, now or later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault
from bus.model import TopicPartition
from bus.ports import CommitOutcome, Committed, Conflicted, FenceLost, Unknown
from bus.runtime.partitions.partition_queue import Appended
from bus.storage_delta.log.listing import list_log, partition_folder, raise_boundary, read_boundary
from bus.storage_delta.repair.repair import repair_partition
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.store import KeyExists, KeyReplaced
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.fake_table import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.partition_bench import Bench, code, send, with_partition
from tests.support.stores import NOW_MS, ScriptedStore, led, log_batch

PARTITION = TopicPartition("orders", 0)
FOLDER = partition_folder(PARTITION)


class Leaders:
    """Each has a store of its own on the same files, which a test can stop before any call."""

    def __init__(self) -> None:
        self.files = MemoryStore()
        self.clock = ManualClock(NOW_MS)
        self.old_store, self.old = self.start(epoch=1)
        self.append(self.old, b"first", epoch=1)
        self.young_store, self.young = self.start(epoch=2)

    def start(self, epoch: int | None = None) -> tuple[ScriptedStore, DeltaPartitionTable]:
        store = ScriptedStore(self.files)
        storage = open_storage_on(store, exclusive=False, clock=self.clock)  # type: ignore[arg-type]
        table = storage.create_partition(PARTITION, topic_id="id")
        return store, table if epoch is None else led(table, epoch)

    def append(self, table: DeltaPartitionTable, value: bytes, *, epoch: int) -> CommitOutcome:
        """`epoch` 1 of another than the old one: it leads at the same epoch, as if it had read the same metadata."""
        if epoch == 1 and table is not self.old:
            led(table, epoch)
        batch = log_batch(table.state.high_watermark, [value], leader_epoch=epoch)
        return table.append([batch], leader_epoch=epoch, now_ms=NOW_MS)

    def values(self) -> list[bytes]:
        """Values as a third broker finds them that starts now."""
        _, table = self.start()
        batches = table.log.read(0, end_offset=table.state.high_watermark, max_bytes=1 << 20)
        return [value for batch in batches for value in batch.columns.column("value").to_pylist()]


@pytest.fixture
def leaders() -> Leaders:
    return Leaders()


# ---------------------------------------------------------------- orphans


def delete_orphans(table: DeltaPartitionTable) -> int:
    return table.cleanup.delete_orphans(table.cleanup.find_orphans())


def test_a_younger_leader_does_not_delete_what_an_older_one_is_about_to_commit(leaders: Leaders) -> None:
    leaders.old_store.before_next("create", lambda: delete_orphans(leaders.young))
    outcome = leaders.append(leaders.old, b"second", epoch=1)
    assert isinstance(outcome, Conflicted)  # the fence came first, so the file could go
    assert leaders.old.reload().is_overtaken
    assert isinstance(leaders.append(leaders.young, b"again", epoch=2), Committed)
    assert leaders.values() == [b"first", b"again"]


def test_an_older_leader_does_not_delete_what_a_younger_one_is_about_to_commit(leaders: Leaders) -> None:
    leaders.young_store.before_next("create", lambda: delete_orphans(leaders.old))
    assert isinstance(leaders.append(leaders.young, b"second", epoch=2), Conflicted)
    leaders.young.reload()
    assert isinstance(leaders.append(leaders.young, b"again", epoch=2), Committed)
    assert leaders.values() == [b"first", b"again"]


def test_an_orphan_that_was_listed_before_it_was_committed_by_another_stays(leaders: Leaders) -> None:
    found: list[frozenset[str]] = []
    leaders.old_store.before_next("create", lambda: found.append(leaders.young.cleanup.find_orphans()))
    assert isinstance(leaders.append(leaders.old, b"second", epoch=1), Committed)
    assert len(found[0]) == 1
    with pytest.raises(FenceLost) as lost:
        leaders.young.cleanup.delete_orphans(found[0])
    assert isinstance(lost.value.outcome, Conflicted)
    leaders.young.reload()
    assert leaders.young.cleanup.delete_orphans(found[0]) == 0
    assert leaders.values() == [b"first", b"second"]


def test_a_leader_that_is_behind_deletes_nothing(leaders: Leaders) -> None:
    """It has committed since it listed, and so has another one since."""
    leaders.files.write_unique(f"{FOLDER}/{1:020d}-left.parquet", b"of a crash")
    orphans = leaders.old.cleanup.find_orphans()
    assert isinstance(leaders.append(leaders.old, b"second", epoch=1), Committed)
    leaders.young.reload()
    assert isinstance(leaders.append(leaders.young, b"third", epoch=2), Committed)
    assert leaders.old.cleanup.delete_orphans(orphans) == 0
    leaders.young.reload()
    assert delete_orphans(leaders.young) == 1


def test_an_own_commit_after_the_listing_is_fence_enough(leaders: Leaders) -> None:
    leaders.files.write_unique(f"{FOLDER}/{1:020d}-left.parquet", b"of a crash")
    orphans = leaders.young.cleanup.find_orphans()
    leaders.append(leaders.young, b"second", epoch=2)
    version = leaders.young.state.version
    assert leaders.young.cleanup.delete_orphans(orphans) == 1
    assert leaders.young.state.version == version


@pytest.mark.parametrize("is_rolled", [True, False])
def test_files_prepared_before_the_log_was_read_again_are_not_committed(leaders: Leaders, is_rolled: bool) -> None:
    """Another leader may have listed them as orphans before its commit, and deletes them now."""
    for number in range(3):
        leaders.append(leaders.old, b"%d" % number, epoch=1)
    leaders.young.reload()
    if is_rolled:
        prepared = leaders.old.rewrites.prepare_roll(
            leaders.old.rewrites.files[:3], compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
        )
    else:
        found = leaders.old.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=1)
        if found is None:
            pytest.skip("nothing to gain")
        prepared = found
    orphans = leaders.young.cleanup.find_orphans()
    assert len(orphans) == 1
    leaders.append(leaders.young, b"young", epoch=2)
    leaders.old.reload()
    leaders.young.cleanup.delete_orphans(orphans)
    led(leaders.old, 3)
    assert isinstance(leaders.old.rewrites.swap(prepared, leader_epoch=3, now_ms=NOW_MS), Conflicted)
    assert leaders.values() == [b"first", b"0", b"1", b"2", b"young"]


# ---------------------------------------------------------------- versions that were dropped


def drop_versions(table: DeltaPartitionTable) -> None:
    table.cleanup.write_checkpoint()
    assert table.cleanup.drop_old_versions(committed_before_ms=2**62, count_max=1, removed_before_ms=2**62).versions > 0


def test_a_leader_that_slept_since_it_read_the_log_takes_no_number_that_was_dropped(leaders: Leaders) -> None:
    for number in range(3):
        leaders.append(leaders.old, b"%d" % number, epoch=1)
    drop_versions(leaders.old)
    outcome = leaders.append(leaders.young, b"lost", epoch=2)
    assert isinstance(outcome, Unknown)
    assert leaders.young.reload().high_watermark == 4
    assert isinstance(leaders.append(leaders.young, b"young", epoch=2), Committed)
    assert leaders.values() == [b"first", b"0", b"1", b"2", b"young"]


class Sleeper:
    """The young leader's next number, 4, is used by the old one and dropped, and that one goes on."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self.table, self.store = leaders.young, leaders.young_store

    def sleep(self, sleep_ms: int = 60_000) -> None:
        leaders = self._leaders
        leaders.old.reload()
        for number in range(3):
            leaders.append(led(leaders.old, 2), b"%d" % number, epoch=2)
        drop_versions(leaders.old)
        leaders.clock.advance(sleep_ms)

    def append(self) -> CommitOutcome:
        return self._leaders.append(self.table, b"lost", epoch=2)

    def check_it_writes_no_version(self) -> None:
        before = len(self.store.calls)
        assert isinstance(self.append(), Unknown)
        assert "create" not in self.store.calls[before:]

    def check_nothing_is_lost(self) -> None:
        self.table.reload()
        led(self.table, 3)
        assert isinstance(self._leaders.append(self.table, b"young", epoch=3), Committed)
        assert self._leaders.values() == [b"first", b"second", b"0", b"1", b"2", b"young"]
        self._leaders.append(self.table, b"and on", epoch=3)
        drop_versions(self.table)
        versions = list_log(self._leaders.files, FOLDER).versions
        assert list(versions) == list(range(min(versions), max(versions) + 1))
        assert not verify_partition(self._leaders.files, PARTITION).breaches


@pytest.fixture
def sleeper(leaders: Leaders) -> Sleeper:
    return Sleeper(leaders)


@pytest.mark.parametrize("sleep_ms", [0, 60_000])
def test_a_leader_that_slept_since_a_commit_with_a_lost_reply_takes_no_number_that_was_dropped(
    sleeper: Sleeper, leaders: Leaders, sleep_ms: int
) -> None:
    """It does not know how its last version was written, so it cannot see that it is gone."""
    sleeper.store.fail_next("create", KeyExists("the reply was lost"), after_doing_it=True)
    assert isinstance(leaders.append(leaders.young, b"second", epoch=2), Committed)
    sleeper.sleep(sleep_ms)
    sleeper.check_it_writes_no_version()
    sleeper.check_nothing_is_lost()


def test_a_leader_that_sees_old_attributes_takes_no_number_that_was_dropped(sleeper: Sleeper, leaders: Leaders) -> None:
    """The cache of a network file system says that its last version is there, as it was written."""
    leaders.append(leaders.young, b"second", epoch=2)
    last = f"{FOLDER}/_delta_log/{2:020d}.json"
    data = leaders.files.get(last)
    sleeper.sleep()
    leaders.files.put(last, data)
    sleeper.check_it_writes_no_version()
    leaders.files.delete(last)
    sleeper.check_nothing_is_lost()


@pytest.mark.parametrize("is_reply_lost", [False, True])
def test_a_leader_that_slept_right_before_it_wrote_acknowledges_no_number_that_was_dropped(
    sleeper: Sleeper, leaders: Leaders, is_reply_lost: bool
) -> None:
    """It has looked at everything when it falls asleep; what it has written then counts for nothing."""
    sleeper.store.fail_next("create", KeyExists("the reply was lost"), after_doing_it=True)
    leaders.append(leaders.young, b"second", epoch=2)
    sleeper.store.before_next("create", sleeper.sleep)
    if is_reply_lost:
        sleeper.store.fail_next("create", KeyExists("the reply was lost"), after_doing_it=True)
    assert isinstance(sleeper.append(), Unknown)
    before = len(sleeper.store.calls)
    sleeper.table.reload()
    assert "confirm" not in sleeper.store.calls[before:]  # it would bring back a version that was dropped
    sleeper.check_nothing_is_lost()


def test_a_follower_that_slept_takes_no_lead_with_a_number_that_was_dropped(leaders: Leaders) -> None:
    """The version that it has followed to is gone, and the next one too: so that looks like the end."""
    for number in range(3):
        leaders.append(leaders.old, b"%d" % number, epoch=1)
    table = leaders.start()[1]
    for number in range(3):
        leaders.append(leaders.old, b"%d" % number, epoch=1)
    drop_versions(leaders.old)
    outcome = table.lead(3, NOW_MS, fence=True)
    if isinstance(outcome, Unknown):
        outcome = table.lead(3, NOW_MS, fence=True)
    assert isinstance(outcome, Committed)
    assert table.state.high_watermark == 7


def test_a_busy_leader_looks_for_no_boundary(leaders: Leaders) -> None:
    leaders.append(leaders.young, b"second", epoch=2)
    leaders.clock.advance(9_000)
    before = len(leaders.young_store.calls)
    leaders.append(leaders.young, b"third", epoch=2)
    assert leaders.young_store.calls[before:] == ["write_unique", "create"]


def test_the_boundary_is_not_lowered_by_a_leader_that_was_overtaken(leaders: Leaders) -> None:
    raise_boundary(leaders.files, FOLDER, 500, topic_id="id")
    raise_boundary(leaders.files, FOLDER, 400, topic_id="id")
    assert read_boundary(leaders.files, FOLDER, topic_id="id") == 500


def test_the_boundary_of_a_topic_that_had_the_name_before_does_not_count(leaders: Leaders) -> None:
    raise_boundary(leaders.files, FOLDER, 500, topic_id="another")
    leaders.clock.advance(60_000)
    assert isinstance(leaders.append(leaders.young, b"second", epoch=2), Committed)
    assert not verify_partition(leaders.files, PARTITION).breaches
    raise_boundary(leaders.files, FOLDER, 1, topic_id="id")
    assert read_boundary(leaders.files, FOLDER, topic_id="id") == 1


def test_no_version_goes_before_the_boundary_is_there(leaders: Leaders) -> None:
    for number in range(3):
        leaders.append(leaders.old, b"%d" % number, epoch=1)
    leaders.old.cleanup.write_checkpoint()
    before = list(list_log(leaders.files, FOLDER).versions)
    leaders.old_store.fail_next("put", StorageFault("the disk"))
    with pytest.raises(StorageFault, match="the disk"):
        leaders.old.cleanup.drop_old_versions(committed_before_ms=2**62, count_max=1, removed_before_ms=2**62)
    assert list(list_log(leaders.files, FOLDER).versions) == before


@pytest.mark.parametrize("content", [b'{"keptFrom": 500, "topicId": "id"}', b"torn", b"[]"])
def test_a_boundary_that_stops_the_table_is_found_and_repaired(leaders: Leaders, content: bytes) -> None:
    """The table was set back to a backup, and the boundary was left behind; or the file is damaged."""
    leaders.files.put(f"{FOLDER}/_delta_log/_boundary", content)
    leaders.clock.advance(60_000)
    if b"500" in content:
        outcome = leaders.append(leaders.young, b"second", epoch=2)
        assert isinstance(outcome, Unknown)
        assert "bus log repair" in outcome.reason
    else:
        with pytest.raises(StorageDamaged, match="bus log repair"):
            leaders.append(leaders.young, b"second", epoch=2)
    assert [breach.promise for breach in verify_partition(leaders.files, PARTITION).breaches] == [
        "dropped versions are behind the last one"
    ]
    report = repair_partition(leaders.files, PARTITION, topic_id="id", now_ms=NOW_MS, is_rehearsal=False)
    assert [step.subject for step in report.steps] == ["_delta_log/_boundary"]
    assert not verify_partition(leaders.files, PARTITION).breaches
    _, table = leaders.start(epoch=3)
    assert isinstance(leaders.append(table, b"second", epoch=3), Committed)


def test_a_leader_that_slept_since_its_commit_deletes_nothing_behind_dropped_versions(leaders: Leaders) -> None:
    """An external job's file, which this one took for an orphan, is in another leader's log by now."""
    leaders.files.write_unique(f"{FOLDER}/{1:020d}-left.parquet", b"of a job")
    orphans = leaders.old.cleanup.find_orphans()
    leaders.append(leaders.old, b"second", epoch=1)
    leaders.young.reload()
    for number in range(3):
        leaders.append(leaders.young, b"%d" % number, epoch=2)
    drop_versions(leaders.young)
    assert leaders.old.cleanup.delete_orphans(orphans) == 0


# ---------------------------------------------------------------- checkpoints


def last_checkpoint(leaders: Leaders) -> int:
    found: int = json.loads(leaders.files.get(f"{FOLDER}/_delta_log/_last_checkpoint"))["version"]
    return found


def test_a_leader_that_is_behind_writes_no_checkpoint(leaders: Leaders) -> None:
    """It would set `_last_checkpoint` back, to one that its successor may have deleted."""
    leaders.young.cleanup.write_checkpoint()
    leaders.append(leaders.old, b"second", epoch=1)
    version = leaders.young.state.version
    leaders.append(leaders.young, b"lost", epoch=2)
    leaders.old.cleanup.write_checkpoint()
    assert last_checkpoint(leaders) == leaders.old.state.version > version
    leaders.young.cleanup.write_checkpoint()
    assert last_checkpoint(leaders) == leaders.old.state.version


def test_no_checkpoint_goes_that_a_former_leader_has_made_the_last_one(leaders: Leaders) -> None:
    """A leader that slept while it wrote one: other engines begin with it."""
    leaders.old.cleanup.write_checkpoint()
    hint = leaders.files.get(f"{FOLDER}/_delta_log/_last_checkpoint")
    version = last_checkpoint(leaders)
    for number in range(3):
        leaders.append(leaders.old, b"%d" % number, epoch=1)
    leaders.old.cleanup.write_checkpoint()
    leaders.files.put(f"{FOLDER}/_delta_log/_last_checkpoint", hint)
    dropped = leaders.old.cleanup.drop_old_versions(committed_before_ms=2**62, count_max=1, removed_before_ms=2**62)
    assert dropped.versions == 0
    assert leaders.files.get(f"{FOLDER}/_delta_log/{version:020d}.checkpoint.parquet")
    leaders.append(leaders.old, b"next", epoch=1)
    drop_versions(leaders.old)


# ---------------------------------------------------------------- epochs


class Breaking:
    """A table whose next append fails in a way that nothing expects."""

    def __init__(self, table: DeltaPartitionTable, meanwhile: Callable[[], object]) -> None:
        self._table = table
        self._meanwhile: Iterator[Callable[[], object]] = iter([meanwhile])

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    def append(self, *args: object, **options: object) -> CommitOutcome:
        for meanwhile in self._meanwhile:
            meanwhile()
            raise RuntimeError("a bug")
        return self._table.append(*args, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [2, 1])
def test_after_an_unexpected_exception_nothing_is_appended_behind_another_leader(leaders: Leaders, epoch: int) -> None:
    """Epoch 1: two that started from the same metadata have the same epoch, and only one of them may go on."""
    table = Breaking(leaders.old, lambda: leaders.append(leaders.young, b"successor", epoch=epoch))

    async def scenario(bench: Bench) -> None:
        assert code(await send(bench)) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert code(await send(bench)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_partition(table, 1, scenario)  # type: ignore[arg-type]
    assert leaders.values() == [b"first", b"successor"]


@pytest.mark.parametrize("epoch", [2, 1])
def test_a_lost_race_against_another_leader_of_the_same_epoch_or_a_higher_one_ends_this_one(
    leaders: Leaders, epoch: int
) -> None:
    async def scenario(bench: Bench) -> None:
        leaders.append(leaders.young, b"successor", epoch=epoch)
        assert code(await send(bench)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_partition(leaders.old, 1, scenario)
    assert leaders.values() == [b"first", b"successor"]


def test_a_version_that_cannot_be_looked_at_is_looked_at_again_before_the_next_commit(leaders: Leaders) -> None:
    async def scenario(bench: Bench) -> None:
        leaders.old_store.fail_next("create", KeyReplaced("the version before is another file"))
        leaders.old_store.fail_next("get", StorageFault("the disk"))
        assert code(await send(bench)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert isinstance(await send(bench), Appended)

    with_partition(leaders.old, 1, scenario)
    assert leaders.values() == [b"first", b"own"]


@pytest.mark.parametrize(("operation", "nth"), [*(("get", nth) for nth in range(1, 8)), ("stamp", 1), ("stamp", 2)])
def test_a_reading_that_failed_half_way_hides_no_leader_of_the_same_epoch(
    leaders: Leaders, operation: str, nth: int
) -> None:
    def fail() -> None:
        raise StorageFault("the disk")

    leaders.append(leaders.young, b"successor", epoch=1)
    for _ in range(nth - 1):
        leaders.old_store.before_next(operation, lambda: None)
    leaders.old_store.before_next(operation, fail)
    with pytest.raises(StorageFault, match="the disk"):
        leaders.old.reload()
    assert leaders.old.reload().is_overtaken


def test_a_foreign_version_before_that_of_a_successor_hides_it_not(leaders: Leaders) -> None:
    """The race is lost against an OPTIMIZE, and a newer leader has committed behind that."""

    async def scenario(bench: Bench) -> None:
        foreign = b'{"commitInfo":{"operation":"OPTIMIZE","engineInfo":"Apache-Spark/4.2.0"}}\n'
        leaders.files.put(f"{FOLDER}/_delta_log/{2:020d}.json", foreign)
        leaders.young.reload()
        leaders.append(leaders.young, b"successor", epoch=2)
        assert code(await send(bench)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_partition(leaders.old, 1, scenario)
    assert leaders.values() == [b"first", b"successor"]


def test_a_partition_that_is_opened_behind_its_successor_appends_nothing(leaders: Leaders) -> None:
    leaders.append(leaders.young, b"successor", epoch=2)
    leaders.old.reload()

    async def scenario(bench: Bench) -> None:
        assert code(await send(bench)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_partition(leaders.old, 1, scenario)
    assert leaders.values() == [b"first", b"successor"]


def test_a_leader_goes_on_behind_an_older_one(leaders: Leaders) -> None:
    async def scenario(bench: Bench) -> None:
        leaders.append(leaders.old, b"older", epoch=1)
        result = await send(bench)
        assert isinstance(result, Appended)
        assert result.base_offset == 2

    with_partition(leaders.young, 2, scenario)


def test_orphans_go_through_the_writer_and_memory_follows_the_fence(leaders: Leaders) -> None:
    leaders.files.write_unique(f"{FOLDER}/{1:020d}-left.parquet", b"of a crash")

    async def scenario(bench: Bench) -> None:
        orphans = leaders.young.cleanup.find_orphans()
        assert await bench.partition.maintenance.jobs.delete_orphans(orphans) == 1
        assert bench.partition.state.version == leaders.young.state.version == 2
        assert isinstance(await send(bench), Appended)

    with_partition(leaders.young, 2, scenario)


def test_a_leader_whose_fence_comes_too_late_steps_down(leaders: Leaders) -> None:
    leaders.files.write_unique(f"{FOLDER}/{1:020d}-left.parquet", b"of a crash")
    orphans = leaders.old.cleanup.find_orphans()
    leaders.append(leaders.young, b"successor", epoch=2)

    async def scenario(bench: Bench) -> None:
        refused = await bench.partition.maintenance.jobs.delete_orphans(orphans)
        assert isinstance(refused, Refused)
        assert code(await send(bench)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_partition(leaders.old, 1, scenario)
    assert delete_orphans(leaders.young) == 1
