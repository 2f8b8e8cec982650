"""`bus log roll`, `compact` and `clean`: what the broker does for its logs in time, now and by hand; `bus log upgrade`:
who may write to their tables; `bus log dirs`: what they take in the root.

Unlike the rest of `bus log` these ask brokers: only a partition's leader writes to its table, and all of them know what
they lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusCommand
from bus.cli.options import address_option, complete_topics, listing_format_option, open_admin
from bus.cli.output import Column, Columns, Kind, echo, human_bytes, write_listing
from bus.cli.partition_arguments import Target, partitions_in, scope_of
from bus.errors import BusError, Refused, count_of

if TYPE_CHECKING:
    from bus.descriptions import LogDirDescription, MaintainedLog, ReplicaInfo
    from bus.model import TopicPartition


_COLUMNS: Columns[tuple[str, MaintainedLog]] = (
    Column("topic", lambda row: row[0], is_key=True),
    Column("partition", lambda row: row[1].partition, Kind.NUMBER, is_key=True),
    Column("version", lambda row: row[1].version, Kind.NUMBER),
    Column("files_before", lambda row: row[1].files_before, Kind.NUMBER),
    Column("files_after", lambda row: row[1].files_after, Kind.NUMBER),
    Column("bytes_before", lambda row: row[1].bytes_before, Kind.BYTES, "SIZE-BEFORE"),
    Column("bytes_after", lambda row: row[1].bytes_after, Kind.BYTES, "SIZE-AFTER"),
    Column("rewritten_bytes", lambda row: row[1].rewritten_bytes, Kind.BYTES, "REWRITTEN"),
    Column("log_start", lambda row: row[1].log_start, Kind.NUMBER),
    Column("dropped_versions", lambda row: row[1].dropped_versions, Kind.NUMBER),
    Column("deleted_files", lambda row: row[1].deleted_files, Kind.NUMBER),
    Column("deleted_bytes", lambda row: row[1].deleted_bytes, Kind.BYTES, "DELETED"),
)


def _by_hand(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and options that all of them have."""
    options = (
        click.argument("target", metavar="TOPIC[/PARTITION]", shell_complete=complete_topics),
        listing_format_option(),
        address_option(),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    cls=BusCommand,
    examples="""
    bus log roll orders
    bus log roll orders/0 --format json
    """,
)
@_by_hand
def roll(target: str, form: str | None, address: str) -> None:
    """Make few large data files out of many small ones, due or not.

    No record comes, goes or moves: Delta streams and consumers notice nothing. Shows what each partition had and has,
    and tells on standard error as partitions finish; Ctrl-C leaves those alone that were not begun.
    """
    _maintain("roll", target, form, address)


@click.command(
    cls=BusCommand,
    examples="""
    bus log compact customers
    bus log compact customers/0
    """,
)
@_by_hand
def compact(target: str, form: str | None, address: str) -> None:
    """Keep of every key its last record, due or not; only where cleanup.policy has compact.

    Offsets and order stay. Records younger than min.compaction.lag.ms and those of the newest data file stay, and so do
    tombstones for delete.retention.ms.
    """
    _maintain("compact", target, form, address)


@click.command(
    cls=BusCommand,
    examples="""
    bus log clean orders
    bus log clean orders/0
    """,
)
@_by_hand
def clean(target: str, form: str | None, address: str) -> None:
    """Do now what retention is due, and delete what is old enough of Delta versions, removed data files and orphans.

    Nothing goes that the topic's configs keep: retention.ms, retention.bytes, delta.log.retention.ms,
    delta.log.versions.max and file.delete.delay.ms count as ever.
    """
    _maintain("clean", target, form, address)


_UPGRADE_COLUMNS: Columns[tuple[str, MaintainedLog]] = (
    Column("topic", lambda row: row[0], is_key=True),
    Column("partition", lambda row: row[1].partition, Kind.NUMBER, is_key=True),
    Column("version", lambda row: row[1].version, Kind.NUMBER),
    Column("foreign_writers", lambda row: "refused" if row[1].is_managed else "allowed"),
)


@click.command(
    cls=BusCommand,
    examples="""
    bus log upgrade orders
    bus log upgrade --all
    """,
)
@click.argument("target", metavar="[TOPIC[/PARTITION]]", required=False, shell_complete=complete_topics)
@click.option("--all", "is_all", is_flag=True, help="All topics, those of the bus itself, too.")
@listing_format_option()
@address_option()
def upgrade(target: str | None, is_all: bool, form: str | None, address: str) -> None:
    """Keep other Delta engines from writing to the tables of a topic, while the broker runs.

    For tables of an earlier version of the bus: new ones are made so. One Delta version that changes the protocol of
    the table, and no record; every engine reads on. A topic with delta.foreign.writers.enable lets other engines write
    from then on. Safe to repeat: a table that is as it is to be gets no version.
    """
    if is_all == (target is not None):
        raise click.UsageError("expected TOPIC, TOPIC/PARTITION or --all, and only one of them")
    chosen = None if target is None else Target(target)
    done: list[tuple[str, MaintainedLog]] = []
    failures: list[BusError] = []
    with open_admin(address) as admin:
        topics = [chosen.topic] if chosen is not None else admin.list_topics(include_internal=True)
        numbers = () if chosen is None or chosen.partition is None else (chosen.partition,)
        for topic, wanted in scope_of(partitions_in(dict.fromkeys(topics, numbers), admin)).items():
            try:
                for one in admin.maintain_log(topic, "upgrade", wanted):
                    done.append((topic, one))
            except BusError as failure:
                failures.append(failure)  # those of other topics are upgraded all the same
    if done or not failures:
        write_listing(_UPGRADE_COLUMNS, sorted(done, key=lambda row: (row[0], row[1].partition)), form)
    if failures:
        raise failures[0]


