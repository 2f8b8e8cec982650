"""The common parts of the PySpark programs in `jobs/`: a session, the partitions that are meant, how a job ends, and
names of PySpark that are loaded when they are first used, so that a job shows its usage where PySpark is missing.

Guards one promise: a job ends with 0 if it has done what it was asked, with 1 and one line on standard error if it
could not, with 2 if it was typed wrong, and with 130, 143 or 129 if Ctrl-C, SIGTERM or SIGHUP ended it. Progress goes
to standard error, results to standard output.
"""

from __future__ import annotations

import argparse
import csv as csv_format
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from bus.client.admin.admin import Admin
from bus.client.config.sources import ADDRESS_VARIABLE, PROFILE_VARIABLE, chosen_profile
from bus.client_texts import one_line, text_for
from bus.errors import BusError, ErrorCode, StorageFault, show_range
from bus.json_views import SchemaError, parse_ddl
from bus.json_views.select import SPARK, struct_of
from bus.model import TopicPartition
from bus.platform.signals import EXIT_SIGNAL, signal_of, signals_as_interrupts
from bus.records.epoch import epoch_ms
from bus.settings.keys import ConfigError
from bus.spark.jars import JarsMissing
from bus.spark.sessions import SparkUnavailable, no_pyspark, session
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# For JSON and CSV: Spark leaves microseconds out otherwise.
WHOLE_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
EXIT_DONE = 0
EXIT_FAILURE = 1


class JobFailed(Exception):
    """The job cannot do what it was asked; the message says what was expected and found."""


def run_job(name: str, body: Callable[[SparkSession], int], conf: Mapping[str, str] | None = None) -> int:
    """The exit code. A session that was active before goes on; one that was started for the job is stopped."""
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it comes with pyspark, without types
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        tell(f"error: {no_pyspark(error)}")
        return EXIT_FAILURE

    was_active = SparkSession.getActiveSession() is not None
    try:
        with signals_as_interrupts():
            spark = session(name, conf=conf)
            try:
                return body(spark)
            finally:
                if not was_active:
                    spark.stop()
    except KeyboardInterrupt as interrupt:
        return EXIT_SIGNAL + signal_of(interrupt)
    except (JobFailed, BusError, StorageFault, ConfigError, SparkUnavailable, JarsMissing, OSError) as error:
        message = str(error)
    except (PySparkException, Py4JError) as error:
        message = first_line(error)
    tell(f"error: {message}")
    return EXIT_FAILURE


def first_line(error: BaseException) -> str:
    """Behind it are Spark's query plan and Java's stack. What Python raised is told as that."""
    _, traceback, behind = str(error).rpartition("Traceback (most recent call last):")
    if traceback:
        raised = next((line for line in behind.splitlines()[1:] if line and not line[0].isspace()), "")
        if raised:
            return re.sub(r"^[\w.]*?(\w+: )", r"\1", raised).strip()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    return told[0].removeprefix(": ").removesuffix(";") if told else type(error).__name__


def tell(text: str) -> None:
    """Write a line for those who watch the job."""
    _write(sys.stderr, text)


def print_result(text: str) -> None:
    _write(sys.stdout, text)


def _write(stream: TextIO, text: str) -> None:
    """Write a line, which may have names and values that others have chosen."""
    stream.write(text_for(stream, text) + "\n")
    stream.flush()


def partitions_named(tables: TopicTables, names: Iterable[str]) -> list[TopicPartition]:
    """`TOPIC` stands for all its partitions, `TOPIC/PARTITION` for one; each is there once. Raises `BusError`
    UNKNOWN_TOPIC_OR_PARTITION."""
    found: dict[TopicPartition, None] = {}
    for name in names:
        topic, slash, number = name.partition("/")
        partitions = tables.partitions(topic)
        if slash:
            if not number.isdecimal() or int(number) >= len(partitions):
                raise BusError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"expected a partition of {topic} {show_range(0, len(partitions) - 1)}, found {number!r}",
                )
            partitions = [partitions[int(number)]]
        found.update(dict.fromkeys(partitions))
    return list(found)


def add_root_argument(parser: argparse.ArgumentParser) -> None:
    root = os.environ.get("BUS_ROOT") or "./bus-data"
    parser.add_argument("--root", default=root, help="the bus root (default: BUS_ROOT, or ./bus-data)")


