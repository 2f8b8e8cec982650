"""The log of users on a root: who changes it at once with others, what is read back, and who may look into it."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.errors import ErrorCode, RootNotUsable, StorageDamaged, StorageFault
from bus.platform.system_clock import SystemClock
from bus.runtime.user_directory import UserLedger
from bus.security.users import DeleteScram, SetScram
from bus.storage_delta.maintenance.cleanup import Cleanup
from bus.storage_delta.root import open_storage, open_storage_on
from bus.storage_delta.stores.local import FileSystem, LocalStore
from bus.storage_delta.stores.store import ObjectStore
from tests.support.memory_store import MemoryStore
from tests.support.stores import FailingFileSystem

SHA_256 = "SCRAM-SHA-256"


class OvertakenFileSystem(FileSystem):
    """Another writer commits between this one's temporary file and its link."""

    def __init__(self) -> None:
        self._befores: list[Callable[[], object]] = []
        self.link = self._link  # type: ignore[method-assign]

    def before_next_link(self, do: Callable[[], object]) -> None:
        self._befores.append(do)

    def _link(self, source: str, target: str) -> None:
        if self._befores:
            self._befores.pop()()
        os.link(source, target)


def ledger_on(store: ObjectStore) -> UserLedger:
    return UserLedger(open_storage_on(store, exclusive=False), SystemClock())


def setting(name: str, letter: bytes = b"p") -> SetScram:
    return SetScram(name, SHA_256, 4096, b"12345678", letter * 32)


def versions_of(store: ObjectStore) -> int:
    return len(store.list("private/users/_delta_log").files)


def test_one_that_follows_sees_what_another_one_has_changed() -> None:
    store = MemoryStore()
    one, other = ledger_on(store), ledger_on(store)
    assert not other.follow().by_name
    assert one.alter([setting("alice")]) == {"alice": None}
    assert list(other.follow().by_name) == ["alice"]
    assert other.alter([setting("bob"), DeleteScram("alice", SHA_256)]) == {"alice": None, "bob": None}
    assert list(one.follow().by_name) == ["bob"]
    assert one.follow() is one.follow()


def test_what_was_decided_on_old_users_is_decided_again() -> None:
    """The second deletion was begun on users of before the first one's commit."""
    store = MemoryStore()
    one, other = ledger_on(store), ledger_on(store)
    one.alter([setting("alice")])
    other.follow()
    follow, other.follow = other.follow, lambda: other._users  # type: ignore[method-assign]
    one.alter([DeleteScram("alice", SHA_256)])
    refusal = other.alter([DeleteScram("alice", SHA_256)])["alice"]
    assert refusal is not None
    assert refusal.code is ErrorCode.RESOURCE_NOT_FOUND
    assert not follow().by_name


def test_many_at_once_lose_nothing() -> None:
    store = MemoryStore()
    ledgers = [ledger_on(store) for _ in range(4)]

    def create(number: int) -> None:
        for count in range(5):
            answers = ledgers[number].alter([setting(f"user-{number}-{count}")])
            assert list(answers.values()) == [None]

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"user-{number}-{count}" for number in range(4) for count in range(5)}
    assert set(ledger_on(store).follow().by_name) == expected


@pytest.mark.parametrize("is_led", [False, True])
def test_a_writer_leaves_the_unfinished_files_of_another_one_to_it(tmp_path: Path, *, is_led: bool) -> None:
    file_system = OvertakenFileSystem()
    overtaken, other = ledger_on(LocalStore(str(tmp_path), file_system)), ledger_on(LocalStore(str(tmp_path)))
    other.alter([setting("alice")])
    if is_led:  # no fence comes before its change
        overtaken.alter([setting("bob")])
    file_system.before_next_link(lambda: other.alter([setting("carol")]))
    assert overtaken.alter([setting("dave")]) == {"dave": None}
    assert {"alice", "carol", "dave"} <= set(other.follow().by_name)
    assert not list(tmp_path.rglob(".writing-*"))


