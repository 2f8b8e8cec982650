"""Options that jobs share beside those of other commands, and the values that they make.

Guards one promise: no secret is among the options of a job, and so none gets into the options of a query, which Spark
shows on its page and in its event log: they name a profile, whose file the driver reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from bus.cli.options import Decorator, complete_topics, gathered, plain_address_option, profile_option
from bus.client.admin.admin import Admin
from bus.spark.file_swaps import CODECS

POSITIVE = click.IntRange(min=1)
NOT_NEGATIVE = click.IntRange(min=0)


@dataclass(frozen=True, slots=True)
class Brokers:
    """The way to the brokers: one address or several, and the profile that has the rest."""

    address: str
    profile: str | None = None

    def at(self, address: str | None) -> Brokers:
        """Return the way to other brokers, which are reached by the same profile; None: to these."""
        return Brokers(address or self.address, self.profile)

    def open_admin(self) -> Admin:
        return Admin(self.address, profile=self.profile or "")

    def options(self) -> dict[str, str]:
        """Return what `format("bus")` takes."""
        profile = {"bus.profile": self.profile} if self.profile else {}
        return {"bus.bootstrap.servers": self.address, **profile}


def brokers_options(command: Any) -> Any:
    """`--address`, which is `--bootstrap`, too, and `--profile`."""
    return gathered("brokers", Brokers, plain_address_option("--bootstrap"), profile_option(is_passed=True))(command)


def topic_argument(name: str, metavar: str = "TOPIC") -> Decorator:
    return click.argument(name, metavar=metavar, shell_complete=complete_topics)


def partitions_argument(*, is_required: bool = True) -> Decorator:
    return click.argument(
        "partitions",
        metavar="TOPIC[/PARTITION]..." if is_required else "[TOPIC[/PARTITION]...]",
        nargs=-1,
        required=is_required,
        shell_complete=complete_topics,
    )


def target_bytes_option(command: Any) -> Any:
    return click.option(
        "--target-bytes",
        type=POSITIVE,
        metavar="N",
        help="Size of the new files.  [default: segment.bytes of the topic]",
    )(command)


def compression_option(command: Any) -> Any:
    return click.option("--compression", type=click.Choice(sorted(CODECS)), default="zstd", help="Codec of new files.")(
        command
    )


def csv_option(text: str = "Print CSV instead of a table.") -> Decorator:
    return click.option("--csv", "is_csv", is_flag=True, help=text)


def timestamps_option(default: str, text: str) -> Decorator:
    return click.option(
        "--timestamps",
        "keeps_timestamps",
        type=click.Choice(("keep", "now")),
        default=default,
        callback=lambda _, __, chosen: chosen == "keep",
        help=text,
    )


def batch_records_option(default: int, text: str = "Records that are written as one batch, at most.") -> Decorator:
    return click.option("--batch-records", type=POSITIVE, default=default, metavar="N", help=text)


def tasks_option(default: int, text: str) -> Decorator:
    return click.option("--tasks", type=POSITIVE, default=default, metavar="N", help=text)
