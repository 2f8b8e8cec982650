"""The demo: serve, produce 336,776 real flights, consume them back, query them with two engines.

Guards one promise: every line that claims a fact has checked it; a wrong one ends the demo with exit status 1. It
removes nothing but its own data folder, and leaves no process behind unless it is asked to keep the broker.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bus.client.admin.admin import Admin
from bus.client.consumer.consumer import Consumer
from bus.client.producer.producer import Producer
from bus.client.values import NewTopic
from bus.client_texts import text_for
from bus.demo.flights import (
    DATASETS,
    FLIGHTS,
    Answer,
    ask_embedded,
    ask_spark,
    batches_of,
    count_embedded,
    count_spark,
    load_records,
    start_spark,
)
from bus.errors import BusError, StorageFault, count_of
from bus.extras import ExtraMissing, check_extra
from bus.model import TopicPartition
from bus.platform.signals import EXIT_SIGNAL, signal_of, signals_as_interrupts
from bus.spark import JarsMissing, SparkUnavailable
from bus.storage_delta.root import open_storage

_READY = re.compile(r"ready: (\S+) serves ")
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 15.0


class BrokerFailed(RuntimeError):
    """The broker did not start; the message has what it said."""


def make_fresh_root(root: Path) -> None:
    """An empty bus root, in place of an older one that is there. Raises `RootNotUsable` or `RootInUse`."""
    open_storage(str(root), holder="the demo, which is making the folder again").close()
    shutil.rmtree(root)
    open_storage(str(root)).close()


class BrokerProcess:
    """Runs until `stop`; a session of its own, so that Ctrl-C reaches only the one who stops it in order."""

    def __init__(self, root: Path) -> None:
        """Starts and waits until it is ready. Raises `BrokerFailed`."""
        self.log = root / "broker.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bus", "serve", "--root", str(root), "--listen", "127.0.0.1:0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.address = self._wait_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Asks it to finish and answer what is in flight; kills it if that takes too long. Safe to repeat."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def leave_running(self) -> None:
        """Let go of it: it outlives this process."""
        self._process.returncode = 0  # else the interpreter warns of a child that is still running

    def _wait_ready(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        said = b""
        with self._process.stdout as output, selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(output.fileno(), 4096)
                said += chunk
                ready = _READY.search(said.decode(errors="replace"))
                if ready is not None:
                    return ready[1]
                if not chunk:
                    break
        reason = self.log.read_text(encoding="utf-8", errors="replace").strip() or "it said nothing"
        raise BrokerFailed(f"expected the broker to be ready within {_START_TIMEOUT_S:.0f} s, found: {reason}")


ROOT = Path("bus-demo-data")
_BATCH_RECORDS = 10_000
_ANSWER_TIMEOUT_S = 60.0
_INDENT = " " * 18


class DemoFailed(Exception):
    """The result differs from what the bus promises, or a part of the demo could not be started."""


@dataclass(slots=True)
class Acknowledged:
    """The records of one topic that the broker has acknowledged."""

    record_count: int = 0
    versions: dict[str | TopicPartition, int] = field(default_factory=dict)  # the last Delta version of each partition


class Demo:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._tables: dict[str, pa.Table] = {}

    def run(self, root: Path, *, keep: bool) -> None:
        started = time.monotonic()
        make_fresh_root(root)
        broker = BrokerProcess(root)
        is_kept = False
        try:
            self._say("serve", f"broker at {broker.address} on ./{root}", started)
            self._load_data()
            flights = self._produce(broker.address)
            self._consume(broker.address)
            embedded = self._query_embedded(root, flights)
            self._query_spark(root, flights, embedded)
            self._print(f"\nAll of it in {time.monotonic() - started:.0f} s.")
            is_kept = keep
        finally:
            broker.leave_running() if is_kept else broker.stop()
        self._say_what_next(root, broker if is_kept else None)

    def _say(self, step: str, text: str, started: float) -> None:
        seconds = time.monotonic() - started
        self._print(f"[bold cyan]{step:<8}[/] [dim]{seconds:5.1f} s[/]  {text}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _load_data(self) -> None:
        started = time.monotonic()
        self._tables = {dataset.topic: load_records(dataset) for dataset in DATASETS}
        counts = ", ".join(f"{table.num_rows:,} {topic}" for topic, table in self._tables.items())
        self._say("data", counts, started)

    # ------------------------------------------------------------------ over gRPC

    def _produce(self, address: str) -> Acknowledged:
        with Admin(address) as admin:
            # The flights are of 2013: no retention by time may ever take them away.
            configs = {"retention.ms": -1}
            admin.create_topics([NewTopic(dataset.topic, dataset.partitions, configs) for dataset in DATASETS])
        with Producer(address) as producer:
            started = time.monotonic()
            flights = self._produce_topic(producer, FLIGHTS.topic)
            seconds = time.monotonic() - started
            rate = flights.record_count / seconds
            self._say("produce", f"{flights.record_count:,} flights acknowledged, {rate:,.0f} a second", started)
            versions = ", ".join(str(version) for version in flights.versions.values())
            self._print(f"{_INDENT}each now a row of a Delta table; last versions by partition: {versions}")
            started = time.monotonic()
            others = [dataset.topic for dataset in DATASETS if dataset is not FLIGHTS]
            count = sum(self._produce_topic(producer, topic).record_count for topic in others)
            self._say("produce", f"{count_of(count, 'record')} of {', '.join(others)}", started)
        return flights

    def _produce_topic(self, producer: Producer, topic: str) -> Acknowledged:
        records = self._tables[topic]
        acknowledged = Acknowledged()
        with self._progress() as progress:
            bar = progress.add_task(f"produce {topic}", total=records.num_rows)
            futures = []
            for batch in batches_of(records, _BATCH_RECORDS):
                future = producer.send_batch(topic, batch)
                future.add_done_callback(functools.partial(_advance, progress, bar, batch.num_rows))
                futures.append(future)
            for future in futures:
                for part in future.result(_ANSWER_TIMEOUT_S):
                    partition = TopicPartition(part.topic, part.partition)
                    acknowledged.record_count += part.record_count
                    acknowledged.versions[partition] = max(acknowledged.versions.get(partition, 0), part.version)
        acknowledged.versions = dict(sorted(acknowledged.versions.items(), key=lambda entry: str(entry[0])))
        _expect(f"records of {topic} acknowledged", acknowledged.record_count, records.num_rows)
        return acknowledged

    def _consume(self, address: str) -> None:
        started = time.monotonic()
        produced = self._tables[FLIGHTS.topic]
        consumed = []
        count = 0
        with Consumer(address, auto_offset_reset="earliest") as consumer, self._progress() as progress:
            bar = progress.add_task("consume flights", total=produced.num_rows)
            consumer.assign(sorted(consumer.partitions_for(FLIGHTS.topic)))
            while count < produced.num_rows:
                table = consumer.poll_arrow(timeout_ms=10_000)
                if table.num_rows == 0:
                    raise DemoFailed(f"expected {produced.num_rows:,} flights, found {count:,} and then nothing")
                consumed.append(table)
                count += table.num_rows
                progress.update(bar, completed=count)
        seconds = time.monotonic() - started
        found = pa.concat_tables(consumed)
        _expect("flights consumed", found.num_rows, produced.num_rows)
        _expect("checksum of the flights consumed", _checksum(found), _checksum(produced))
        self._say("consume", f"{count:,} flights read back, {count / seconds:,.0f} a second", started)
        self._print(f"{_INDENT}same checksum over key, value, time and the order within each key")

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    # ------------------------------------------------------------------ SQL

    def _query_embedded(self, root: Path, flights: Acknowledged) -> Answer:
        started = time.monotonic()
        answer = ask_embedded(root)
        self._say("sql", "which airlines depart latest? the embedded engine answers:", started)
        for airline, count, delay in answer:
            self._print(f"{_INDENT}  {airline:<28}{count:>7,} flights {delay:>6.2f} min")
        started = time.monotonic()
        count = count_embedded(root, flights.versions)
        _expect("embedded count at the last acknowledged versions", count, flights.record_count)
        self._say("sql", f"count at those versions: {count:,}, the number acknowledged", started)
        return answer

    def _query_spark(self, root: Path, flights: Acknowledged, expected: Answer) -> None:
        started = time.monotonic()
        spark = start_spark(root / "spark.log")
        try:
            self._say("spark", f"Spark {spark.version} with Delta is up", started)
            started = time.monotonic()
            answer = ask_spark(spark, root)
            _expect("Spark's answer", answer, expected)
            self._say("spark", "the same question, distributed: the same answer", started)
            started = time.monotonic()
            count = count_spark(spark, root, flights.versions)
            _expect("Spark's count at the last acknowledged versions", count, flights.record_count)
            self._say("spark", f"count at those versions: {count:,}, the number acknowledged", started)
        finally:
            spark.stop()

    # ------------------------------------------------------------------ the end

    def _say_what_next(self, root: Path, broker: BrokerProcess | None) -> None:
        bus = _bus_command()
        lines = [
            f"""{bus} sql --root {root} "SELECT key, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC\"""",
            f"{bus} log describe flights --root {root}",
        ]
        if broker is not None:
            lines.append(f"{bus} consume flights --address {broker.address} --from beginning --max 3")
        else:
            lines.append(f"{bus} serve --root {root}")
        self._console.print("\nTry next:")
        for line in lines:
            self._console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
        if broker is not None:
            self._print(f"\nThe broker runs on at {broker.address}; stop it with: kill {broker.pid}")
        self._print(f"The data stays in ./{root}; remove it with: rm -r {root}")


