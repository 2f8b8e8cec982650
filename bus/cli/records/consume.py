"""`bus consume`: the records of topics, in each partition's order, to standard output, alone or as a member of a group.

Follows the topics until it is told to stop, as kcat does, unless `--exit` or `--max` ends it. Guards two promises: a
record is printed once and whole (record_format.py), before the command waits for more; and with `--group` an offset is
committed when the operating system has taken all bytes of its record, and not before, so the reader of the output gets
every record at least once, however the command ends. Commits by itself: the consumer's auto-commit would also commit
what could not be printed any more.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import Failure
from bus.cli.groups.group_rows import assignment_text
from bus.cli.options import address_option, choose_partitions, complete_groups, topic_argument
from bus.cli.output import echo
from bus.cli.partition_arguments import Place, Position, PositionType, parse_scope
from bus.cli.records.record_format import FORMAT_HELP, RecordOutput, check_format, compile_format
from bus.errors import count_of
from bus.model import TopicPartition
from bus.platform.signals import signals_as_interrupts

if TYPE_CHECKING:
    from bus.client.consumer.consumer import Consumer
    from bus.client.values import ConsumerRecord

_RECORDS_PER_POLL = 20_000
_POLL_MS = 500


@click.command(
    cls=BusCommand,
    examples=r"""
    bus consume orders
    bus consume orders --from end
    bus consume orders --from -10 --exit
    bus consume orders --from 2013-07-01T12:00 --max 5 --format json
    bus consume orders --from @-1h
    bus consume orders/0 --from 1500 --exit --format '%o %k: %s\n'
    bus consume orders payments --group billing
    bus consume '^orders-.*' --group audit
    """,
)
@topic_argument(is_repeatable=True)
@click.option(
    "--from",
    "-o",
    "position",
    type=PositionType(),
    default="beginning",
    metavar="WHERE",
    help="Where to begin: beginning, end, an offset, -N for the last N of each partition, a time in ISO 8601 (UTC), "
    "@MILLISECONDS, or @-1h for an hour ago (w d h m s).",
)
@click.option(
    "--from-beginning",
    "is_from_beginning",
    is_flag=True,
    help="As --from beginning, for hands that know Kafka's console consumer.",
)
@click.option(
    "--group",
    "-g",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="As a member of this group: share the partitions, go on where it is, commit what was printed.",
)
@click.option("--partition", "-p", "partitions", type=int, multiple=True, help="Only this one; repeatable.")
@click.option("--max", "-c", "count_max", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option("--exit", "-e", "is_finite", is_flag=True, help="Stop at the end that each partition has at the start.")
@click.option(
    "--format",
    "-f",
    "form",
    default="raw",
    metavar="FORMAT",
    help=f"raw (the value and a line end), json, or a format: {FORMAT_HELP}.",
)
@click.option("--key-separator", "-K", metavar="TEXT", help="With raw: print the key and this before the value.")
@click.option("--quiet", "-q", is_flag=True, help="No count at the end.")
@address_option()
def consume(
    topics: tuple[str, ...],
    position: Position,
    is_from_beginning: bool,
    group: str | None,
    partitions: tuple[int, ...],
    count_max: int | None,
    is_finite: bool,
    form: str,
    key_separator: str | None,
    quiet: bool,
    address: str,
) -> None:
    """Print the records of TOPIC; go on with new ones until Ctrl-C, SIGTERM or SIGHUP, unless --exit or --max ends it.

    Begins at the beginning, as kcat does; Kafka's console consumer begins at the end: --from end. A member of a group
    goes on where the group is, and --from, beginning or end, is for partitions of which it has no offset yet.

    TOPIC is a name, one with partitions (orders/0,2), or with ^ in front a regular expression of names (^orders-.*).
    """
    if is_from_beginning:
        position = Position(Place.BEGINNING)
    try:
        check_format(form)
        write = compile_format(form, key_separator=key_separator, is_terminal=sys.stdout.isatty())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    names = list(dict.fromkeys(topics))
    wanted = _parse_topics(names, partitions)
    if group is not None and not group.strip():
        raise click.BadParameter(f"expected a text that is not blank, found {group!r}", param_hint="--group")
    reset = "" if group is None else _check_member(position, wanted)
    printed = 0
    try:
        with signals_as_interrupts() as interrupts:
            output = RecordOutput(sys.stdout, write, interrupts)
            if group is None:
                counts = _read_alone(address, wanted, position, count_max, is_finite, output)
            else:
                tell = _say_nothing if quiet else _say
                counts = _read_as_member(address, names, group, reset, count_max, is_finite, output, tell)
            with contextlib.closing(counts):
                for count in counts:
                    printed = count
    finally:
        if not quiet and sys.stderr.isatty():
            _say(f"{count_of(printed, 'record')} of {', '.join(names)}")


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        echo(line, err=True)


def _say_nothing(line: str) -> None:
    pass


def _read_alone(
    address: str,
    wanted: Mapping[str, Sequence[int]],
    position: Position,
    count_max: int | None,
    is_finite: bool,
    output: RecordOutput,
) -> Generator[int, None, None]:
    from bus.client.consumer.consumer import Consumer

    with Consumer(address, auto_offset_reset="earliest", max_poll_records=_RECORDS_PER_POLL) as consumer:
        chosen = []
        for topic, partitions in _matching(wanted, consumer).items():
            known = [one.partition for one in consumer.partitions_for(topic)]
            chosen += [TopicPartition(topic, number) for number in choose_partitions(topic, partitions, known)]
        ends = consumer.end_offsets(chosen) if is_finite else None
        consumer.assign(chosen)
        seek(consumer, chosen, position)
        yield from _print_records(consumer, ends, count_max, output)


def _parse_topics(texts: Sequence[str], partitions: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and patterns, each with its partitions; none: all of them. Raises `click.BadParameter`."""
    patterns = [text for text in texts if text.startswith("^")]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            reason = f"expected a regular expression, found {pattern!r}: {error}"
            raise click.BadParameter(reason, param_hint="TOPIC") from None
    names = parse_scope([text for text in texts if text not in patterns], partitions=partitions)
    return {**names, **dict.fromkeys(patterns, tuple(partitions))}


