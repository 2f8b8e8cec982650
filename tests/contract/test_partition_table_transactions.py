"""The proofs of transactions in a table: in the version that has the rows, and for as long as anyone may ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.model import TopicPartition
from bus.ports import AppliedTransaction, Committed, ProducerProgress, TransactionRows
from bus.storage_delta import known_writers
from bus.storage_delta.log.listing import LOG_FOLDER, version_name
from bus.storage_delta.root import DeltaStorage, open_storage, open_storage_on
from bus.storage_delta.stores.store import ObjectStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, led, log_batch
from tests.support.transactions import PRODUCER, abort_transaction, apply_transaction

NAME = TopicPartition("prices", 0)
FOLDER = "topics/prices/0"
HOSTILE = ["plain", "", 'quote " and \\', "line\nend\r\t\0", "bus/txn/x", "a%20b", "../..", "日本", "😀" * 64, "'{}"]


class Subject:
    def __init__(self, storage: DeltaStorage, store: ObjectStore) -> None:
        self.storage, self.store = storage, store
        self.table: DeltaPartitionTable = led(storage.create_partition(NAME, topic_id="id"))

    def apply(self, transactional_id: str, number: int, *, epoch: int | None = None) -> int:
        """A transaction of two records; returns the version."""
        outcome = apply_transaction(self.table, transactional_id, number, epoch=epoch)
        assert isinstance(outcome, Committed), outcome
        return outcome.version

    def abort(self, transactional_id: str, number: int) -> int:
        outcome = abort_transaction(self.table, transactional_id, number)
        assert outcome == Committed(self.table.state.version, self.table.state.high_watermark)
        return outcome.version

    def append(self) -> None:
        batch = log_batch(self.table.state.high_watermark, [b"x"])
        self.table.append([batch], leader_epoch=0, now_ms=NOW_MS)

    def reopen(self) -> None:
        self.table = led(self.storage.open_partition(NAME, topic_id="id"))

    def actions(self, version: int) -> list[dict[str, dict[str, object]]]:
        data = self.store.get(f"{FOLDER}/{LOG_FOLDER}/{version_name(version)}")
        return [json.loads(line) for line in data.splitlines()]

    def breaches(self) -> list[str]:
        return [str(breach) for breach in verify_partition(self.store, NAME, topic_id="id").breaches]


@pytest.fixture(params=["memory", "local"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "memory":
        store: ObjectStore = MemoryStore()
        storage = open_storage_on(store, exclusive=False)
    else:
        storage = open_storage(str(tmp_path))
        store = storage._store
    yield Subject(storage, store)
    storage.close()


def test_a_table_knows_no_transaction_at_first(subject: Subject) -> None:
    assert subject.table.transactions.version_of("orders") == -1


@pytest.mark.parametrize("transactional_id", HOSTILE, ids=range(len(HOSTILE)))
def test_any_id_comes_back_from_memory_log_and_checkpoint(subject: Subject, transactional_id: str) -> None:
    version = subject.apply(transactional_id, 20)
    assert subject.table.transactions.version_of(transactional_id) == 41
    (txn,) = [
        action["txn"]
        for action in subject.actions(version)
        if str(action.get("txn", {}).get("appId")).startswith("bus/txn/")
    ]
    assert txn["version"] == 41
    assert str(txn["appId"]).isascii()
    subject.table.reload()
    assert subject.table.transactions.version_of(transactional_id) == 41
    subject.table.cleanup.write_checkpoint()
    subject.reopen()
    assert subject.table.transactions.version_of(transactional_id) == 41
    assert subject.breaches() == []


def test_a_follower_sees_the_proof_with_the_rows(subject: Subject) -> None:
    follower = subject.storage.open_partition(NAME, topic_id="id")
    subject.apply("orders", 0)
    assert follower.transactions.version_of("orders") == -1
    follower.follow()
    assert (follower.transactions.version_of("orders"), follower.state.high_watermark) == (1, 2)


def test_another_leader_takes_the_proofs_over(subject: Subject) -> None:
    subject.apply("orders", 3)
    other = subject.storage.open_partition(NAME, topic_id="id")
    assert isinstance(other.lead(5, NOW_MS, fence=True), Committed)
    assert other.transactions.version_of("orders") == 7


def test_the_rows_and_their_proof_are_one_version(subject: Subject) -> None:
    actions = subject.actions(subject.apply("orders", 3, epoch=9))
    assert [name for action in actions for name in action if name in ("txn", "add")].count("add") == 1
    assert actions[0]["commitInfo"]["transactions"] == {"bus/txn/orders": [PRODUCER, 9]}


def test_an_aborted_transaction_leaves_a_proof_and_no_row(subject: Subject) -> None:
    subject.apply("orders", 3)
    follower = subject.storage.open_partition(NAME, topic_id="id")
    before = subject.table.state
    version = subject.abort("orders", 4)
    assert version == before.version + 1
    assert subject.table.state.high_watermark == before.high_watermark
    assert subject.table.transactions.version_of("orders") == 8
    assert not [action for action in subject.actions(version) if "add" in action]
    assert follower.follow().version == version
    assert follower.transactions.version_of("orders") == 8
    subject.apply("orders", 5)
    subject.reopen()
    assert subject.table.transactions.version_of("orders") == 11
    assert subject.breaches() == []


@pytest.mark.parametrize("number", [2, 3])
def test_what_has_ended_is_never_applied_or_aborted(subject: Subject, number: int) -> None:
    subject.apply("orders", 3)
    with pytest.raises(AssertionError, match="orders behind 7"):
        subject.apply("orders", number, epoch=9)
    with pytest.raises(AssertionError, match="orders behind 7"):
        subject.abort("orders", number)


def test_what_was_aborted_is_never_applied(subject: Subject) -> None:
    subject.abort("orders", 3)
    with pytest.raises(AssertionError, match="orders behind 6"):
        subject.apply("orders", 3)


# ------------------------------------------------------------------ ids that expired


def test_an_expired_id_leaves_log_and_checkpoints(subject: Subject) -> None:
    subject.apply("orders", 3)
    subject.apply("bills", 0, epoch=5)
    subject.table.cleanup.write_checkpoint()
    subject.table.transactions.forget({"orders": 7, "never there": 3})
    assert subject.table.transactions.version_of("orders") == 7
    subject.append()
    assert subject.table.transactions.version_of("orders") == -1
    subject.append()
    (txn,) = [action["txn"] for action in subject.actions(subject.table.state.version - 1) if "orders" in str(action)]
    assert txn["version"] == -1
    assert not [action for action in subject.actions(subject.table.state.version) if "orders" in str(action)]
    subject.table.reload()
    assert subject.table.transactions.version_of("orders") == -1
    subject.table.cleanup.write_checkpoint()
    assert subject.breaches() == []
    subject.reopen()
    assert (subject.table.transactions.version_of("orders"), subject.table.transactions.version_of("bills")) == (-1, 1)
    assert "bus/txn/orders" not in subject.table._following.load().txns
    assert "bus/txn/bills" in subject.table._following.load().txns


def test_an_id_that_comes_again_is_not_forgotten(subject: Subject) -> None:
    subject.apply("orders", 3)
    subject.table.transactions.forget({"orders": 7})
    subject.apply("orders", 90)
    subject.append()
    assert subject.table.transactions.version_of("orders") == 181
    subject.table.cleanup.write_checkpoint()
    subject.reopen()
    assert subject.table.transactions.version_of("orders") == 181


def test_an_id_that_comes_back_later_is_known_again(subject: Subject) -> None:
    subject.apply("orders", 3)
    subject.table.transactions.forget({"orders": 7})
    subject.append()
    subject.apply("orders", 90)
    subject.table.cleanup.write_checkpoint()
    subject.reopen()
    assert subject.table.transactions.version_of("orders") == 181
    assert subject.breaches() == []


def test_a_reload_keeps_what_was_not_yet_taken_back(subject: Subject) -> None:
    subject.apply("orders", 3)
    subject.table.transactions.forget({"orders": 7})
    subject.table.reload()
    subject.append()
    assert subject.table.transactions.version_of("orders") == 7


def test_an_id_that_has_come_back_since_it_was_asked_about_is_not_forgotten(subject: Subject) -> None:
    subject.apply("orders", 3)
    subject.apply("orders", 90)
    subject.table.transactions.forget({"orders": 7})
    subject.append()
    assert subject.table.transactions.version_of("orders") == 181


def test_ids_are_old_by_their_last_transaction_until_they_are_being_forgotten(subject: Subject) -> None:
    subject.apply("orders", 3)
    subject.apply("bills", 0, epoch=5)
    subject.reopen()
    assert subject.table.transactions.find_old(updated_before_ms=NOW_MS) == {}
    assert subject.table.transactions.find_old(updated_before_ms=NOW_MS + 1) == {"orders": 7, "bills": 1}
    subject.table.transactions.forget({"orders": 7})
    assert subject.table.transactions.find_old(updated_before_ms=NOW_MS + 1) == {"bills": 1}


def test_a_version_takes_a_bounded_number_of_ids_back(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_writers, "_TAKEN_BACK_MAX", 2)
    for number, transactional_id in enumerate(("a", "b", "c")):
        subject.apply(transactional_id, 0, epoch=number)
    subject.table.transactions.forget({"a": 1, "b": 1, "c": 1})
    left = []
    for _ in range(2):
        subject.append()
        left.append([each for each in ("a", "b", "c") if subject.table.transactions.version_of(each) != -1])
    assert left == [["c"], []]


# ------------------------------------------------------------------ where the rows are


def proof(epoch: int, number: int = 3) -> AppliedTransaction:
    return AppliedTransaction("orders", number, PRODUCER, epoch)


def test_the_version_that_has_the_rows_of_a_transaction_is_found(subject: Subject) -> None:
    def find(transactional_id: str, number: int) -> TransactionRows | None:
        return subject.table.transactions.find_rows(AppliedTransaction(transactional_id, number, PRODUCER, number))

    subject.append()
    first = subject.apply("orders", 20)
    subject.append()
    second = subject.apply("orders", 21)
    other = subject.apply("other", 5)
    subject.abort("orders", 22)
    subject.append()
    for _ in range(2):
        assert find("orders", 20) == TransactionRows(first, 1)
        assert find("orders", 21) == TransactionRows(second, 4)
        assert find("other", 5) == TransactionRows(other, 6)
        assert [find("orders", number) for number in (19, 22, 23)] == [None] * 3
        subject.reopen()


def test_transactions_that_share_a_version_are_found_each_by_its_rows(subject: Subject) -> None:
    subject.append()
    first = subject.table.state.high_watermark
    outcome = subject.table.append(
        [
            log_batch(first, [b"a", b"b"], producer=(PRODUCER, 3, 0)),
            log_batch(first + 2, [b"c"], producer=(PRODUCER + 1, 0, 0)),
        ],
        leader_epoch=0,
        now_ms=NOW_MS,
        producers=[ProducerProgress(PRODUCER, 3, 1), ProducerProgress(PRODUCER + 1, 0, 0)],
        transactions=[proof(3), AppliedTransaction("bills", 8, PRODUCER + 1, 0)],
    )
    assert isinstance(outcome, Committed)
    subject.append()
    for _ in range(2):
        assert [subject.table.transactions.version_of(name) for name in ("orders", "bills")] == [7, 17]
        assert subject.table.transactions.find_rows(proof(3)) == TransactionRows(outcome.version, first)
        bills = AppliedTransaction("bills", 8, PRODUCER + 1, 0)
        assert subject.table.transactions.find_rows(bills) == TransactionRows(outcome.version, first + 2)
        subject.reopen()
    assert subject.breaches() == []


def test_rows_whose_version_is_dropped_are_found_by_producer_and_epoch(subject: Subject) -> None:
    subject.append()
    first = subject.table.state.high_watermark
    subject.apply("orders", 3)
    subject.apply("orders", 4)
    subject.append()
    subject.table.cleanup.write_checkpoint()
    for gone in range(subject.table.state.version):
        subject.store.delete(f"{FOLDER}/{LOG_FOLDER}/{version_name(gone)}")
    last = subject.table.state.version
    assert subject.table.transactions.find_rows(proof(3)) == TransactionRows(last, first)
    assert subject.table.transactions.find_rows(proof(4, 4)) == TransactionRows(last, first + 2)
    assert subject.table.transactions.find_rows(proof(5, 5)) is None


def test_table_tells_whether_a_producer_has_written_with_an_epoch_until_it_may_have_forgotten(subject: Subject) -> None:
    """A proof of a larger number says nothing of a producer that has no rows."""

    def has_written(producer_id: int, epoch: int) -> bool | None:
        return subject.table.transactions.has_written(AppliedTransaction("a", 1, producer_id, epoch))

    subject.apply("a", 99, epoch=3)
    for _ in range(2):
        assert [has_written(PRODUCER, epoch) for epoch in (2, 3, 4)] == [True, True, False]
        assert has_written(PRODUCER + 1, 0) is False
        subject.reopen()
    subject.table.producers.forget(updated_before_ms=NOW_MS + 1)
    for _ in range(2):
        assert [has_written(PRODUCER, 3), has_written(PRODUCER - 1, 0)] == [None, None]
        assert has_written(PRODUCER + 1, 0) is False
        subject.append()
