"""The choice among assignors: by name and by object, and how a consumer with them rebalances."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from bus.client.assignors import (
    Assignment,
    MemberSubscription,
    RangeAssignor,
    RebalanceProtocol,
    assignors_of,
    rebalance_protocol,
)
from bus.model import TopicPartition


class EverythingToTheFirst:
    name = "everything-to-the-first"
    protocols: Any = (RebalanceProtocol.COOPERATIVE,)

    def subscription_user_data(self, topics: Collection[str]) -> bytes:
        return b""

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
        return {}

    def on_assignment(self, assignment: Collection[TopicPartition], generation: int) -> None:
        pass


class Nameless(EverythingToTheFirst):
    name = ""


class WithoutProtocols(EverythingToTheFirst):
    protocols: Any = ()


class ProtocolByName(EverythingToTheFirst):
    protocols: Any = ("eager",)


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_kafkas_names_are_known(name: str) -> None:
    assert [assignor.name for assignor in assignors_of(name)] == [name]


def test_the_order_of_preference_is_kept() -> None:
    assert [a.name for a in assignors_of(["range", "cooperative-sticky"])] == ["range", "cooperative-sticky"]
    assert [a.name for a in assignors_of("sticky, range")] == ["sticky", "range"]


def test_each_consumer_gets_assignors_of_its_own() -> None:
    assert assignors_of("sticky")[0] is not assignors_of("sticky")[0]


def test_an_object_with_the_shape_of_an_assignor_is_one() -> None:
    own = EverythingToTheFirst()
    assert assignors_of(own) == (own,)
    assert assignors_of([own, "cooperative-sticky"])[0] is own


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("rnage", "by name"),
        ([], "one assignor or more"),
        (["range", "range"], "a name of its own"),
        (["range", RangeAssignor()], "a name of its own"),
        (RangeAssignor, "an object with the methods"),
        (7, "an object with the methods"),
        (None, "an object with the methods"),
        (Nameless(), "name to be a text"),
        (WithoutProtocols(), "list of RebalanceProtocol"),
        (ProtocolByName(), "list of RebalanceProtocol"),
        (["range", EverythingToTheFirst()], "one rebalance protocol together"),
    ],
)
def test_what_is_no_strategy_is_refused_with_what_was_expected(strategy: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        assignors_of(strategy)


@pytest.mark.parametrize(
    ("strategy", "protocol"),
    [
        (["range"], RebalanceProtocol.EAGER),
        (["range", "cooperative-sticky"], RebalanceProtocol.EAGER),
        (["cooperative-sticky", "sticky"], RebalanceProtocol.EAGER),
        (["cooperative-sticky"], RebalanceProtocol.COOPERATIVE),
    ],
)
def test_a_consumer_rebalances_cooperatively_only_if_all_its_assignors_do(
    strategy: list[str], protocol: RebalanceProtocol
) -> None:
    assert rebalance_protocol(assignors_of(strategy)) is protocol
