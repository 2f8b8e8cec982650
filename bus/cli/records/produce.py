"""`bus produce`: lines or JSON records, from files or standard input, to a topic.

What a read of the input brings is sent as one batch, so a file goes in large batches and a slow pipe goes at once.
Guards one promise: the summary counts what was acknowledged and nothing else; a line that cannot be read is named by
its number, and the lines before it are sent.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import Failure
from bus.cli.options import (
    COMPRESSIONS,
    address_option,
    parse_properties,
    property_option,
    topic_argument,
)
from bus.cli.output import echo
from bus.cli.partition_arguments import parse_partitions
from bus.cli.records.record_format import InputRecord, decode_record
from bus.errors import count_of

if TYPE_CHECKING:
    import pyarrow as pa

    from bus.client.producer.future import BatchFuture
    from bus.client.producer.producer import Producer
    from bus.client.values import BatchMetadata

_READ_BYTES = 1 << 20
_REQUEST_BYTES_MAX = 32 << 20  # far above a read, so that the broker judges a large record and not the client
_BATCHES_IN_FLIGHT_MAX = 64
_SILENT_SECONDS_MAX = 10
_ENDING_SECONDS_MAX = 1  # an interrupted command that waits for longer says what for


@click.command(
    cls=BusCommand,
    examples="""
    echo hello | bus produce orders
    bus produce orders access.log
    bus produce orders --key-separator : <<< '42:{"amount": 5}'
    bus produce orders --json <<< '{"key": "42", "value": {"amount": 5}, "headers": {"trace": "1"}}'
    bus consume orders --exit --format json | bus produce copy --json
    """,
)
@topic_argument()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="[FILE]...")
@click.option("--json", "is_json", is_flag=True, help="Lines are objects: value, key, headers, partition, timestamp.")
@click.option("--key-separator", "-K", metavar="TEXT", help="What stands before its first occurrence is the key.")
@click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    metavar="KEY=VALUE",
    help="A header of all records; KEY alone: its value is null; repeatable.",
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Where every record goes.  [default: by key]")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", help="all: committed to the Delta table.")
@click.option("--compression", "-z", type=click.Choice(COMPRESSIONS), default="none", help="On the wire.")
@property_option()
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
@address_option(has_properties=True)
def produce(
    topic: str,
    files: tuple[str, ...],
    is_json: bool,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    acks: str,
    compression: str,
    properties: tuple[str, ...],
    quiet: bool,
    address: str,
) -> None:
    """Send records to TOPIC, one a line, from FILEs or standard input.

    With --json, a value that is no text is sent as its JSON text, with every digit, and null is a tombstone; bytes that
    are no UTF-8 come as value_base64 or key_base64; a timestamp is milliseconds or ISO 8601. A line with a name twice
    in an object, or with NaN, is refused.
    """
    from bus.client.producer.producer import Producer

    topic, partition = _parse_topic(topic, partition)
    if is_json and key_separator is not None:
        raise click.UsageError("expected --json or --key-separator, found both")
    parse = _record_parser(is_json, key_separator, _parse_headers(headers))
    settings = {
        "acks": acks,
        "compression_type": compression,
        "max_request_size": _REQUEST_BYTES_MAX,
        "buffer_memory": 64 << 20,
        **parse_properties(properties),
    }
    sending = None
    started = time.monotonic()
    try:
        with Producer(address, **settings) as producer:
            producer.partitions_for(topic)  # a topic that does not exist is told before anything is read
            sending = _Sending(producer, topic, partition, is_quiet=quiet)
            started = time.monotonic()
            try:
                with _progress(files, quiet) as advance:
                    for name in files or ("-",):
                        _send_file(sending, name, parse, advance)
                sending.settle_all()
            except KeyboardInterrupt:
                sending.report_unanswered()
                raise
    finally:  # behind the end of the producer, which has waited for the answers
        if sending is not None and not quiet:
            sending.settle_acknowledged()
            _write_summary(sending, time.monotonic() - started)


def _parse_topic(text: str, partition: int | None) -> tuple[str, int | None]:
    """`orders`, or `orders/0` instead of --partition 0."""
    try:
        topic, numbers = parse_partitions(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None
    if len(numbers) > 1 or (numbers and partition not in (None, numbers[0])):
        raise click.UsageError(f"expected one partition, found {text!r}" + (f" and {partition}" if partition else ""))
    return topic, numbers[0] if numbers else partition


# ------------------------------------------------------------------ lines to records

_Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]
_Parser = Callable[[bytes], InputRecord | None]  # None: a line that holds no record


def _record_parser(is_json: bool, key_separator: str | None, headers: list[tuple[str, bytes | None]]) -> _Parser | None:
    """None if a line is a value and nothing else: then no code looks at single lines."""
    if is_json:
        return lambda line: _with_headers(decode_record(line), headers) if line.strip() else None
    if key_separator is not None:
        separator = key_separator.replace("\\t", "\t").encode()
        return lambda line: _keyed(line, separator, headers)
    if headers:
        return lambda line: InputRecord(None, line, headers, None, None)
    return None


def _with_headers(record: InputRecord, headers: list[tuple[str, bytes | None]]) -> InputRecord:
    if not headers:
        return record
    return InputRecord(record.key, record.value, [*record.headers, *headers], record.partition, record.timestamp_ms)


def _keyed(line: bytes, separator: bytes, headers: list[tuple[str, bytes | None]]) -> InputRecord:
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError(f"expected a key, then {separator.decode()!r}, found a line of {len(line)} bytes without it")
    return InputRecord(key, value, headers, None, None)


def _parse_headers(texts: Sequence[str]) -> list[tuple[str, bytes | None]]:
    """Read headers in their order; a name may come twice, and one without `=` has the value null."""
    pairs = (text.partition("=") for text in texts)
    return [(name, value.encode() if equals else None) for name, equals, value in pairs]


# ------------------------------------------------------------------ sending


@dataclass(slots=True)
class _Sending:
    """The batches that were sent and what came back. Few batches are in flight: a failure must not come a gigabyte
    late."""

    producer: Producer
    topic: str
    partition: int | None
    is_quiet: bool = False
    futures: deque[Any] = field(default_factory=deque)
    record_count: int = 0  # acknowledged, or sent with acks=0
    last: dict[int, BatchMetadata] = field(default_factory=dict)  # by partition

    def send(self, table: pa.Table, partition: int | None) -> None:
        where = self.partition if partition is None else partition
        self.futures.append(self.producer.send_batch(self.topic, table, partition=where))
        while self.futures and (self.futures[0].done() or len(self.futures) > _BATCHES_IN_FLIGHT_MAX):
            self._settle_first()

    def settle_all(self) -> None:
        while self.futures:
            self._settle_first()

    def report_unanswered(self) -> None:
        """Say what an interrupted command still waits for, unless the answers come within a second."""
        unanswered = concurrent.futures.wait(self.futures, _ENDING_SECONDS_MAX).not_done
        if unanswered:
            batches = count_of(len(unanswered), "batch", "batches")
            echo(
                f"waiting for the acknowledgement of {batches}, up to delivery.timeout.ms; "
                "interrupt again to end at once",
                err=True,
            )

    def settle_acknowledged(self) -> None:
        """Count what was acknowledged until the command was ended, but nothing of a batch of which a part failed."""
        for future in self.futures:
            if future.done() and future.exception() is None:
                self._count(future.result())
        self.futures.clear()

    def _settle_first(self) -> None:
        batches = self._wait_for(self.futures[0])
        self.futures.popleft()  # not before: an interrupted wait leaves it to `settle_acknowledged`
        self._count(batches)

    def _count(self, batches: Sequence[BatchMetadata]) -> None:
        for batch in batches:
            self.record_count += batch.record_count
            newest = self.last.get(batch.partition)
            if newest is None or batch.base_offset > newest.base_offset:
                self.last[batch.partition] = batch

    def _wait_for(self, future: BatchFuture) -> Sequence[BatchMetadata]:
        """Says once that no answer comes: a broker that holds a user for a quota does not read what is sent."""
        if not self.is_quiet:
            try:
                return future.result(_SILENT_SECONDS_MAX)
            except TimeoutError:
                self.is_quiet = True
                echo(
                    f"no acknowledgement for {_SILENT_SECONDS_MAX} s, still waiting: a quota (bus quotas usage) or a "
                    "partition without a leader (bus topics describe --unavailable) may be the reason",
                    err=True,
                )
        return future.result()


def _send_file(sending: _Sending, name: str, parse: _Parser | None, advance: Callable[[int], None]) -> None:
    first_line = 1
    with _open(name) as source:
        for lines, size in _read_lines(source):
            if parse is None:
                sending.send(_values_table(lines), None)
            else:
                _send_parsed(sending, name, lines, first_line, parse)
            first_line += len(lines)
            advance(size)


@contextlib.contextmanager
def _open(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb") as file:
        yield file


def _read_lines(source: BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """Whole lines without their ends, as many as a read brings, and the bytes read; a last one may have no end."""
    rest: list[bytes] = []
    while chunk := _read_some(source):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(chunk)
            continue
        text = b"".join([*rest, head])
        rest = [tail]
        lines = text.split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines] if b"\r" in text else lines, len(chunk)
    if last := b"".join(rest):
        yield [last], 0


def _read_some(source: BinaryIO) -> bytes:
    """Read what is there, without waiting until a whole block is."""
    return source.read1(_READ_BYTES) if isinstance(source, io.BufferedReader) else source.read(_READ_BYTES)


def _values_table(lines: list[bytes]) -> pa.Table:
    import pyarrow as pa

    return pa.table({"value": pa.array(lines, pa.binary())})


def _send_parsed(sending: _Sending, name: str, lines: list[bytes], first_line: int, parse: _Parser) -> None:
    """One batch for each partition that is named, one for the rest."""
    by_partition: dict[int | None, list[_Row]] = {}
    problem = None
    for number, line in enumerate(lines, first_line):
        try:
            record = parse(line)
        except ValueError as error:
            problem = f"{'standard input' if name == '-' else name}: line {number}: {error}"
            break
        if record is None:
            continue
        row = (record.key, record.value, record.headers, record.timestamp_ms)
        by_partition.setdefault(record.partition, []).append(row)
    for partition, rows in by_partition.items():
        sending.send(_rows_table(rows), partition)
    if problem is not None:
        sending.settle_all()
        raise Failure(problem)


def _rows_table(rows: list[_Row]) -> pa.Table:
    """Columns that are null in every row are left out; records without a timestamp get that of the batch."""
    import pyarrow as pa

    from bus.records.arrow_batches import records_from_rows

    table = pa.Table.from_batches([records_from_rows(rows)])
    if any(row[3] is None for row in rows) and any(row[3] is not None for row in rows):
        now_ms = time.time_ns() // 1_000_000
        stamped = [(key, value, headers, now_ms if at is None else at) for key, value, headers, at in rows]
        table = pa.Table.from_batches([records_from_rows(stamped)])
    empty = [column for column in ("key", "headers", "timestamp") if table.column(column).null_count == len(rows)]
    return table.drop_columns(empty)


# ------------------------------------------------------------------ for people


@contextlib.contextmanager
def _progress(files: Sequence[str], quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, over bytes; nothing without a terminal, or where the input is typed."""
    if quiet or not sys.stderr.isatty() or (not files and sys.stdin.isatty()):
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    sizes = [os.path.getsize(name) if name != "-" else None for name in files or ("-",)]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    columns = (TextColumn("producing"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda size: bar.advance(task, size)


def _write_summary(sending: _Sending, seconds: float) -> None:
    records = count_of(sending.record_count, "record")
    # The rate of a handful of records would be that of the start.
    rate = f" in {seconds:.1f} s ({sending.record_count / seconds:,.0f}/s)" if sending.record_count >= 1000 else ""
    echo(f"{records} to {sending.topic}{rate}", err=True)
    for partition, batch in sorted(sending.last.items()):
        if batch.base_offset < 0:
            found = "not acknowledged (acks=0)"
        else:
            found = f"last offset {batch.base_offset + batch.record_count - 1}"
            found += f", version {batch.version}" if batch.version >= 0 else ", not committed yet (acks=1)"
        echo(f"  {sending.topic}-{partition}: {found}", err=True)
