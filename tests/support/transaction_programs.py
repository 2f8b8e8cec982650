"""Programs of transactions beside a cluster that a test breaks, which die themselves; and what has to be there when
they have ended."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

from deltalake import DeltaTable
from pyarrow import parquet

from bus import BusError, Consumer, Producer, TopicPartition
from bus.errors import ErrorCode
from bus.storage_delta.log.listing import partition_folder
from tests.support.chaos_programs import SETTLE_S, Program
from tests.support.earlier_version import environment_of_version

ACCOUNTS = [TopicPartition("accounts", number) for number in range(3)]
COPIES = [TopicPartition("copies", number) for number in range(2)]
TIMEOUT_MS = 20_000


class Writer(Program):
    """Transaction after transaction of one id, by instances that now and then die in the middle. The value of a record
    names its transaction and how many records that has in the partition."""

    def __init__(self, addresses: list[str], name: str, seed: int) -> None:
        super().__init__()
        self._addresses = addresses
        self.name = name
        self._chance = random.Random(f"{seed}-{name}")
        self._producer: Producer | None = None
        self._number = 0
        self.sent: dict[str, Counter[int]] = {}  # by transaction: records in each partition
        self.committed: set[str] = set()
        self.aborted: set[str] = set()

    def step(self) -> None:
        producer = self._producer
        if producer is None:
            producer = Producer(
                self._addresses,
                transactional_id=self.name,
                transaction_timeout_ms=TIMEOUT_MS,
                max_block_ms=120_000,
                linger_ms=0,
            )
            producer.init_transactions()
            self._producer = producer
        self._number += 1
        name = f"{self.name}/{self._number}"
        count = self._chance.randint(1, 6)
        self.sent[name] = Counter(self._chance.randrange(len(ACCOUNTS)) for _ in range(count))
        try:
            self._write(producer, name)
        except BusError as error:
            self._give_up(producer, name, error)

    def _write(self, producer: Producer, name: str) -> None:
        producer.begin_transaction()
        for partition, count in self.sent[name].items():
            for _ in range(count):
                producer.send("accounts", f"{name}:{count}".encode(), partition=partition)
        end = self._chance.random()
        if end < 0.1:
            self._die(producer)
        elif end < 0.3:
            producer.abort_transaction()
            self.aborted.add(name)
        else:
            producer.commit_transaction()
            self.committed.add(name)

    def _give_up(self, producer: Producer, name: str, error: BusError) -> None:
        """A commit that was refused is aborted; one of which nothing is known stays so."""
        if error.code is ErrorCode.REQUEST_TIMED_OUT:
            self._die(producer)
            return
        try:
            producer.abort_transaction()
            self.aborted.add(name)
        except BusError:
            self._die(producer)

    def _die(self, producer: Producer) -> None:
        self._producer = None
        producer.close(timeout=0)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout=10)


class KilledWriter(Program):
    """Processes of one transactional id, each killed in the middle of what it does. `code`: the folder of another
    version's package, in which they run."""

    def __init__(self, addresses: list[str], name: str, seed: int, journal: Path, *, code: Path | None = None) -> None:
        super().__init__()
        self._code = code
        self._arguments = [str(journal), ",".join(addresses), name]
        self.name = name
        self._seed = seed
        self._journal = journal
        self._journal.touch()  # on a busy machine each process may be killed before it notes anything
        self._chance = random.Random(f"{seed}-{name}")
        self.killed = 0

    def step(self) -> None:
        arguments = [*self._arguments, f"{self.name}/{self.killed}", str(self._seed), str(len(ACCOUNTS))]
        command = [sys.executable, "-m", "tests.support.transactional_writer", *arguments]
        environment = os.environ if self._code is None else environment_of_version(self._code)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment, cwd=self._code) as process:
            self._is_over.wait(self._chance.uniform(1.0, 6.0))
            process.kill()
        self.killed += 1

    def check_rows(self, found: dict[str, Counter[int]]) -> None:
        """Check like `check_writers`, by what the processes have noted."""
        sent: dict[str, Counter[int]] = {}
        told: dict[str, str] = {}
        for line in self._journal.read_text().splitlines():
            what, name, counts = json.loads(line)
            if what == "sent":
                sent[name] = Counter({int(partition): count for partition, count in counts.items()})
            else:
                told[name] = what
        for name, counts in sent.items():
            if told.get(name) == "committed":
                assert found[name] == counts, f"{name} was committed"
            elif told.get(name) == "aborted":
                assert not found[name], f"{name} was aborted"
            else:
                assert found[name] in (counts, Counter()), f"{name} is there in part"


