from __future__ import annotations

import click
import pytest

from bus.cli.partition_arguments import Target, parse_partitions, parse_scope
from bus.tables.point_in_time import parse_bound


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", ("orders", ())),
        ("orders/0", ("orders", (0,))),
        ("orders:3", ("orders", (3,))),
        ("my-topic.v1/2,0,2", ("my-topic.v1", (0, 2))),
    ],
)
def test_partitions_are_written_with_a_slash_or_a_colon(text: str, parts: tuple[str, tuple[int, ...]]) -> None:
    assert parse_partitions(text) == parts
    assert parse_scope([text]) == dict([parts])


@pytest.mark.parametrize("text", ["", "/0", "orders/", "orders/x", "orders/0,", "orders/-1", "a/0/1", "orders/\u0663"])
def test_what_is_no_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected TOPIC or TOPIC/0 or TOPIC/0,2, found"):
        parse_partitions(text)


def test_a_topics_own_partitions_come_before_those_of_the_option() -> None:
    assert parse_scope(["a", "b/1", "b/0"], partitions=[2]) == {"a": (2,), "b": (0, 1)}
    assert parse_scope(["a", "a/1"], partitions=[2]) == {"a": (1, 2)}


@pytest.mark.parametrize("texts", [["a", "a/1"], ["a/1", "a"], ["a/1", "a", "a/2"]])
def test_a_topic_that_is_named_without_partitions_has_all_of_them(texts: list[str]) -> None:
    assert parse_scope(texts) == {"a": ()}


def test_every_door_takes_both_forms() -> None:
    assert (Target("a/1").partition, Target("a:1").partition, Target("a").partition) == (1, 1, None)
    with pytest.raises(click.BadParameter, match="expected TOPIC or TOPIC/PARTITION"):
        Target("a/1,2")
    assert parse_bound(["a/0=3", "b=4"]) == parse_bound(["a:0=3", "b=4"])