def _maintain(action: str, target: str, form: str | None, address: str) -> None:
    chosen = Target(target)
    done: list[MaintainedLog] = []
    with open_admin(address) as admin:
        scope = {chosen.topic: () if chosen.partition is None else (chosen.partition,)}
        numbers = [one.partition for one in partitions_in(scope, admin)]
        try:
            for one in _reported(admin.maintain_log(chosen.topic, action, numbers), chosen.topic, len(numbers)):
                done.append(one)
        finally:
            if done:
                rows = [(chosen.topic, one) for one in sorted(done, key=lambda one: one.partition)]
                write_listing(_COLUMNS, rows, form)


def _reported(results: Iterator[MaintainedLog], topic: str, count: int) -> Iterator[MaintainedLog]:
    for number, one in enumerate(results, start=1):
        echo(f"{topic}/{one.partition}: {_summary(one)} ({number} of {count_of(count, 'partition')})", err=True)
        yield one


def _summary(one: MaintainedLog) -> str:
    parts = []
    if one.rewritten_bytes or one.files_before != one.files_after:
        parts.append(
            f"{one.files_before:,} -> {count_of(one.files_after, 'file')}, "
            f"{human_bytes(one.bytes_before)} -> {human_bytes(one.bytes_after)}"
        )
    if one.dropped_versions:
        parts.append(f"{count_of(one.dropped_versions, 'version')} dropped")
    if one.deleted_files:
        parts.append(f"{count_of(one.deleted_files, 'file')} deleted, {human_bytes(one.deleted_bytes)}")
    return "; ".join(parts) or "nothing to do"


# `bus log dirs`: what the partitions take in the root, broker by broker (KIP-113, KIP-827).

_REPLICA_COLUMNS: Columns[tuple[TopicPartition, int, ReplicaInfo]] = (
    Column("topic", lambda row: row[0].topic, is_key=True),
    Column("partition", lambda row: row[0].partition, Kind.NUMBER, is_key=True),
    Column("broker", lambda row: row[1], Kind.NUMBER, is_key=True),
    Column("role", lambda row: "leader" if row[2].is_leader else "follower"),
    Column("size_bytes", lambda row: _counted(row[2], row[2].size_bytes), Kind.BYTES, "SIZE"),
    Column("reclaimable_bytes", lambda row: _counted(row[2], row[2].reclaimable_bytes), Kind.BYTES, "RECLAIMABLE"),
    Column("file_count", lambda row: _counted(row[2], row[2].file_count), Kind.NUMBER, "FILES"),
    Column("error", lambda row: _shown(row[2].error)),
)


def _shown(error: Refused | None) -> str | None:
    return None if error is None else str(error)


def _counted(one: ReplicaInfo, count: int | None) -> int | None:
    return count if one.is_leader and one.error is None else None


@click.command(
    cls=BusCommand,
    examples="""
    bus log dirs
    bus log dirs --topic orders --topic payments
    bus log dirs --broker 0 --format json
    """,
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Only this one; repeatable.",
)
@click.option(
    "--broker", "brokers", multiple=True, type=click.IntRange(min=0), metavar="ID", help="Only this one; repeatable."
)
@listing_format_option()
@address_option()
def dirs(topics: tuple[str, ...], brokers: tuple[int, ...], form: str | None, address: str) -> None:
    """Show what partitions take in the root, and what room its volume has, as each broker sees it.

    All brokers share the root, so the bytes of a partition are its leader's: of all files in the folder of its table.
    Reclaimable are those of data files that the last version does not have: bus log clean deletes them once
    file.delete.delay.ms and delta.log.retention.ms allow it.
    """
    with open_admin(address) as admin:
        found = admin.describe_log_dirs(topics or None, brokers or None)
    log_dirs = [(broker_id, path, one) for broker_id in sorted(found) for path, one in found[broker_id].items()]
    rows = [(name, broker_id, each) for broker_id, _, one in log_dirs for name, each in one.replica_infos.items()]
    write_listing(
        _REPLICA_COLUMNS,
        sorted(rows, key=lambda row: row[:2]),
        form,
        headings=(_log_dir_facts(*each) for each in log_dirs),
        documents=(_log_dir_object(*each) for each in log_dirs),
    )


def _log_dir_facts(broker_id: int, path: str, one: LogDirDescription) -> list[str]:
    led = [replica for replica in one.replica_infos.values() if replica.is_leader]
    return [
        f"Broker: {broker_id}",
        f"LogDir: {path}",
        f"Size: {human_bytes(sum(replica.size_bytes for replica in led))}",
        f"Reclaimable: {human_bytes(sum(replica.reclaimable_bytes or 0 for replica in led))}",
        f"Usable: {_bytes_or_unknown(one.usable_bytes)} of {_bytes_or_unknown(one.total_bytes)}",
        *([f"Error: {one.error}"] if one.error else []),
    ]


def _bytes_or_unknown(count: int | None) -> str:
    return "unknown" if count is None else human_bytes(count)


def _log_dir_object(broker_id: int, path: str, one: LogDirDescription) -> dict[str, Any]:
    return {
        "broker": broker_id,
        "log_dir": path,
        "total_bytes": one.total_bytes,
        "usable_bytes": one.usable_bytes,
        "error": _shown(one.error),
        "replicas": [
            {"topic": name.topic, "partition": name.partition} | asdict(replica) | {"error": _shown(replica.error)}
            for name, replica in sorted(one.replica_infos.items())
        ],
    }
