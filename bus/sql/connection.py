"""SQL over topics with the embedded engine, no broker and no Spark needed.

Each topic is a view of its name, with the columns that bus/sql/views.py describes. Beside them are the views of
bus/tables/system_views.py and those of JSON values that the cluster's metadata has. All of them are also in the schema
`bus`, since a topic of such a name comes first. Guards three promises: a statement sees the last committed version of
each partition at the time of its `sql()` call, or the point in time that was asked for; a bus root is only read,
without a lock: read_only.py judges statements, engine.py locks the engine; and an error that a damaged data file caused
names the file, since the engine speaks of pages and protocols.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from bus.errors import StorageFault, did_you_mean, near_names, show_way_out
from bus.json_views import JsonView
from bus.json_views.select import DUCKDB, select_view
from bus.model import TopicPartition
from bus.settings.keys import is_text
from bus.sql.read_only import (
    AmbiguousName,
    NotReadOnly,
    check_reads_only,
    quote_if_odd,
    quote_name,
    quote_offset,
    quote_text,
    tokens,
    topics_named,
    views_named,
)
from bus.sql.views import create_view, escape_globs
from bus.storage_delta.partition_reader import TableFiles
from bus.tables.point_in_time import Bound, bound_of, check_bound, check_names, check_one_moment
from bus.tables.snapshots import TableSnapshot, check_plain
from bus.tables.system_views import VIEW_NAMES, VIEW_SCHEMA, read_view
from bus.tables.topics import TopicTables
from bus.tables.transaction_cuts import find_cut

T = TypeVar("T")


# Global, since each statement has a cursor of its own, and that is another session. Data files never change, so their
# footers are kept. The last two cannot be undone.
_SETTINGS = (
    "TimeZone = 'UTC'",
    "parquet_metadata_cache = true",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "allow_persistent_secrets = false",
    "python_enable_replacements = false",
    "enable_external_access = false",
    "lock_configuration = true",
)


def _remove(folder: str, process: int) -> None:
    """A child of a fork has a copy of the engine; the folder is its parent's."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def open_engine(root: Path) -> duckdb.DuckDBPyConnection:
    """Open an engine that may read only the files below the topics of `root`: no network, no extension, no secret and
    no variable of the program, and no statement can change its settings. It may still write where it may read, so
    read_only.py checks statements. Data that does not fit into memory goes to a folder of its own beside other
    temporary files, not to the working directory, which may be a root."""
    engine = duckdb.connect()
    spilled = tempfile.mkdtemp(prefix="bus-sql-")
    weakref.finalize(engine, _remove, spilled, os.getpid())
    topics = f"{root}/topics/"
    # A path is checked as it is written in a statement, and again as it was found.
    folders = ", ".join(quote_text(folder) for folder in (topics, escape_globs(topics)))
    settings = [
        f"allowed_directories = [{folders}]",
        f"temp_directory = {quote_text(spilled)}",
        *_SETTINGS,
    ]
    engine.execute("; ".join(f"SET GLOBAL {setting}" for setting in settings))
    return engine


_INTERRUPTED = "Query interrupted"


@contextmanager
def interrupts() -> Iterator[None]:
    """Within it Ctrl-C is a `KeyboardInterrupt` also where a short call of the engine runs in the main thread: the
    engine takes the signal for itself, and raises a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if str(error) != _INTERRUPTED:
            raise
        raise KeyboardInterrupt from None


_INTERRUPT_AGAIN_S = 0.05  # the call may not have begun when it is interrupted


def run_interruptible(session: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """Return or raise what `call` does. `KeyboardInterrupt` once the engine has released the statement.

    The engine runs a statement in one call, and Python handles a signal only between calls. So in the main thread,
    which receives signals, another thread makes the call, and the engine is interrupted when a signal comes."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # it is raised again, in the thread that waits for it
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="bus-sql", daemon=True)
    try:
        thread.start()
        return outcome.result()
    except KeyboardInterrupt:
        while thread.is_alive():
            session.interrupt()
            thread.join(_INTERRUPT_AGAIN_S)
        raise


_EPOCH = date(1970, 1, 1).toordinal()
_SECOND_DAYS = 86_400
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAYS_OF_400_YEARS = 146_097
# The engine's infinity: the largest number of the unit, and its negative.
_INFINITE = {64: (1 << 63) - 1, 32: (1 << 31) - 1}


