"""`bus jobs`: the jobs on Spark as commands, and what their programs share: a session, how a job ends, what it prints.

Guards one promise: a job ends with 0 if it has done what it was asked, with 1 and one line on standard error if it
could not, with 2 if it was typed wrong, and with 130, 143 or 129 if Ctrl-C, SIGTERM or SIGHUP ended it. Progress goes
to standard error, results to standard output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import bus.spark.sessions
from bus.cli.commands import BusCommand, BusGroup, LazyGroup, allow_pandas
from bus.cli.failures import Failure
from bus.cli.options import listing_format_option
from bus.cli.output import Column, Columns, csv_text, echo, echo_styled, table_text, write_data, write_listing
from bus.spark.jars import FOLDER_VARIABLE, check_jars, jars_folder
from bus.spark.jobs import JobFailed
from bus.spark.sessions import DEFAULTS_FILE, no_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXIT_DONE = 0
JOBS = {
    name: (f"bus.jobs.{name}:{name}", text)
    for name, text in {
        "compact_files": "Many small data files of a log become few large ones.",
        "compact_keys": "Of every key of a compacted topic the last record stays.",
        "verify_log": "Judge the log of topics, and show every promise that is not kept.",
        "offset_report": "Show what each partition holds: offsets, records, times, files, lag.",
        "backfill": "Load files into a topic, each row once.",
        "replay": "Append records of one topic to another one, changed on the way.",
        "export": "Write a topic as Delta, Parquet, CSV or JSON for others.",
        "mirror_kafka": "Carry topics from Kafka to the bus, or back.",
        "streaming_aggregate": "Count and sum over windows of time, from one topic into another.",
    }.items()
}


@click.group(cls=BusGroup)
def jobs() -> None:
    """Run jobs on Spark: they look after large logs, and carry records."""


@jobs.command("list", cls=BusCommand, examples="bus jobs list")
@listing_format_option()
def list_jobs(form: str | None) -> None:
    """List the jobs.

    `bus jobs run NAME` runs one in a session of Spark on this machine; `bus jobs path` has the paths to run it on a
    cluster, by spark-submit.
    """
    columns: Columns[tuple[str, str]] = (Column("job"), Column("description"))
    write_listing(columns, [(name, text) for name, (_, text) in JOBS.items()], form)


jobs.add_command(
    LazyGroup(
        "run",
        lazy_commands=JOBS,
        help="""Run a job in this process, with a session of Spark.

        Under spark-submit its master and its settings count, else those of conf/spark-defaults.conf on this machine.
        """,
    )
)


@jobs.command(
    cls=BusCommand,
    examples="""
    spark-submit --properties-file $(bus jobs path conf) --jars $(bus jobs path jars) \\
        $(bus jobs path program) verify_log --root /srv/bus --all
    """,
)
@click.argument(
    "part", metavar="[program|conf|jars]", type=click.Choice(["program", "conf", "jars"]), default="program"
)
def path(part: str) -> None:
    """Print the path of a part of the jobs, for spark-submit.

    \b
    program  of all jobs: the first argument is the name of the job, its own follow
    conf     Spark's settings, for --properties-file
    jars     Delta's jars, with commas between, for --jars
    """
    if part == "jars":
        echo(",".join(str(jar.absolute()) for jar in check_jars(_jars_folder())))
    else:
        echo(str(Path(__file__).with_name("__main__.py") if part == "program" else DEFAULTS_FILE.resolve()))


def _jars_folder() -> Path:
    folder = jars_folder()
    if folder is None:
        raise Failure(
            f"expected the folder of Delta's jars in {FOLDER_VARIABLE}, found none; to fill one: "
            "python -m bus.spark.jars FOLDER"
        )
    return folder


def run_job(name: str, body: Callable[[SparkSession], int], conf: Mapping[str, str] | None = None) -> int:
    """Return the exit code that `body` gives. A session that was active before goes on; one that was started for the
    job is stopped. Raises `JobFailed` for what Spark could not do, or what `body` raises."""
    allow_pandas()
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it comes with pyspark, without types
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise no_pyspark(error) from None
    was_active = SparkSession.getActiveSession() is not None
    try:
        spark = bus.spark.sessions.session(name, conf=conf)
        try:
            return body(spark)
        finally:
            if not was_active:
                spark.stop()
    except (PySparkException, Py4JError) as error:
        raise JobFailed(first_line(error)) from error


def first_line(error: BaseException) -> str:
    """Return the message without what follows it: Spark's query plan and Java's stack. What Python raised is told as
    that."""
    _, traceback, behind = str(error).rpartition("Traceback (most recent call last):")
    if traceback:
        raised = next((line for line in behind.splitlines()[1:] if line and not line[0].isspace()), "")
        if raised:
            return re.sub(r"^[\w.]*?(\w+: )", r"\1", raised).strip()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    return told[0].removeprefix(": ").removesuffix(";") if told else type(error).__name__


def print_rows(frame: DataFrame, *, is_csv: bool) -> None:
    """Print all rows of a small frame."""
    rows = frame.collect()
    if is_csv:
        write_data(csv_text([frame.columns, *rows]))
    else:
        columns: Columns[Any] = [Column(name, label=name) for name in frame.columns]
        echo_styled(table_text(columns, rows))
