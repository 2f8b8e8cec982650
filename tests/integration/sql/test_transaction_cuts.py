"""SQL at a transaction: what it left in all partitions, whatever came later."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

import bus.sql
from bus import Admin, BusError, ErrorCode, NewTopic
from bus.cli.main import cli
from bus.errors import Refused, StorageFault
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.model import TopicPartition
from bus.runtime.coordinators import shard
from bus.runtime.partitions import partition_transactions
from bus.settings.broker import BrokerConfig
from bus.sql import SqlError, connection
from bus.tables import transaction_cuts
from bus.tables.topics import TopicTables
from bus.tables.transaction_cuts import TransactionCut, find_cut
from bus.transactions.state import ProducerIdentity
from tests.support.broker_thread import running_broker
from tests.support.hand_written_root import HandWrittenRoot
from tests.support.hand_written_transactions import HandWrittenTransactions
from tests.support.transactional_producer import Producer

CONFIG = BrokerConfig(transaction_state_log_num_partitions=2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Any]:
    with running_broker(tmp_path / "root", config=CONFIG) as running:
        with Admin(f"127.0.0.1:{running.port}") as admin:
            admin.create_topics([NewTopic("t", 2), NewTopic("u", 1)])
        yield running


def new_producer(broker: Any, transactional_id: str = "payments") -> Producer:
    stub = bus_pb2_grpc.BusStub(grpc.insecure_channel(f"127.0.0.1:{broker.port}"))
    key_type = pb.COORDINATOR_TYPE_TRANSACTION
    stub.FindCoordinator(pb.FindCoordinatorRequest(key=transactional_id, key_type=key_type), timeout=30)
    producer = Producer(stub, transactional_id)
    producer.init()
    return producer


def transact(producer: Producer, value: bytes, *partitions: tuple[str, int]) -> None:
    for topic, partition in partitions:
        assert producer.send([value], partition, topic).error_code == pb.ERROR_CODE_NONE
    assert producer.commit().error_code == pb.ERROR_CODE_NONE


def values(root: Path, **moment: Any) -> list[tuple[str, int, str]]:
    query = "SELECT topic, partition, value FROM t UNION ALL SELECT topic, partition, value FROM u ORDER BY ALL"
    with bus.sql.connect(str(root), **moment) as connection:
        found: list[tuple[str, int, str]] = connection.sql(query).fetchall()
    return found


def test_a_cut_has_all_of_the_transaction_and_nothing_later(broker: Any, tmp_path: Path) -> None:
    payments, others = new_producer(broker), new_producer(broker, "others")
    transact(others, b"before", ("t", 0), ("u", 0))
    transact(payments, b"first", ("t", 0), ("t", 1))
    root = tmp_path / "root"
    left = [("t", 0, "before"), ("t", 0, "first"), ("t", 1, "first"), ("u", 0, "before")]
    assert values(root, at_transaction="payments") == left
    transact(others, b"after", ("t", 0), ("t", 1), ("u", 0))
    assert values(root, at_transaction="payments") == left
    assert len(values(root)) == len(left) + 3
    assert len(values(root, at_transaction="others")) == len(left) + 3
    payments.send([b"open"])
    assert values(root, at_transaction="payments") == left, "the open transaction left nothing yet"
    payments.abort()
    assert values(root, at_transaction="payments") == left
    transact(payments, b"second", ("u", 0))
    assert values(root, at_transaction="payments") == sorted(
        [*left, ("t", 0, "after"), ("t", 1, "after"), ("u", 0, "after"), ("u", 0, "second")]
    )


def test_the_command_reads_at_a_transaction(broker: Any, tmp_path: Path) -> None:
    producer = new_producer(broker)
    transact(producer, b"first", ("t", 0))
    transact(new_producer(broker, "others"), b"later", ("t", 0))
    arguments = ["sql", "SELECT value FROM t", "--at-transaction", "payments", "--root", str(tmp_path / "root")]
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stdout) == (0, '[{"value": "first"}]\n')
    both = CliRunner().invoke(cli, [*arguments, "--at-version", "1"])
    assert (both.exit_code, "expected --at-version or --at-transaction, found both" in both.stderr) == (2, True)
    arguments[3] = "nobody"
    unknown = CliRunner().invoke(cli, arguments)
    assert unknown.exit_code == 1
    assert "TRANSACTIONAL_ID_NOT_FOUND: expected a transactional id of" in unknown.stderr
    assert unknown.stderr.count("those that exist") == 1


def test_commits_that_only_their_partition_proves_have_a_cut(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are missing, as if the coordinator had died with them, and nothing had asked for the id since."""
    monkeypatch.setattr(shard, "_LOG_LATER_S", 3_600.0)
    monkeypatch.setattr(transaction_cuts, "_COMPLETION_S", 0.05)
    payments, others = new_producer(broker), new_producer(broker, "others")
    for value in (b"first", b"second", b"third"):
        transact(payments, value, ("t", 0))
    cut = find_cut(TopicTables(str(tmp_path / "root")), "payments")
    assert cut.versions == {TopicPartition("t", 0): 3}
    transact(others, b"later", ("t", 0), ("u", 0))
    left = [("t", 0, "first"), ("t", 0, "second"), ("t", 0, "third")]
    assert values(tmp_path / "root", at_transaction="payments") == left