def python_values(column: pa.Array) -> list[Any]:
    """Return a Python value for each row, also for types that Python lacks: whole numbers of any width are int,
    timestamps with a zone aware, in UTC. A date or a time outside of the years 1 to 9999, one with nanoseconds, and an
    infinite one, is its text in ISO 8601: `+10000-01-01T00:00:00Z`, `infinity`."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # pandas', where it is installed
        return _one_by_one(column)
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError, ArithmeticError):
        return _one_by_one(column)
    # The sum of an integer column is wider than any of Arrow's integers and comes as a decimal without fraction.
    if pa.types.is_decimal(column.type) and column.type.scale == 0:
        return [None if value is None else int(value) for value in values]
    return values


def _one_by_one(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return [_moment(ticks, kind) for ticks in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(kind):
        return [_date(days) for days in column.cast(pa.int32()).to_pylist()]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(python_values, column.flatten()), strict=True)
        valid = column.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if is_valid else None for row, is_valid in zip(rows, valid, strict=True)
        ]
    if pa.types.is_map(kind):
        entries = [None if row.values is None else python_values(row.values) for row in column]
        return [None if row is None else [tuple(entry.values()) for entry in row] for row in entries]
    if pa.types.is_nested(kind):
        return [None if row.values is None else python_values(row.values) for row in column]
    return [str(value) for value in column]


def _moment(ticks: int | None, kind: pa.TimestampType) -> datetime | str | None:
    if ticks is None or abs(ticks) == _INFINITE[64]:
        return None if ticks is None else _infinity(ticks)
    per_second = _PER_SECOND[kind.unit]
    seconds, fraction = divmod(ticks, per_second)
    if fraction * 1_000_000 % per_second == 0:
        try:
            moment = datetime(1970, 1, 1, tzinfo=timezone.utc if kind.tz else None)
            return moment + timedelta(seconds=seconds, microseconds=fraction * 1_000_000 // per_second)
        except OverflowError:
            pass
    days, second = divmod(seconds, _SECOND_DAYS)
    text = f"{_date(days)}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    digits = len(str(per_second)) - 1
    return text + (f".{fraction:0{digits}}" if fraction else "") + ("Z" if kind.tz else "")


def _date(days: int | None) -> date | str | None:
    if days is None or abs(days) == _INFINITE[32]:
        return None if days is None else _infinity(days)
    try:
        return date.fromordinal(_EPOCH + days)
    except (OverflowError, ValueError):
        # The calendar repeats after 400 years.
        cycles, day = divmod(days, _DAYS_OF_400_YEARS)
        within = date.fromordinal(_EPOCH + day)
        return f"{within.year + 400 * cycles:+05}-{within.month:02}-{within.day:02}"


def _infinity(number: int) -> str:
    return "infinity" if number > 0 else "-infinity"


# The tables behind a topic's view, and the offset below which each is shown.
_ViewedTables = tuple[list[TableSnapshot], list[int | None], list[tuple[tuple[int, int], ...]]]


_MISSING_TABLE = re.compile(r"Table with name (\"[^\"]*\"|\S+) does not exist")
_FIELD_OF_TEXT = re.compile(r"Cannot extract field '(.*?)' from expression \"(?:\w+\.)?(key|value)\"")
_NAMES_MAX = 30  # the number of names in a message


class SqlError(Exception):
    """A statement that cannot be answered: bad syntax, an unknown topic or column, a version that is not there."""


class Result:
    """The rows of one statement, computed while they are read; each row can be read once."""

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        session: duckdb.DuckDBPyConnection | None = None,
        engine: duckdb.DuckDBPyConnection | None = None,
        explain: Callable[[BaseException], str | None] = lambda error: None,
    ) -> None:
        """`session` and `engine` live as long as there are rows to be read: with them go the rows, and the folder for
        what does not fit into memory. Without them the rows are there. `explain` tells which damaged file made the
        engine fail."""
        self._reader = reader
        self._session = session
        self._engine = engine
        self._explain = explain

    @property
    def columns(self) -> list[str]:
        return list(self._reader.schema.names)

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows, a record batch at a time, so that memory stays small. Raises `SqlError`, and on
        Ctrl-C, which ends the statement, `KeyboardInterrupt`."""
        while True:
            try:
                batch = self._read() if self._session is None else run_interruptible(self._session, self._read)
            except (duckdb.Error, pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise SqlError(_with_damage(self._explain(error), error)) from None
            if batch is None:
                return
            yield batch

    def _read(self) -> pa.RecordBatch | None:
        return next(self._reader, None)

    def arrow(self) -> pa.Table:
        """Return the remaining rows as one table. Raises `SqlError`."""
        return pa.Table.from_batches(self.batches(), schema=self._reader.schema)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows as Python values: whole numbers of any width are int, timestamps are aware, in UTC;
        one outside of the years 1 to 9999 is text. Raises `SqlError`.
        """
        return list(self)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches():
            yield from zip(*(python_values(column) for column in batch.columns), strict=True)


class Connection:
    """SQL over the topics of one root. Not safe for several threads at once."""

    def __init__(
        self,
        root: str,
        *,
        at_version: Bound | None = None,
        at_offset: Bound | None = None,
        at_transaction: str | None = None,
    ) -> None:
        check_bound(at_version, "a version")
        check_bound(at_offset, "an offset")
        check_one_moment(at_version=at_version, at_transaction=at_transaction)
        self._tables = TopicTables(root)
        check_names(at_version, self._tables.partitions)
        check_names(at_offset, self._tables.partitions)
        self._at_version = at_version
        self._cut = None if at_transaction is None else find_cut(self._tables, at_transaction)
        self._at_offset = at_offset
        self._views: dict[str, _ViewedTables] = {}  # keyed by topic
        self._json_views: set[str] = set()  # casefolded names of the views in the schema of the bus
        with interrupts():
            self._engine = open_engine(self._tables.root)
            self._engine.execute(f"CREATE SCHEMA {VIEW_SCHEMA}")

    @property
    def topics(self) -> list[str]:
        """Names of the topics as of now, internal ones included."""
        return list(self._tables.topics())

    def tables(self) -> dict[str, list[str]]:
        """Return the names that can be selected from now: `views`, those of JSON values last, and `topics`."""
        return {
            "views": [*VIEW_NAMES, *sorted(view.name for view in self._tables.cluster().views.values())],
            "topics": self.topics,
        }

    def sql(self, query: str, parameters: Sequence[Any] | None = None) -> Result:
        """Run one statement; `?` and `$1` stand for `parameters`. Raises `SqlError`.

        It reads: SELECT, with all that is one to the engine (WITH, VALUES, FROM, PIVOT, DESCRIBE, SHOW, SUMMARIZE), or
        EXPLAIN of such a one. What else writes, or reads from elsewhere than this root, is refused before it runs.
        `offset` is the column, unless a number, a parameter or a parenthesis follows it. `SHOW TABLES` lists the
        topics and the views of JSON values. A name that is no plain word, like "my-topic", is written in double quotes.
        """
        with interrupts():
            return self._sql(query, parameters)

    def _sql(self, query: str, parameters: Sequence[Any] | None) -> Result:
        try:
            if not is_text(query):
                raise SqlError(f"expected a statement that has a form in UTF-8, found {query!r}")
            topics = self.topics
            query = quote_offset(query)
            # A cursor of its own, so that the rows of an earlier statement can still be read.
            session = self._engine.cursor()
            statement = check_reads_only(session, query)
            if " ".join(token.text for token in tokens(query)).casefold().rstrip("; ") == "show tables":
                names = [*topics, *sorted(view.name for view in self._tables.cluster().views.values())]
                return Result(pa.table({"name": pa.array(names, pa.string())}).to_reader())
            self._drop_views_but(topics)
            for topic in topics_named(query, topics):
                self._refresh_view(topic)
            for name in views_named(query, VIEW_NAMES, VIEW_SCHEMA):
                self._refresh_system_view(name, topics)
            self._refresh_json_views(query, topics)

            def run() -> pa.RecordBatchReader:
                return pa.RecordBatchReader.from_stream(session.sql(statement, params=parameters))

            return Result(run_interruptible(session, run), session, self._engine, self._explainer())
        except NotReadOnly as error:
            raise SqlError(str(error)) from None
        except AmbiguousName as error:
            raise SqlError(f"{error}; see the topics with SHOW TABLES") from None
        except StorageFault as fault:
            raise SqlError(str(fault)) from None
        except duckdb.Error as error:
            raise SqlError(_with_damage(self._explainer()(error), error) + self._hint(query, error)) from None

    def _explainer(self) -> Callable[[BaseException], str | None]:
        shown = [snapshot for snapshots, *_ in self._views.values() for snapshot in snapshots]
        return lambda error: explain_damage(error, shown)

    def _refresh_view(self, topic: str) -> None:
        partitions = self._tables.partitions(topic)
        snapshots = [check_plain(self._tables.snapshot(name, self._version_of(name))) for name in partitions]
        hidden = [() if self._cut is None else self._cut.hidden_rows(name) for name in partitions]
        shown = (snapshots, [bound_of(self._at_offset, name) for name in partitions], hidden)
        if self._views.get(topic) != shown:
            for other in [view for view in self._views if view.casefold() == topic.casefold()]:
                del self._views[other]  # the engine tells no upper from lower case: the new view replaces it
            try:
                self._engine.execute(create_view(topic, *shown))
            except (duckdb.Error, UnicodeDecodeError) as error:  # it reads the first footer, names included
                if (damage := find_damage(snapshots)) is None:
                    raise
                raise SqlError(_with_damage(damage, error)) from None
            self._views[topic] = shown

    def _version_of(self, partition: TopicPartition) -> int | None:
        if self._cut is not None:
            return self._cut.version_of(self._tables, partition)
        return bound_of(self._at_version, partition)

    def _refresh_system_view(self, name: str, topics: Sequence[str]) -> None:
        """`name` in the schema of the bus, and by its name alone unless a topic has it."""
        rows = self._engine.register("rows_of_view", read_view(name, self._tables))
        rows.execute(f"CREATE OR REPLACE TABLE {VIEW_SCHEMA}.{name} AS SELECT * FROM rows_of_view")
        self._engine.unregister("rows_of_view")
        if name not in map(str.casefold, topics):
            self._engine.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {VIEW_SCHEMA}.{name}")

    def _refresh_json_views(self, query: str, topics: Sequence[str]) -> None:
        views = self._tables.cluster().views
        self._drop_json_views(self._json_views - views.keys(), topics)
        for name in views_named(query, views, VIEW_SCHEMA):
            self._refresh_json_view(views[name], topics)

    def _refresh_json_view(self, view: JsonView, topics: Sequence[str]) -> None:
        check_topic_of(view, topics)
        self._refresh_view(view.topic)
        name = f"{VIEW_SCHEMA}.{quote_name(view.name)}"
        select = select_view(view, DUCKDB, f"main.{quote_name(view.topic)}")
        check_reads_only(self._engine, select)
        self._engine.execute(f"CREATE OR REPLACE VIEW {name} AS {select}")
        self._json_views.add(view.name.casefold())
        if view.name.casefold() not in map(str.casefold, topics):
            self._engine.execute(f"CREATE OR REPLACE VIEW {quote_name(view.name)} AS SELECT * FROM {name}")

    def _drop_json_views(self, names: Iterable[str], topics: Sequence[str]) -> None:
        for name in names:
            self._engine.execute(f"DROP VIEW {VIEW_SCHEMA}.{quote_name(name)}")
            if name not in map(str.casefold, topics):
                self._engine.execute(f"DROP VIEW IF EXISTS {quote_name(name)}")
        self._json_views.difference_update(names)

    def _drop_views_but(self, topics: Sequence[str]) -> None:
        for gone in self._views.keys() - set(topics):
            self._engine.execute(f"DROP VIEW {quote_name(gone)}")
            del self._views[gone]

    def _hint(self, query: str, error: duckdb.Error) -> str:
        missing = _MISSING_TABLE.search(str(error))
        if isinstance(error, duckdb.CatalogException) and missing is not None:
            return suggestions(missing[1].strip('"'), self.tables())
        field = _FIELD_OF_TEXT.search(str(error))
        if isinstance(error, duckdb.BinderException) and field is not None:
            name = field[1].replace("'", "''")
            return (
                f"\n{field[2]} is text, and JSON where the topic has JSON: write {field[2]}->>'{name}', or make typed "
                "columns with bus views create"
            )
        if isinstance(error, duckdb.ParserException):
            odd = [
                name
                for name in self.topics
                if not name.isidentifier() and re.search(rf"(?<!\"){re.escape(name)}", query)
            ]
            if odd:
                return f'\nthe name of this topic is written in double quotes: "{odd[0]}"'
        return ""

    def close(self) -> None:
        """Safe to repeat."""
        self._engine.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(
    root: str,
    *,
    at_version: Bound | None = None,
    at_offset: Bound | None = None,
    at_transaction: str | None = None,
) -> Connection:
    """SQL over the topics of `root`, a path or a file URL.

    `at_version` looks at that Delta version of the partitions, `at_offset` at the records below that offset: a number
    for every partition, or a mapping from topic name or `TopicPartition` to a number. `at_transaction`, a transactional
    id, looks at what the last transaction that it has committed by now left: in each partition that took part the
    version with its rows, in any other one about what was committed when the transaction was complete; each other
    transaction is there in all of its partitions or in none, whatever the brokers' clocks say. Raises
    `RootNotUsable`, or `BusError`: UNKNOWN_TOPIC_OR_PARTITION for a name that is not there, TRANSACTIONAL_ID_NOT_FOUND,
    INVALID_TXN_STATE if the log knows of no transaction of the id that is committed.
    """
    return Connection(root, at_version=at_version, at_offset=at_offset, at_transaction=at_transaction)


def check_topic_of(view: JsonView, topics: Container[str]) -> None:
    """Raises `SqlError`."""
    if view.topic not in topics:
        raise SqlError(f"view {view.name}: its topic {view.topic} is gone")


def suggestions(missing: str, tables: Mapping[str, Sequence[str]]) -> str:
    """Lines for a statement that names a table that is not there: the nearest names, and all, as far as they fit."""
    folded = {name.casefold(): name for names in tables.values() for name in names}
    near = near_names(missing.casefold().removeprefix(f"{VIEW_SCHEMA}."), folded, count_max=3)
    lines = [did_you_mean((quote_if_odd(folded[name]) for name in near), before="")] if near else []
    for kind, names in tables.items():
        more = f", and {len(names) - _NAMES_MAX} more: SHOW TABLES" if len(names) > _NAMES_MAX else ""
        if names or kind == "topics":
            lines.append(f"{kind}: {', '.join(names[:_NAMES_MAX]) or 'none yet'}{more}")
    return "\n" + "\n".join(lines)


def _with_damage(damage: str | None, error: Exception) -> str:
    return _plain(error) if damage is None else f"{damage} (the engine: {_plain(error)})"


def _plain(error: Exception) -> str:
    """The engine's message without what speaks of the machinery around it."""
    if isinstance(error, duckdb.PermissionException) and (
        file := re.search('Cannot access file "([^"]*)"', str(error))
    ):
        return f"expected topics and views to read from, found the file {file[1]}"
    # Its guesses are names of its own catalog.
    lines = [
        line for line in str(error).splitlines() if not line.startswith('Did you mean "') or "Function" in str(error)
    ]
    return "\n".join(lines).strip()


# Errors caused by the statement or its caller.
_OF_STATEMENTS = (
    duckdb.ParserException,
    duckdb.CatalogException,
    duckdb.InterruptException,
    duckdb.OutOfMemoryException,
    duckdb.PermissionException,
)


def explain_damage(error: BaseException, shown: Iterable[TableSnapshot]) -> str | None:
    """The partition, file and offsets, if a data file of the topics that are `shown` cannot be read; None if it is not
    that. Reads them all, so it is asked only about errors that files may have caused."""
    is_of_names = isinstance(error, duckdb.BinderException) and "read_parquet" not in str(error)
    if isinstance(error, _OF_STATEMENTS) or is_of_names:
        return None
    return find_damage(shown)


def find_damage(shown: Iterable[TableSnapshot]) -> str | None:
    """The first of their files that cannot be read, if there is one."""
    for snapshot in shown:
        damage = TableFiles(snapshot.folder).find_damage(snapshot.files)
        if damage is not None:
            partition = f"{snapshot.partition.topic}/{snapshot.partition.partition}"
            return f"{partition}: {damage}; {show_way_out(snapshot.partition.topic, snapshot.partition.partition)}"
    return None
