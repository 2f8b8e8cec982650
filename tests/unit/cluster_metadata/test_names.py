"""Topic names: Kafka's rules, and the bus's own names kept apart."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.configs import check_not_internal, check_topic_name, collision_key, is_internal_topic
from bus.errors import ErrorCode


@pytest.mark.parametrize("name", ["a", "Orders-2.eu_west", "...", "-", "_", "9" * 249])
def test_legal_name_is_taken(name: str) -> None:
    assert check_topic_name(name) is None
    assert check_not_internal(name) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("", "found an empty one"),
        (".", "found ."),
        ("..", "found .."),
        ("x" * 250, "at most 249 characters, found 250"),
        ("a b", "found 'a b'"),
        ("a/b", "found 'a/b'"),
        ("bücher", "found 'bücher'"),
        ("orders\n", "found 'orders\\n'"),
        ("a\x00", "found 'a\\x00'"),
    ],
)
def test_illegal_name_is_refused_with_what_was_found(name: str, found: str) -> None:
    refused = check_topic_name(name)
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refused.message.endswith(found)


def test_names_of_the_bus_itself_are_not_for_users() -> None:
    assert is_internal_topic("__consumer_offsets")
    assert not is_internal_topic("_consumer_offsets")
    refused = check_not_internal("__anything")
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_differ_in_dots_and_underscores_only_have_one_collision_key() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a.b") != collision_key("a-b")