def add_bootstrap_argument(parser: argparse.ArgumentParser) -> None:
    """`--address` as the command line calls it; `--bootstrap` is the same. `--profile` has it, too."""
    profile = os.environ.get(PROFILE_VARIABLE) or None
    try:
        address = _address_of(profile)
    except BusError as error:
        parser.error(f"{PROFILE_VARIABLE}: {error.message}")
    parser.add_argument(
        "--address",
        "--bootstrap",
        dest="bootstrap",
        default=address,
        metavar="HOST:PORT",
        help="a broker, or several with commas between (default: BUS_ADDRESS, that of the profile, or 127.0.0.1:9094)",
    )
    parser.add_argument(
        "--profile",
        action=_TakeProfile,
        default=profile,
        metavar="NAME",
        help="profile of ~/.config/bus/config.toml: address and connection (default: BUS_PROFILE)",
    )


class _TakeProfile(argparse.Action):
    """Its address is that of the job unless another one was given: then it is not the parser's own default."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        namespace.profile = value
        try:
            address = _address_of(value)
        except BusError as error:
            raise argparse.ArgumentError(self, error.message) from None
        if namespace.bootstrap is parser.get_default("bootstrap"):
            namespace.bootstrap = address


def _address_of(profile: str | None) -> str:
    found = chosen_profile({"profile": profile})
    return os.environ.get(ADDRESS_VARIABLE) or (found.addresses if found is not None else "") or "127.0.0.1:9094"


def open_admin(options: argparse.Namespace, address: str | None = None) -> Admin:
    """Open a client of the broker that the options name, or of another one that is reached in the same way."""
    return Admin(address or options.bootstrap, profile=options.profile or "")


def broker_options(options: argparse.Namespace, address: str | None = None) -> dict[str, str]:
    """The same for `format("bus")`."""
    profile = {"bus.profile": options.profile} if options.profile else {}
    return {"bus.bootstrap.servers": address or options.bootstrap, **profile}


def typed_values(rows: DataFrame, schema: str) -> DataFrame:
    """`rows` with their values as structs of `schema`, by the same reading of JSON as a view's; null where they are no
    JSON object. Raises `JobFailed` for a schema that a view cannot have."""
    from pyspark.sql import functions

    try:
        fields = parse_ddl(schema)
    except SchemaError as error:
        raise JobFailed(f"--schema: {error}") from None
    frame = rows.withColumn("value", functions.col("value").cast("string"))
    added = SPARK.parse(fields)
    for name, expression in added:
        frame = frame.selectExpr("*", f"{expression} AS {name}")
    return frame.withColumn("value", functions.expr(struct_of(fields, SPARK))).drop(*(name for name, _ in added))


def whole_number(text: str) -> int:
    """An argument's value: 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, found {text!r}")
    return int(text)


def positive_number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return int(text)


def timestamp_ms(text: str) -> int:
    """An argument's value: ISO 8601, UTC unless it says otherwise."""
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time such as 2026-11-21T09:00:00Z, found {text!r}") from None
    return epoch_ms(moment)


def print_rows(frame: DataFrame, *, csv: bool) -> int:
    """All rows of a small frame on standard output; how many there were."""
    rows = frame.collect()
    if csv:
        lines = io.StringIO()
        writer = csv_format.writer(lines, lineterminator="\n")
        writer.writerow(frame.columns)
        writer.writerows(["" if value is None else value for value in row] for row in rows)
        print_result(lines.getvalue().removesuffix("\n"))
        return len(rows)
    texts = [["-" if value is None else one_line(str(value)) for value in row] for row in rows]
    titles = list(map(one_line, frame.columns))
    widths = [max(map(len, column)) for column in zip(titles, *texts, strict=True)]
    for cells in (titles, *texts):
        print_result("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return len(rows)


class _Lazy:
    """A name of a module, which is imported at the first use."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(import_module(self._module), self._name), name)


if TYPE_CHECKING:
    import pyspark
    import pyspark.sql.functions

    StorageLevel = pyspark.StorageLevel
    Window = pyspark.sql.Window
    sql = pyspark.sql.functions
else:
    StorageLevel = _Lazy("pyspark", "StorageLevel")
    Window = _Lazy("pyspark.sql", "Window")
    sql = _Lazy("pyspark.sql", "functions")
