"""Where offsets are to be set, as options: `--to-earliest`, `--to-datetime 2013-07-01T12:00`, `--to-version 12` ...

Names and meaning of Kafka's command where it has them; a group at a Delta version, and at another group's offsets, are
the bus's own.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bus.cli.options import complete_groups
from bus.cli.positions import TimestampType
from bus.model import TopicPartition

if TYPE_CHECKING:
    from bus.client.admin.offset_targets import OffsetTarget

_STARTS = (
    click.option("--to-earliest", is_flag=True, help="The first record that is there."),
    click.option("--to-latest", is_flag=True, help="The end: new records alone."),
    click.option(
        "--to-datetime",
        type=TimestampType(),
        metavar="TIME",
        help="The first record from then on; ISO 8601 (UTC).",
    ),
    click.option("--to-version", multiple=True, metavar="N", help="The end at a Delta version: N, TOPIC=N, TOPIC/0=N."),
    click.option("--to-group", metavar="OTHER", shell_complete=complete_groups, help="What another group committed."),
)
_MOVES = (
    click.option("--to-current", is_flag=True, help="What is committed; with --export, to keep it."),
    click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="This very offset."),
    click.option("--shift-by", type=int, metavar="N", help="N records on from what is committed; negative: back."),
    click.option("--by-duration", metavar="PT1H", help="The first record of the time since then, in ISO 8601."),
    click.option(
        "--from-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="CSV",
        help="topic,partition,offset a line, as --export writes it.",
    ),
)


def starting_points(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for a group that has no offsets yet."""
    return _with(command, _STARTS)


def all_targets(command: Callable[..., Any]) -> Callable[..., Any]:
    return _with(command, _STARTS + _MOVES)


def _with(command: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def target_of(places: Mapping[str, Any]) -> OffsetTarget:
    """From the values of the options by their names. Raises `click.UsageError` unless it is exactly one."""
    from bus.client.admin import offset_targets as targets

    given = {name: value for name, value in places.items() if value is not None and value is not False and value != ()}
    if len(given) != 1:
        known = ", ".join(f"--{name.replace('_', '-')}" for name in places)
        raise click.UsageError(f"expected one of {known}, found {len(given) or 'none'}")
    ((name, value),) = given.items()
    match name:
        case "to_earliest":
            return targets.ToEarliest()
        case "to_latest":
            return targets.ToLatest()
        case "to_current":
            return targets.ToCurrent()
        case "to_offset":
            return targets.ToOffset(value)
        case "shift_by":
            return targets.ShiftBy(value)
        case "to_datetime":
            return targets.ToTimestamp(value)
        case "by_duration":
            return targets.ToTimestamp(time.time_ns() // 1_000_000 - _duration(value))
        case "to_version":
            return targets.ToVersion(_versions(value))
        case "to_group":
            return targets.ToGroup(value)
        case _:
            return targets.ToGiven(read_offsets(value))


def _duration(text: str) -> int:
    from bus.client.config.values import duration_ms

    found = duration_ms(text)
    if found is None:
        raise click.BadParameter(f"expected a duration like P1DT2H30M, found {text!r}", param_hint="--by-duration")
    return found


def _versions(texts: tuple[str, ...]) -> Any:
    from bus.tables.point_in_time import parse_bound

    try:
        return parse_bound(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--to-version") from None


def read_offsets(file: Path) -> dict[TopicPartition, int]:
    """Lines of topic,partition,offset. Raises `click.BadParameter` that names the line."""
    offsets: dict[TopicPartition, int] = {}
    with file.open(encoding="utf-8", newline="") as stream:
        for number, cells in enumerate(csv.reader(stream), start=1):
            if not cells:
                continue
            if len(cells) != 3 or not (cells[1].strip().isdecimal() and cells[2].strip().isdecimal()):
                raise click.BadParameter(
                    f"expected topic,partition,offset in line {number} of {file}, found {','.join(cells)!r}",
                    param_hint="--from-file",
                )
            partition = TopicPartition(cells[0].strip(), int(cells[1]))
            if partition in offsets:
                raise click.BadParameter(
                    f"expected each partition once, found {partition} again in line {number} of {file}",
                    param_hint="--from-file",
                )
            offsets[partition] = int(cells[2])
    if not offsets:
        raise click.BadParameter(f"expected topic,partition,offset in {file}, found no line", param_hint="--from-file")
    return offsets