def _matching(wanted: Mapping[str, Sequence[int]], consumer: Consumer) -> dict[str, Sequence[int]]:
    """Put the topics that there are in the place of each pattern, the bus's own left out. Raises `Failure`."""
    if not any(name.startswith("^") for name in wanted):
        return dict(wanted)
    found: dict[str, Sequence[int]] = {}
    for name, partitions in wanted.items():
        if not name.startswith("^"):
            found[name] = partitions
            continue
        there = sorted(consumer.topics())
        matches = [one for one in there if re.match(name, one)]
        if not matches:
            raise Failure(f"no topic matches {name}; topics: {', '.join(there[:30]) or 'none yet'}")
        found.update(dict.fromkeys(matches, partitions))
    return found


def _check_member(position: Position, wanted: Mapping[str, Sequence[int]]) -> str:
    """The consumer's auto_offset_reset. Raises `click.UsageError` for what a member cannot choose."""
    if any(wanted.values()):
        raise click.UsageError("expected --group or --partition, found both: the group gives out the partitions")
    if position.place not in (Place.BEGINNING, Place.END):
        raise click.UsageError(
            "expected --from beginning or end with --group; to set its offsets: bus groups create, or reset-offsets"
        )
    return "earliest" if position.place is Place.BEGINNING else "latest"


def _read_as_member(
    address: str,
    topics: Sequence[str],
    group: str,
    reset: str,
    count_max: int | None,
    is_finite: bool,
    output: RecordOutput,
    tell: Callable[[str], None],
) -> Generator[int, None, None]:
    from bus.client.consumer.consumer import Consumer

    with Consumer(
        address,
        group_id=group,
        client_id="bus-consume",
        auto_offset_reset=reset,
        enable_auto_commit=False,
        max_poll_records=_RECORDS_PER_POLL,
    ) as consumer:
        for topic in topics:
            if not topic.startswith("^"):
                consumer.partitions_for(topic)  # one that does not exist is refused; a subscription would wait for it
        printer = GroupPrinter(consumer, output, is_finite=is_finite, tell=tell)
        printer.subscribe(topics)
        try:
            yield from printer.run(records_per_poll=_RECORDS_PER_POLL, count_max=count_max)
        finally:
            printer.commit()


def seek(consumer: Consumer, partitions: Sequence[TopicPartition], position: Position) -> None:
    """Bring every partition to `position`; a place before or behind the log is its beginning or end."""
    match position.place:
        case Place.BEGINNING:
            consumer.seek_to_beginning(partitions)
        case Place.END:
            # Looked up now: what is produced from this moment on is printed.
            for partition, offset in consumer.end_offsets(partitions).items():
                consumer.seek(partition, offset)
        case Place.TIMESTAMP:
            ends = consumer.end_offsets(partitions)
            found = consumer.offsets_for_times(dict.fromkeys(partitions, position.number))
            for partition, at in found.items():
                consumer.seek(partition, ends[partition] if at is None else at.offset)
        case _:
            begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            for partition in partitions:
                is_last = position.place is Place.LAST
                wanted = ends[partition] - position.number if is_last else position.number
                consumer.seek(partition, max(begins[partition], wanted))


