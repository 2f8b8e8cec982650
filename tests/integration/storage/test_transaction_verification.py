"""`bus log verify` on transactions: what a broker does is sound, and each way to tear a transaction is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bus.ports import AppliedTransaction, Committed, ProducerProgress
from bus.storage_delta.log.listing import LOG_FOLDER, version_name
from tests.support.stores import NOW_MS, log_batch
from tests.support.table_bench import DAY_MS, FOLDER, TableBench

PRODUCER = 41


class Bench(TableBench):
    def apply(
        self,
        number: int,
        *,
        epoch: int | None = None,
        first: int = 0,
        count: int = 3,
        named_epoch: int | None = None,
        is_proved: bool = True,
    ) -> int:
        """A transaction of PRODUCER, or what was to be one; returns its first offset."""
        epoch, offset = number if epoch is None else epoch, self.table.state.high_watermark
        keys = [b"%d" % (position % 2) for position in range(count)]
        batch = log_batch(offset, [b"v"] * count, keys=keys, producer=(PRODUCER, epoch, first))
        proof = AppliedTransaction("orders", number, PRODUCER, epoch if named_epoch is None else named_epoch)
        outcome = self.table.append(
            [batch],
            leader_epoch=0,
            now_ms=NOW_MS,
            producers=[ProducerProgress(PRODUCER, epoch, first + count - 1)],
            transactions=[proof] if is_proved else [],
        )
        assert isinstance(outcome, Committed)
        return offset

    def found(self) -> list[str]:
        return [str(breach).removeprefix("prices-0: ") for breach in self.breaches()]

    def found_of_transactions(self) -> list[str]:
        """Without what the check of producers finds, too."""
        return [breach for breach in self.found() if breach.startswith("transactions ")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ------------------------------------------------------------------ what a broker does


def test_transactions_stay_whole_through_all_that_maintenance_does(bench: Bench) -> None:
    for number in range(4):
        bench.apply(number)
        bench.append((b"plain", b"v"), producer=(7, 0, number))
    assert bench.found() == []
    bench.roll(0, 3)
    assert bench.found() == []
    bench.compact()
    assert bench.found() == []
    bench.apply(4)
    bench.table.cleanup.advance_log_start(bench.table.state.high_watermark - 2, leader_epoch=0, now_ms=NOW_MS)
    assert bench.found() == []


def test_what_versions_said_that_are_gone_is_not_judged(bench: Bench) -> None:
    bench.apply(0)
    bench.apply(1)
    bench.now_ms = NOW_MS + DAY_MS
    bench.table.cleanup.write_checkpoint()
    dropped = bench.table.cleanup.drop_old_versions(
        committed_before_ms=NOW_MS + DAY_MS, count_max=1, removed_before_ms=NOW_MS + DAY_MS
    )
    assert dropped.versions > 0
    bench.apply(2)
    assert bench.found() == []


def test_other_rows_may_share_the_version(bench: Bench) -> None:
    one = log_batch(0, [b"a", b"b"], producer=(PRODUCER, 0, 0))
    plain = log_batch(2, [b"c"])
    other = log_batch(3, [b"d"], producer=(42, 5, 0))
    rest = replace(log_batch(4, [b"e"], producer=(42, 5, 1)))
    bench.table.append(
        [one, plain, other, rest],
        leader_epoch=0,
        now_ms=NOW_MS,
        producers=[ProducerProgress(PRODUCER, 0, 1), ProducerProgress(42, 5, 1)],
        transactions=[AppliedTransaction("orders", 0, PRODUCER, 0), AppliedTransaction("bills", 8, 42, 5)],
    )
    assert bench.found() == []


def test_what_is_staged_is_no_damage(bench: Bench) -> None:
    bench.apply(0)
    for name in ("41-3-0-4.arrow", "torn.arrow", ".writing-1"):
        bench.store.put(f"{FOLDER}/_staged/7/{name}", b"torn")
    assert bench.found() == []


# ------------------------------------------------------------------ what no broker does


def test_rows_of_a_transaction_in_another_version_are_found(bench: Bench) -> None:
    bench.apply(0, count=2)
    bench.apply(0, first=2, is_proved=False)
    assert bench.found_of_transactions() == [
        f"transactions are whole: {bench.table.rewrites.files[1].path} (version 2): expected bus/txn/orders at offsets "
        "0 to 1, those of version 1, found a row of it at offset 2"
    ]


def test_rows_of_a_transaction_in_an_earlier_version_are_found(bench: Bench) -> None:
    bench.apply(0, is_proved=False)
    bench.apply(0, first=3)
    found = bench.found_of_transactions()
    assert "expected bus/txn/orders at offsets 3 to 5, those of version 2, found a row of it at offset 0" in found[0]


def test_rows_without_a_proof_are_found(bench: Bench) -> None:
    bench.apply(0)
    bench.apply(1, is_proved=False)
    (found,) = bench.found_of_transactions()
    assert "expected a proof of producer 41, which has transactions, for epoch 1, found none for the rows from" in found


def test_a_proof_without_its_rows_is_found(bench: Bench) -> None:
    bench.apply(0, epoch=0, named_epoch=5)
    found = bench.found_of_transactions()
    assert len(found) == 2
    assert "for epoch 0" in found[0]
    assert "expected the rows of bus/txn/orders, found none" in found[1]


def test_a_missing_begin_is_found(bench: Bench) -> None:
    bench.apply(0, first=1)
    (found,) = bench.found_of_transactions()
    assert "expected bus/txn/orders with all sequences from 0 to 3, found 3 of them" in found


def test_rows_out_of_order_are_found(bench: Bench) -> None:
    one, other = (log_batch(at, [b"v"], producer=(PRODUCER, 0, sequence)) for at, sequence in ((0, 0), (2, 1)))
    bench.table.append(
        [one, log_batch(1, [b"between"]), other],
        leader_epoch=0,
        now_ms=NOW_MS,
        producers=[ProducerProgress(PRODUCER, 0, 1)],
        transactions=[AppliedTransaction("orders", 0, PRODUCER, 0)],
    )
    (found,) = bench.found_of_transactions()
    assert "expected sequence 2 of bus/txn/orders at offset 2, found 1" in found


@pytest.mark.parametrize("number", [2, 3])
def test_a_transaction_that_ends_again_is_found(bench: Bench, number: int) -> None:
    bench.apply(3)
    bench.table.transactions._txns.clear()
    bench.apply(number, epoch=9)
    (found,) = bench.found_of_transactions()
    assert found.startswith("transactions end once")
    assert f"expected bus/txn/orders above 7, found {2 * number + 1}" in found


def test_two_proofs_of_one_epoch_are_found(bench: Bench) -> None:
    bench.apply(0)
    bench.apply(1, epoch=1, named_epoch=0)
    found = bench.found_of_transactions()
    assert "a producer epoch of its own for bus/txn/orders, found 0 of producer 41" in found[0]


def _tampered(bench: Bench, old: bytes, new: bytes) -> Sequence[str]:
    """The last version by a writer that says other things."""
    key = f"{FOLDER}/{LOG_FOLDER}/{version_name(bench.table.state.version)}"
    data = bench.store.get(key)
    assert old in data
    begin = data.index(b'"fileCrc32"')
    bench.store.put(key, (data[:begin] + data[data.index(b",", begin) + 1 :]).replace(old, new))
    return bench.found_of_transactions()


def test_a_proof_that_names_no_producer_is_found(bench: Bench) -> None:
    bench.apply(0)
    (found,) = _tampered(bench, b'"transactions":{"bus/txn/orders":[41,0]},', b"")
    assert "expected the producers of bus/txn/orders, found those of none" in found


@pytest.mark.parametrize("said", [b"null", b"7", b"[41]", b'{"a":[1]}', b'{"bus/txn/orders":["41",0]}', b'"[]"'])
def test_a_malformed_name_is_no_name(bench: Bench, said: bytes) -> None:
    bench.apply(0)
    (found,) = _tampered(bench, b'{"bus/txn/orders":[41,0]}', said)
    assert "found those of none" in found


def test_a_proof_that_is_left_out_is_found(bench: Bench) -> None:
    bench.apply(0)
    (found,) = _tampered(bench, b'"appId":"bus/txn/orders"', b'"appId":"another/orders"')
    assert "expected the producers of none, found those of bus/txn/orders" in found
