"""`bus transactions`: list, describe, abort and fence (KIP-664), with the columns of kafka-transactions.sh."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusGroup
from bus.cli.options import (
    address_option,
    complete_transactional_ids,
    confirm,
    listing_format_option,
    open_admin,
    yes_option,
)
from bus.cli.output import Column, Columns, Kind, echo, write_listing
from bus.cli.partition_arguments import TOPIC_OPTION, parse_scope, partitions_in
from bus.errors import count_of

if TYPE_CHECKING:
    from bus.descriptions import (
        FencedProducer,
        HangingTransaction,
        ProducerState,
        TransactionDescription,
        TransactionListing,
    )
    from bus.model import TopicPartition

_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Unreadable")
_LIST_COLUMNS: Columns[TransactionListing] = (
    Column("transactional_id", lambda one: one.transactional_id, label="TransactionalId", is_key=True),
    Column("coordinator", lambda one: one.coordinator_id, Kind.NUMBER, "Coordinator"),
    Column("producer_id", lambda one: one.producer_id, Kind.NUMBER, "ProducerId"),
    Column("transaction_state", lambda one: one.state, label="TransactionState"),
)
_DESCRIBE_COLUMNS: Columns[TransactionDescription] = (
    Column("coordinator_id", lambda one: one.coordinator.broker_id, Kind.NUMBER, "CoordinatorId"),
    Column("transactional_id", lambda one: one.transactional_id, label="TransactionalId", is_key=True),
    Column("producer_id", lambda one: one.producer_id, Kind.NUMBER, "ProducerId"),
    Column("producer_epoch", lambda one: one.producer_epoch, Kind.NUMBER, "ProducerEpoch"),
    Column("transaction_state", lambda one: one.state, label="TransactionState"),
    Column("transaction_timeout_ms", lambda one: one.timeout_ms, Kind.NUMBER, "TransactionTimeoutMs"),
    Column(
        "current_transaction_start_time_ms",
        lambda one: _known(one.start_ms),
        Kind.NUMBER,
        "CurrentTransactionStartTimeMs",
    ),
    Column("transaction_duration_ms", lambda one: _age_ms(one.start_ms), Kind.NUMBER, "TransactionDurationMs"),
    Column("topic_partitions", lambda one: ",".join(map(str, one.partitions)) or None, label="TopicPartitions"),
    Column("groups", lambda one: ",".join(one.group_ids) or None, label="Groups"),
)
_PRODUCER_COLUMNS: Columns[tuple[TopicPartition, ProducerState]] = (
    Column("topic", lambda row: row[0].topic, label="Topic", is_key=True),
    Column("partition", lambda row: row[0].partition, Kind.NUMBER, "Partition", is_key=True),
    Column("producer_id", lambda row: row[1].producer_id, Kind.NUMBER, "ProducerId"),
    Column("producer_epoch", lambda row: row[1].producer_epoch, Kind.NUMBER, "ProducerEpoch"),
    Column("last_sequence", lambda row: _known(row[1].last_sequence), Kind.NUMBER, "LastSequence"),
    Column("last_timestamp_ms", lambda row: _known(row[1].last_timestamp_ms), Kind.TIME_MS, "LastTimestamp"),
    Column("coordinator_partition", lambda row: row[1].coordinator_partition, Kind.NUMBER, "CoordinatorPartition"),
    Column("staged_bytes", lambda row: _staged_bytes(row[1]), Kind.BYTES, "StagedBytes"),
)
_HANGING_COLUMNS: Columns[HangingTransaction] = (
    Column("topic", lambda one: one.partition and one.partition.topic, label="Topic", is_key=True),
    Column("partition", lambda one: one.partition and one.partition.partition, Kind.NUMBER, "Partition", is_key=True),
    Column("group", lambda one: one.group_id, label="Group", is_key=True),
    Column("producer_id", lambda one: one.producer_id, Kind.NUMBER, "ProducerId"),
    Column("producer_epoch", lambda one: one.producer_epoch, Kind.NUMBER, "ProducerEpoch"),
    Column("last_timestamp_ms", lambda one: one.last_timestamp_ms, Kind.TIME_MS, "LastTimestamp"),
    Column("duration_s", lambda one: _seconds_since(one.last_timestamp_ms), Kind.NUMBER, "Duration(s)"),
    Column("staged_bytes", lambda one: None if one.partition is None else one.staged_bytes, Kind.BYTES, "StagedBytes"),
    Column("offsets", lambda one: None if one.group_id is None else one.offset_count, Kind.NUMBER, "Offsets"),
)
_FENCED_COLUMNS: Columns[tuple[str, FencedProducer]] = (
    Column("transactional_id", lambda row: row[0], label="TransactionalId", is_key=True),
    Column("producer_id", lambda row: row[1].producer_id, Kind.NUMBER, "ProducerId"),
    Column("producer_epoch", lambda row: row[1].producer_epoch, Kind.NUMBER, "ProducerEpoch"),
)


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _age_ms(start_ms: int) -> int | None:
    return None if start_ms < 0 else max(0, time.time_ns() // 1_000_000 - start_ms)


def _seconds_since(time_ms: int) -> int:
    return max(0, time.time_ns() // 1_000_000 - time_ms) // 1_000


def _staged_bytes(producer: ProducerState) -> int | None:
    return None if producer.coordinator_partition is None else producer.staged_bytes


@click.group(cls=BusGroup)
def transactions() -> None:
    """List, describe, abort and fence transactions."""


@transactions.command(
    "list",
    examples="""
    bus transactions list
    bus transactions list --state Ongoing --state PrepareCommit
    bus transactions list --duration-filter 60000
    """,
)
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES, case_sensitive=False),
    multiple=True,
    metavar="STATE",
    help=f"Only those in this state: {', '.join(_STATES)}; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(0),
    multiple=True,
    metavar="ID",
    help="Only with this producer id; repeatable.",
)
@click.option(
    "--duration-filter",
    "duration_ms",
    type=click.IntRange(0),
    default=0,
    show_default=False,
    metavar="MS",
    help="Only with a transaction that has been open for longer.",
)
@listing_format_option()
@address_option()
def list_transactions(
    states: tuple[str, ...], producer_ids: tuple[int, ...], duration_ms: int, form: str | None, address: str
) -> None:
    """List the transactional ids. One whose record cannot be read is Unreadable: all its calls are refused until bus
    transactions fence gives it up."""
    with open_admin(address) as admin:
        listed = admin.list_transactions(states, producer_ids, duration_ms=duration_ms)
    write_listing(_LIST_COLUMNS, listed, form)


@transactions.command(
    examples="""
    bus transactions describe payments
    bus transactions describe payments invoices --format json
    """
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_transactional_ids)
@listing_format_option()
@address_option()
def describe(ids: tuple[str, ...], form: str | None, address: str) -> None:
    """Show state, producer and time-out of transactional ids, and what takes part in their open transaction.

    One that stays in PrepareCommit or PrepareAbort waits for a partition: bus topics describe --unavailable.
    """
    with open_admin(address) as admin:
        described = admin.describe_transactions(ids)
    write_listing(_DESCRIBE_COLUMNS, described.values(), form)


@transactions.command(
    "describe-producers",
    examples="""
    bus transactions describe-producers orders
    bus transactions describe-producers orders/0,1 payments
    """,
)
@click.argument("topics", metavar="TOPIC[/0,1]...", nargs=-1, required=True)
@listing_format_option()
@address_option()
def describe_producers(topics: tuple[str, ...], form: str | None, address: str) -> None:
    """Show who has written to partitions, as far as their leaders remember, and what is staged of transactions.

    What has a coordinator partition, of __transaction_state, is staged: no reader sees it before it is committed.
    """
    scope = parse_scope(topics)
    with open_admin(address) as admin:
        found = admin.describe_producers(partitions_in(scope, admin))
    write_listing(_PRODUCER_COLUMNS, [(name, one) for name, of_it in found.items() for one in of_it], form)


@transactions.command(
    "find-hanging",
    examples="""
    bus transactions find-hanging
    bus transactions find-hanging --topic orders/0 --topic payments
    bus transactions find-hanging --max-transaction-timeout 60
    """,
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[/0,1]", help="Only in these partitions; repeatable.")
@click.option(
    "--max-transaction-timeout",
    "timeout_minutes",
    type=click.IntRange(0),
    default=15,
    metavar="MINUTES",
    help="Only what is older than this; give the brokers' transaction.max.timeout.ms.",
)
@listing_format_option()
@address_option()
def find_hanging(topics: tuple[str, ...], timeout_minutes: int, form: str | None, address: str) -> None:
    """Find what is staged in partitions, or pending in groups, of transactions that are not open.

    No reader waits for what is staged, and the leaders delete it in time. Offsets that are pending keep consumers of
    the group from their positions.
    """
    scope = parse_scope(topics, given_as=TOPIC_OPTION)
    with open_admin(address) as admin:
        partitions = partitions_in(scope, admin) if scope else None
        found = admin.find_hanging_transactions(partitions, older_than_ms=timeout_minutes * 60_000)
    write_listing(_HANGING_COLUMNS, found, form)


@transactions.command(
    examples="""
    bus transactions abort payments
    bus transactions abort payments --producer-id 4000 --producer-epoch 17 --yes
    """
)
@click.argument("transactional_id", metavar="ID", shell_complete=complete_transactional_ids)
@click.option("--producer-id", type=click.IntRange(0), metavar="ID", help="Only the transaction with this producer id.")
@click.option("--producer-epoch", type=click.IntRange(0), metavar="N", help="And with this epoch.")
@yes_option()
@address_option()
def abort(
    transactional_id: str, producer_id: int | None, producer_epoch: int | None, is_sure: bool, address: str
) -> None:
    """Abort the open transaction of ID. Asks first on a terminal; refused once a commit is decided.

    Its producer is told so with its next call, and may begin again.
    """
    if (producer_id is None) != (producer_epoch is None):
        raise click.UsageError("expected --producer-id and --producer-epoch, or neither")
    confirm(f"abort the transaction of {transactional_id}?", is_sure=is_sure, otherwise="nothing was aborted")
    with open_admin(address) as admin:
        was = admin.abort_transaction(transactional_id, producer_id=producer_id, producer_epoch=producer_epoch)
    count = count_of(len(was.partitions), "partition")
    groups = f" and {count_of(len(was.group_ids), 'group')}" if was.group_ids else ""
    echo(f"aborted the transaction of {transactional_id} in {count}{groups}")


@transactions.command(
    examples="""
    bus transactions fence payments
    bus transactions fence payments invoices --yes
    """
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_transactional_ids)
@yes_option()
@listing_format_option()
@address_option()
def fence(ids: tuple[str, ...], is_sure: bool, form: str | None, address: str) -> None:
    """Shut out the producers with these transactional ids, and abort what they have open. Asks first on a terminal.

    A producer that lives gets PRODUCER_FENCED and can only be closed; its next instance takes the id over. Prints
    the producer id and epoch of each id: calls with an earlier epoch are refused.
    """
    confirm(f"fence {', '.join(ids)}?", is_sure=is_sure, otherwise="nothing was fenced")
    with open_admin(address) as admin:
        fenced = admin.fence_producers(ids)
    write_listing(_FENCED_COLUMNS, fenced.items(), form)