def _print_records(
    consumer: Consumer, ends: Mapping[TopicPartition, int] | None, count_max: int | None, output: RecordOutput
) -> Iterator[int]:
    """Print, and say how many there are by now, until `ends` are reached or `count_max` were printed."""
    count = 0
    reached = {(partition.topic, partition.partition): end for partition, end in (ends or {}).items()}
    left = {partition for partition, end in (ends or {}).items() if consumer.position(partition) < end}
    while (count_max is None or count < count_max) and (ends is None or left):
        wanted = _RECORDS_PER_POLL if count_max is None else min(_RECORDS_PER_POLL, count_max - count)
        records = consumer.poll(_POLL_MS, wanted)
        if ends is not None:
            records = [record for record in records if record.offset < reached[record.topic, record.partition]]
            done = {partition for partition in left if consumer.position(partition) >= ends[partition]}
            consumer.pause(done)
            left -= done
        output.write(records)
        count += len(records)
        yield count


_COMMIT_INTERVAL_S = 1.0
_SILENCE_S = 2.0


class GroupPrinter:
    """One member's printing. `tell` gets a line for people at each rebalance.

    With `is_finite` it ends where each of its partitions ended when it was given to it.
    """

    def __init__(
        self, consumer: Consumer, output: RecordOutput, *, is_finite: bool, tell: Callable[[str], None]
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._is_finite = is_finite
        self._tell = tell
        self._is_assigned = False  # between a revocation and the next assignment it has nothing, but is not done
        self._ends: dict[TopicPartition, int] = {}
        self._printed: dict[TopicPartition, int] = {}  # the next offset of what was printed and is not committed
        self._committed_at = time.monotonic()
        self._waits_since: float | None = self._committed_at

    def subscribe(self, topics: Sequence[str]) -> None:
        """To these, and to those that match one that begins with ^, now or later."""
        subscribe = partial(
            self._consumer.subscribe, on_assigned=self._take, on_revoked=self._give_back, on_lost=self._lose
        )
        if not any(topic.startswith("^") for topic in topics):
            subscribe(topics)
            return
        patterns = [f"(?:{topic}).*" if topic.startswith("^") else re.escape(topic) for topic in topics]
        subscribe(pattern="|".join(patterns))

    def run(self, *, records_per_poll: int, count_max: int | None) -> Iterator[int]:
        """Print, and say how many there are by now, until the end, or until `count_max` were printed."""
        count = 0
        while (count_max is None or count < count_max) and not self._is_done():
            wanted = records_per_poll if count_max is None else min(records_per_poll, count_max - count)
            records = self._within_ends(self._consumer.poll(_POLL_MS, wanted))
            self._tell_waiting()
            self._output.write(records)
            self._note_printed()
            count += len(records)
            if self._printed and time.monotonic() >= self._committed_at + _COMMIT_INTERVAL_S:
                self._consumer.commit(self._printed, asynchronous=True)
                self._note_committed()
            yield count

    def _tell_waiting(self) -> None:
        """Once, a while after the start: to wait for the other members, or for a topic, looks like hanging."""
        if self._is_assigned:
            self._waits_since = None
        elif self._waits_since is not None and time.monotonic() >= self._waits_since + _SILENCE_S:
            self._waits_since = None
            self._tell("waiting for partitions: the group rebalances, or there is no such topic yet")

    def commit(self) -> None:
        """Commit what was printed, now. Raises `BusError`."""
        self._note_printed()
        if self._printed:
            self._consumer.commit(self._printed)
            self._note_committed()

    def _note_printed(self) -> None:
        """Note what was printed of the last batch, which an interrupt may have ended anywhere, and this too. Once only:
        its partitions may be lost later."""
        batch = self._output.batch
        for record in batch.records[: batch.count]:
            self._printed[TopicPartition(record.topic, record.partition)] = record.offset + 1
        self._output.forget()

    def _note_committed(self) -> None:
        self._printed = {}
        self._committed_at = time.monotonic()

    def _within_ends(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        if not self._is_finite:
            return records
        self._consumer.pause([one for one in self._consumer.assignment() if self._is_at_end(one)])
        ends = self._ends
        return [one for one in records if one.offset < ends[TopicPartition(one.topic, one.partition)]]

    def _is_done(self) -> bool:
        return self._is_finite and self._is_assigned and all(map(self._is_at_end, self._consumer.assignment()))

    def _is_at_end(self, partition: TopicPartition) -> bool:
        return self._consumer.position(partition) >= self._ends[partition]

    def _take(self, partitions: Sequence[TopicPartition]) -> None:
        self._is_assigned = True
        self._tell(f"assigned: {assignment_text(partitions) or 'nothing'}")
        if self._is_finite and partitions:
            self._ends.update(self._consumer.end_offsets(partitions))

    def _give_back(self, partitions: Sequence[TopicPartition]) -> None:
        self._is_assigned = False
        self._tell(f"revoked: {assignment_text(partitions) or 'nothing'}")
        self.commit()

    def _lose(self, partitions: Sequence[TopicPartition]) -> None:
        """Others may have printed and committed further."""
        self._is_assigned = False
        self._tell(f"lost: {assignment_text(partitions) or 'nothing'}")
        for one in partitions:
            self._printed.pop(one, None)