class Copier(Program):
    """Copies each record of `accounts` once: what it reads and what it writes are one transaction."""

    def __init__(self, addresses: list[str], name: str, seed: int) -> None:
        super().__init__()
        self._addresses = addresses
        self.name = name
        self._chance = random.Random(f"{seed}-{name}")
        self._stack = ExitStack()
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None

    def step(self) -> None:
        if self._consumer is None or self._producer is None:
            self._start()
            return
        records = self._consumer.poll(200)
        if not records:
            return
        try:
            with self._producer.transaction() as producer:
                offsets = {}
                for record in records:
                    value = f"{record.partition}/{record.offset}".encode()
                    producer.send("copies", value, partition=record.partition % len(COPIES))
                    offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1
                producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())
            if self._chance.random() < 0.05:
                self.close()
        except BusError:
            self.close()  # the next instance begins where the group's offsets are

    def _start(self) -> None:
        self._producer = Producer(
            self._addresses,
            transactional_id=self.name,
            transaction_timeout_ms=TIMEOUT_MS,
            max_block_ms=120_000,
            linger_ms=0,
        )
        self._producer.init_transactions()
        self._consumer = Consumer(
            self._addresses,
            group_id="copiers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
        )
        self._consumer.subscribe(["accounts"])

    def close(self) -> None:
        consumer, producer, self._consumer, self._producer = self._consumer, self._producer, None, None
        if consumer is not None:
            consumer.close()
        if producer is not None:
            producer.close(timeout=0)


class VersionReader(Program):
    """Reads every version of the tables of `accounts` with delta-rs: of each transaction all rows of a partition come
    in one version."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._next: dict[TopicPartition, int] = defaultdict(int)
        self._values: dict[str, Counter[str]] = {}  # by data file
        self.seen: dict[TopicPartition, Counter[str]] = {one: Counter() for one in ACCOUNTS}
        self.versions = 0

    def step(self) -> None:
        for one in ACCOUNTS:
            table = DeltaTable(str(self._root / partition_folder(one)))
            for version in range(self._next[one], table.version() + 1):
                table.load_as_version(version)
                self._check(f"version {version} of {one}", one, table.file_uris())
                self.versions += 1
            self._next[one] = table.version() + 1
        time.sleep(0.2)

    def _check(self, version: str, one: TopicPartition, files: list[str]) -> None:
        found: Counter[str] = Counter()
        for file in files:
            if file not in self._values:  # a data file never changes, so each is read once
                values = parquet.read_table(file, columns=["value"]).column("value").to_pylist()
                self._values[file] = Counter(value.decode() for value in values)
            found.update(self._values[file])
        for value, count in found.items():
            wanted = int(value.rpartition(":")[2])
            assert count == wanted, f"{version}: {count} rows of {value}, expected {wanted}"
        for value, count in self.seen[one].items():
            assert found[value] == count, f"{version}: the rows of {value} are gone"
        self.seen[one] = found


def settle_transactions(addresses: list[str], names: list[str]) -> None:
    """A new instance ends what was left open."""
    for name in names:
        with Producer(addresses, transactional_id=name, max_block_ms=120_000) as producer:
            producer.init_transactions()


def values_of(root: Path, partition: TopicPartition) -> list[str]:
    table = DeltaTable(str(root / partition_folder(partition))).to_pyarrow_table(columns=["offset", "value"])
    return [row["value"].decode() for row in sorted(table.to_pylist(), key=lambda row: int(row["offset"]))]


def wait_for_copies(root: Path, programs: list[Program]) -> dict[TopicPartition, list[str]]:
    """Wait until each record is copied; none may be copied twice."""
    rows = {one: values_of(root, one) for one in ACCOUNTS}
    wanted = {f"{one.partition}/{offset}" for one, values in rows.items() for offset in range(len(values))}
    deadline_s = time.monotonic() + SETTLE_S + 2 * TIMEOUT_MS / 1000
    while True:
        copies = [value for one in COPIES for value in values_of(root, one)]
        assert len(copies) == len(set(copies)), "a record was copied twice"
        assert set(copies) <= wanted, "a record was copied that is not there"
        if len(copies) == len(wanted):
            return rows
        for program in programs:
            program.check()
        assert time.monotonic() < deadline_s, f"{len(copies)} of {len(wanted)} records were copied"
        time.sleep(0.2)


def check_writers(writers: list[Writer], killed: KilledWriter, rows: dict[TopicPartition, list[str]]) -> None:
    """Check that committed rows exist, aborted ones do not, and that every other transaction exists as a whole or not
    at all."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for one, values in rows.items():
        for value in values:
            found[value.rpartition(":")[0]][one.partition] += 1
    killed.check_rows(found)
    for writer in writers:
        for name, sent in writer.sent.items():
            if name in writer.committed:
                assert found[name] == sent, f"{name} was committed"
            elif name in writer.aborted:
                assert not found[name], f"{name} was aborted"
            else:
                assert found[name] in (sent, Counter()), f"{name} is there in part"
        numbers = [int(name.rpartition("/")[2]) for name in found if name.startswith(f"{writer.name}/")]
        assert len(numbers) == len(set(numbers))