# ------------------------------------------------------------ other transactions, in all of their partitions or none


class JumpingClock:
    """A wall clock that says something else each time it is asked, as the clocks of many leaders do."""

    def __init__(self, seed: int, reach_ms: int) -> None:
        self._chance, self._reach_ms = random.Random(seed), reach_ms

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._chance.randrange(-self._reach_ms, self._reach_ms + 1)

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1_000


def amounts_at(tables: TopicTables, cut: TransactionCut) -> list[int]:
    found: list[int] = []
    for partition in (*tables.partitions("t"), *tables.partitions("u")):
        columns = ["value", "producer_id", "producer_epoch"]
        rows = tables.read_rows(partition, columns, cut.version_of(tables, partition)).to_pylist()
        hidden = cut.hidden_rows(partition)
        found += [int(row["value"]) for row in rows if (row["producer_id"], row["producer_epoch"]) not in hidden]
    return found


@pytest.mark.parametrize("reach_ms", [0, 1_000_000])
def test_bank_whose_transfers_touch_different_partitions_keeps_its_money_at_every_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reach_ms: int
) -> None:
    monkeypatch.setattr(transaction_cuts, "_COMPLETION_S", 60.0)  # of each id the first transaction is waited for
    chance, ids = random.Random(reach_ms), ("a", "b", "c")
    accounts = [("t", 0), ("t", 1), ("u", 0)]
    with running_broker(tmp_path / "root", config=CONFIG, clock=JumpingClock(7, reach_ms)) as running:
        with Admin(f"127.0.0.1:{running.port}") as admin:
            admin.create_topics([NewTopic("t", 2), NewTopic("u", 1)])
        producers = [new_producer(running, each) for each in ids]
        tables = TopicTables(str(tmp_path / "root"))
        for _ in range(4):
            for producer in chance.sample(producers, len(producers)):
                touched = chance.sample(accounts, chance.randrange(1, 4))
                amounts = [chance.randrange(-9, 10) for _ in touched[1:]]
                for (topic, partition), amount in zip(touched, [-sum(amounts), *amounts], strict=True):
                    assert producer.send([b"%d" % amount], partition, topic).error_code == pb.ERROR_CODE_NONE
                assert producer.commit().error_code == pb.ERROR_CODE_NONE
            for each in ids:
                amounts = amounts_at(tables, find_cut(tables, each))
                assert sum(amounts) == 0, f"at the cut of {each}: {amounts}"
            monkeypatch.setattr(transaction_cuts, "_COMPLETION_S", 0.0)  # the cut of an earlier one will do


