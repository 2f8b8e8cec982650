"""The log of users on a root: who changes it at once with others, what is read back, and who may look into it."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from bus.errors import ErrorCode, StorageDamaged, StorageFault
from bus.runtime.users.user_ledger import UserLedger
from bus.storage_delta.root import open_storage, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.memory import MemoryStore
from bus.storage_delta.stores.store import ObjectStore
from bus.system_clock import SystemClock
from bus.users.users import DeleteScram, SetScram
from tests.support.stores import FailingFileSystem

SHA_256 = "SCRAM-SHA-256"


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


def test_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"), exclusive=False)
    UserLedger(storage, SystemClock()).alter([setting("alice")])
    assert stat.S_IMODE((tmp_path / "root" / "private").stat().st_mode) == 0o700
    storage.close()


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