@pytest.mark.parametrize("is_led", [False, True])
def test_a_change_that_is_not_wanted_any_more_does_not_undo_a_later_one(tmp_path: Path, *, is_led: bool) -> None:
    """Its caller went, and had another broker delete the user, which was acknowledged."""
    file_system, is_wanted = OvertakenFileSystem(), [True]
    left, other = ledger_on(LocalStore(str(tmp_path), file_system)), ledger_on(LocalStore(str(tmp_path)))
    other.alter([setting("alice")])
    if is_led:
        left.alter([setting("bob")])

    def leave() -> None:
        is_wanted[0] = False
        assert other.alter([DeleteScram("alice", SHA_256)]) == {"alice": None}

    file_system.before_next_link(leave)
    with pytest.raises(StorageFault, match="nothing has changed"):
        left.alter([setting("alice", b"q")], lambda: is_wanted[0])
    assert "alice" not in other.follow().by_name


def test_a_second_change_needs_no_fence() -> None:
    store = MemoryStore()
    ledger = ledger_on(store)
    ledger.alter([setting("alice")])
    before = versions_of(store)
    ledger.alter([setting("bob")])
    assert versions_of(store) == before + 1


def test_a_refused_change_writes_nothing() -> None:
    store = MemoryStore()
    ledger = ledger_on(store)
    ledger.alter([DeleteScram("alice", SHA_256)])
    assert not store.list("private").folders


def users_at(root: Path) -> None:
    storage = open_storage(str(root), exclusive=False)
    try:
        UserLedger(storage, SystemClock()).alter([setting("alice")])
    finally:
        storage.close()


def test_the_folder_and_all_that_is_in_it_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        users_at(tmp_path / "root")
    finally:
        os.umask(before)
    private = tmp_path / "root" / "private"
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (private, *private.rglob("*"))}
    assert len(found) > 4
    assert found == {path: 0o700 if path.is_dir() else 0o600 for path in found}


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_folder_that_others_have_rights_to_is_not_used(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "root"
    users_at(root)
    (root / "private").chmod(mode)
    told = rf"{root}/private: expected mode 0700, found {mode:04o}: .* `chmod 700 {root}/private`"
    with pytest.raises(RootNotUsable, match=told):
        open_storage(str(root), broker_id=0)
    with pytest.raises(RootNotUsable, match=told):
        users_at(root)
    (root / "private").chmod(0o2700)  # as it is made in a folder whose group is inherited
    open_storage(str(root), broker_id=0).close()


def test_a_folder_that_is_a_link_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    users_at(root)
    (root / "private").rename(elsewhere)
    (root / "private").symlink_to(elsewhere)
    open_storage(str(root), broker_id=0).close()
    assert f"{root}/private is a symbolic link to {elsewhere}" in caplog.text


def test_a_folder_that_is_there_before_the_first_user_is_checked_as_well(tmp_path: Path) -> None:
    open_storage(str(tmp_path / "root")).close()
    (tmp_path / "root" / "private").mkdir(mode=0o755)
    with pytest.raises(RootNotUsable, match="found 0755"):
        users_at(tmp_path / "root")


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_disk_that_fails_once_costs_that_change_alone(tmp_path: Path, call: str) -> None:
    file_system = FailingFileSystem()
    ledger = ledger_on(LocalStore(str(tmp_path / "root"), file_system))
    ledger.alter([setting("alice")])
    file_system.fail(call, 1)
    with pytest.raises(StorageFault):
        ledger.alter([setting("bob")])
    ledger.alter([setting("carol")])
    assert set(ledger_on(LocalStore(str(tmp_path / "root"))).follow().by_name) - {"bob"} == {"alice", "carol"}


def test_a_change_is_done_though_no_checkpoint_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Cleanup) -> None:
        raise StorageFault("the disk is full")

    monkeypatch.setattr(Cleanup, "is_checkpoint_due", True)
    monkeypatch.setattr(Cleanup, "write_checkpoint", fail)
    ledger = ledger_on(LocalStore(str(tmp_path / "root")))
    assert ledger.alter([setting("alice")]) == {"alice": None}
    assert caplog.messages == ["no checkpoint of the log of users could be written: the disk is full"]


def test_a_record_of_a_later_version_stops_who_does_not_know_it() -> None:
    store = MemoryStore()
    ledger = ledger_on(store)
    ledger.alter([setting("alice")])
    log = open_storage_on(store, exclusive=False).open_users(create=False)
    assert log is not None
    log.lead(log.state.leader_epoch + 1, 0, fence=True)
    log.append([{"type": "UserBanned", "name": "alice"}], leader_epoch=log.state.leader_epoch, now_ms=0)
    with pytest.raises(StorageDamaged, match="UserBanned"):
        ledger.follow()