def test_rows_of_a_transaction_that_is_there_in_part_are_not_seen(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come before in the partitions of the transaction that the cut is of; in others it comes behind the cut."""
    payments, others = new_producer(broker), new_producer(broker, "others")
    who = ProducerIdentity(others.producer_id, others.epoch)
    transact(others, b"in part", ("t", 0), ("u", 0))
    transact(payments, b"whole", ("t", 0), ("t", 1))
    cut = find_cut(TopicTables(str(tmp_path / "root")), "payments")
    hidden = replace(cut, hidden={TopicPartition("t", 0): frozenset({who})})
    monkeypatch.setattr(connection, "find_cut", lambda *_: hidden)
    left = [("t", 0, "whole"), ("t", 1, "whole"), ("u", 0, "in part")]
    assert values(tmp_path / "root", at_transaction="payments") == left


def test_transaction_that_is_still_being_applied_is_no_part_of_a_cut(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payments, others = new_producer(broker), new_producer(broker, "others")
    transact(others, b"before", ("t", 0), ("u", 0))
    write = partition_transactions.PartitionTransactions.apply

    async def hold(self: Any, *about: Any) -> Any:
        if self._name == TopicPartition("u", 0):
            return Refused(ErrorCode.LEADER_NOT_AVAILABLE, "not now")
        return await write(self, *about)

    monkeypatch.setattr(partition_transactions.PartitionTransactions, "apply", hold)
    for topic in ("t", "u"):
        others.send([b"flying"], 0, topic)
    ending = threading.Thread(target=others.commit)
    ending.start()
    root = tmp_path / "root"
    while len(values(root)) < 3:
        time.sleep(0.01)
    transact(payments, b"own", ("t", 0))
    left = [("t", 0, "before"), ("t", 0, "own"), ("u", 0, "before")]
    try:
        assert values(root, at_transaction="payments") == left
    finally:
        monkeypatch.setattr(partition_transactions.PartitionTransactions, "apply", write)
        ending.join()
    assert len(values(root)) == 5
    assert len(values(root, at_transaction="payments")) in (3, 5), "it is there in both, or in none"


# ------------------------------------------------------------ what the log says


@pytest.fixture
def written(tmp_path: Path) -> HandWrittenTransactions:
    root = HandWrittenRoot(tmp_path / "written")
    root.create_topic("t", partitions=2)
    return HandWrittenTransactions(root)


def cut_versions(written: HandWrittenTransactions, transactional_id: str) -> dict[TopicPartition, int]:
    return dict(find_cut(TopicTables(str(written.root.folder)), transactional_id).versions)


def test_only_partitions_with_rows_have_a_version(written: HandWrittenTransactions) -> None:
    written.store("a", "CompleteCommit", 1, {("t", 0): (1, 0), ("t", 1): (-1, -1)})
    written.store("b", "CompleteCommit", 1, {("t", 1): (7, 0)})
    assert cut_versions(written, "a") == {TopicPartition("t", 0): 1}


def test_a_topic_that_was_made_again_took_no_part(written: HandWrittenTransactions) -> None:
    written.store("a", "CompleteCommit", 1, {("t", 0): (1, 0)})
    written.root.topic_ids["t"] = "00000000-0000-0000-0000-000000000000"
    written.store("b", "CompleteCommit", 1, {("t", 0): (1, 0)})
    assert cut_versions(written, "a") == {TopicPartition("t", 0): 1}
    assert cut_versions(written, "b") == {}


def test_a_commit_whose_end_is_not_logged_yet_is_waited_for(
    written: HandWrittenTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.store("a", "CompleteCommit", 1, {("t", 0): (1, 0)})
    written.store("a", "PrepareCommit", 2, {("t", 0): (-1, -1)})
    looks = []

    def pass_time(_: float) -> None:
        looks.append(1)
        if len(looks) == 3:
            written.store("a", "CompleteCommit", 2, {("t", 0): (5, 4)})

    monkeypatch.setattr(transaction_cuts.time, "sleep", pass_time)
    assert cut_versions(written, "a") == {TopicPartition("t", 0): 5}


def test_a_commit_that_does_not_end_is_not_waited_for_long(
    written: HandWrittenTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.store("a", "CompleteCommit", 1, {("t", 0): (1, 0)})
    written.store("a", "PrepareCommit", 2, {("t", 0): (-1, -1)})
    monkeypatch.setattr(transaction_cuts, "_COMPLETION_S", 0.0)
    assert cut_versions(written, "a") == {TopicPartition("t", 0): 1}


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        (["CompleteCommit", None], ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        (["CompleteCommit", None, "Empty"], ErrorCode.INVALID_TXN_STATE),
        (["Empty", "Ongoing", "PrepareCommit"], ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_an_id_that_committed_nothing_has_no_cut(
    written: HandWrittenTransactions, states: list[str | None], code: ErrorCode
) -> None:
    for number, state in enumerate(states, start=1):
        if state is None:
            written.expire("a")
        else:
            written.store("a", state, number)
    with pytest.raises(BusError) as caught:
        bus.sql.connect(str(written.root.folder), at_transaction="a")
    assert caught.value.code is code


def test_a_record_that_compaction_has_removed_is_in_the_version_before(written: HandWrittenTransactions) -> None:
    written.store("a", "CompleteCommit", 1, {("t", 0): (1, 0)})
    written.store("a", "CompleteCommit", 2, {("t", 0): (2, 1)})
    written.store("a", "Empty", 3)
    table = written.table_of("a")
    for base_offset in (0, 1):
        remove = {"path": table.adds[base_offset]["path"], "deletionTimestamp": 1, "dataChange": False}
        table.commit({"commitInfo": {"operation": "OPTIMIZE", "isBlindAppend": False}}, {"remove": remove})
    assert cut_versions(written, "a") == {TopicPartition("t", 0): 2}
    (table.folder / table.adds[1]["path"]).unlink()
    with pytest.raises(BusError, match="found the id Empty, and no such record in the versions that are kept"):
        cut_versions(written, "a")


def test_a_record_that_cannot_be_read_is_told(written: HandWrittenTransactions) -> None:
    written.store("a", "CompleteCommit", 1)
    written.store("a", "Unheard", 2)
    with pytest.raises(StorageFault, match=r"__transaction_state-\d: a: .*expected one of Empty"):
        cut_versions(written, "a")


def test_a_version_that_is_gone_is_told(written: HandWrittenTransactions) -> None:
    written.store("a", "CompleteCommit", 1, {("t", 0): (3, 0)})
    gone = pytest.raises(SqlError, match="expected one of the versions that are there, 0 to 0, found 3")
    with bus.sql.connect(str(written.root.folder), at_transaction="a") as connection, gone:
        connection.sql("SELECT * FROM t")


def test_one_moment_is_looked_at(written: HandWrittenTransactions) -> None:
    with pytest.raises(ValueError, match="expected at_version or at_transaction, found at_version and at_transaction"):
        bus.sql.connect(str(written.root.folder), at_version=1, at_transaction="a")
    with pytest.raises(ValueError, match="expected a transactional id as text, found 7"):
        bus.sql.connect(str(written.root.folder), at_transaction=7)  # type: ignore[arg-type]