def _advance(progress: Progress, bar: TaskID, count: int, _: object) -> None:
    progress.advance(bar, count)


def _checksum(records: pa.Table) -> int:
    """Over key, value, timestamp and the place among the records of the same key; the order of keys does not count."""
    records = records.select(["key", "value", "timestamp"])
    import duckdb

    with duckdb.connect() as engine:
        engine.register("records", records.append_column("place", pa.array(range(records.num_rows), pa.int64())))
        query = """
            SELECT sum(hash(key, value, epoch_us(timestamp), nth)::HUGEINT) FROM (
                SELECT *, row_number() OVER (PARTITION BY key ORDER BY place) AS nth FROM records)
        """
        return int(engine.sql(query).fetchall()[0][0])


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise DemoFailed(f"{what}: expected {expected}, found {found}")


def _bus_command() -> str:
    """How this environment's `bus` is called from here."""
    program = Path(sys.executable).with_name("bus")
    return "bus" if shutil.which("bus") == str(program) else os.path.relpath(program)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bus.demo", description="The idea of the bus on real data.")
    parser.add_argument("--keep", action="store_true", help="leave the broker running")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        for extra in ("broker", "sql", "spark", "demo"):
            check_extra(extra)
        with signals_as_interrupts():
            Demo(console).run(ROOT, keep=options.keep)
    except KeyboardInterrupt as interrupt:
        console.print(f"\nInterrupted; the broker is stopped, the data stays in ./{ROOT}.")
        return EXIT_SIGNAL + signal_of(interrupt)
    except (DemoFailed, BrokerFailed, ExtraMissing, JarsMissing, SparkUnavailable, BusError, StorageFault) as error:
        Console(stderr=True).print(
            f"[bold red]The demo failed:[/] {escape(text_for(sys.stderr, str(error)))}", highlight=False, soft_wrap=True
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
