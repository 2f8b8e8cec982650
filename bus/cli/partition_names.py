"""Partitions as people write them: `orders`, `orders/0`, `orders/0,2`; `orders:0,2`, as Kafka's tools have it, too.

The same wherever a command takes partitions. No name of a topic has a slash or a colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import click

_NAME = re.compile(r"(?P<topic>[^/:]+)(?:[/:](?P<partitions>[0-9]{1,9}(?:,[0-9]{1,9})*))?")


def parse_partitions(text: str) -> tuple[str, tuple[int, ...]]:
    """The topic and its partitions, sorted; none: all of them. Raises ValueError that says what was expected."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"expected TOPIC or TOPIC/0 or TOPIC/0,2, found {text!r}")
    numbers = (match["partitions"] or "").split(",")
    return match["topic"], tuple(sorted({int(number) for number in numbers if number}))


def parse_topics(texts: Iterable[str], partitions: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Topics, each with its own partitions or else with `partitions`. Raises `click.BadParameter`."""
    wanted: dict[str, tuple[int, ...]] = {}
    for text in texts:
        try:
            topic, own = parse_partitions(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="TOPIC") from None
        wanted[topic] = tuple(sorted({*wanted.get(topic, ()), *(own or partitions)}))
    return wanted
