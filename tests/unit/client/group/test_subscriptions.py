from __future__ import annotations

import re
from typing import Any

import pytest

from bus.client.group.group_topics import Subscription, subscription_of
from bus.errors import BusError, ErrorCode

NOBODY: dict[str, Any] = {"on_assigned": None, "on_revoked": None, "on_lost": None}


def subscribed(topics: Any, pattern: Any = None) -> Subscription:
    found = subscription_of(topics, pattern, **NOBODY)
    assert found is not None
    return found


def refusal(topics: Any, pattern: Any = None) -> BusError:
    with pytest.raises(BusError) as caught:
        subscription_of(topics, pattern, **NOBODY)
    return caught.value


def test_topic_that_is_named_twice_is_subscribed_once() -> None:
    assert subscribed(["a", "b", "a"]).topics == {"a", "b"}


def test_no_topics_are_no_subscription() -> None:
    assert subscription_of([], None, **NOBODY) is None


@pytest.mark.parametrize("pattern", ["orders-.*", re.compile("ORDERS-.*", re.IGNORECASE)])
def test_pattern_has_to_match_the_whole_name(pattern: Any) -> None:
    assert subscribed(None, pattern).matching(["orders-a", "old-orders-b", "orders", "orders-"]) == {
        "orders-a",
        "orders-",
    }


@pytest.mark.parametrize("pattern", ["(", 3])
def test_what_is_no_pattern_is_refused(pattern: Any) -> None:
    assert refusal(None, pattern).code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_text_in_place_of_a_list_of_topics_is_refused() -> None:
    assert "expected a list of topics, found the text 'orders'" in refusal("orders").message


@pytest.mark.parametrize(("topics", "pattern", "found"), [(None, None, "neither"), (["a"], "a", "both")])
def test_it_is_topics_or_a_pattern(topics: Any, pattern: Any, found: str) -> None:
    assert refusal(topics, pattern).message.endswith(f"found {found}")
