from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest

from bus.client.connection.cluster import Cluster
from bus.client.connection.leader_calls import ask_leaders, ask_leaders_once, leader_of
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

T = TypeVar("T")
A, B, C, D = (TopicPartition(topic, 0) for topic in "abcd")
MOVED = BusError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")


class FakeCluster:
    """`leaders`: of each topic; what is forgotten gets the leader of `next_leaders`. Retries three times."""

    def __init__(self, leaders: dict[str, str], next_leaders: dict[str, str] | None = None) -> None:
        self.leaders = leaders
        self.next_leaders = next_leaders or {}
        self.forgotten: list[set[str]] = []
        self.metadata = self

    def wait_partition(self, name: str, partition: int, *, deadline_ms: float) -> SimpleNamespace:
        return SimpleNamespace(name=name)

    def leader_address(self, info: SimpleNamespace, partition: int) -> str | None:
        return self.leaders.get(info.name)

    def forget(self, names: Iterable[str]) -> None:
        self.forgotten.append(set(names))
        self.leaders |= {name: self.next_leaders[name] for name in names if name in self.next_leaders}

    def retry(self, call: Callable[[], T], *, deadline_ms: float) -> T:
        for _ in range(2):
            try:
                return call()
            except BusError:
                pass
        return call()


class Leaders:
    """Answer with their addresses; `refused` by address."""

    def __init__(self, refused: dict[str, BusError] | None = None) -> None:
        self.refused = refused or {}
        self.asked: list[tuple[str, list[TopicPartition]]] = []

    def __call__(
        self, address: str, partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, str | BusError]]:
        self.asked.append((address, list(partitions)))
        for partition in partitions:
            yield partition, self.refused.get(address, address)


def ask(
    cluster: FakeCluster, leaders: Leaders, *partitions: TopicPartition, count_max: int = 9
) -> dict[TopicPartition, str]:
    return ask_leaders(cast("Cluster", cluster), partitions, leaders, deadline_ms=0, count_max=count_max)


def test_each_leader_is_asked_in_portions_and_answers_come_in_the_order_of_the_question() -> None:
    leaders = Leaders()
    cluster = FakeCluster({"a": "h:1", "b": "h:2", "c": "h:1", "d": "h:1"})
    assert [*ask(cluster, leaders, D, B, A, C, A, count_max=2).items()] == [
        (D, "h:1"),
        (B, "h:2"),
        (A, "h:1"),
        (C, "h:1"),
    ]
    assert leaders.asked == [("h:1", [D, A]), ("h:1", [C]), ("h:2", [B])]
    assert cluster.forgotten == []


def test_only_what_has_no_answer_is_forgotten_and_asked_again() -> None:
    cluster = FakeCluster({"a": "h:1", "b": "h:2"}, {"b": "h:3", "c": "h:1"})
    leaders = Leaders({"h:2": MOVED})
    assert ask(cluster, leaders, A, B, C) == {A: "h:1", B: "h:3", C: "h:1"}
    assert cluster.forgotten == [{"b", "c"}]
    assert leaders.asked == [("h:1", [A]), ("h:2", [B]), ("h:3", [B]), ("h:1", [C])]


def test_a_partition_that_the_answer_leaves_out_is_an_error_that_names_it() -> None:
    def forgets_b(address: str, partitions: Sequence[TopicPartition]) -> list[tuple[TopicPartition, str]]:
        return [(partition, address) for partition in partitions if partition != B]

    cluster = cast("Cluster", FakeCluster({"a": "h:1", "b": "h:1"}))
    found, error = ask_leaders_once(cluster, [A, B], forgets_b, deadline_ms=0)
    assert found == {A: "h:1"}
    assert error is not None
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "about b-0 from the broker at h:1, found none" in str(error)


def test_what_is_refused_to_the_end_is_raised() -> None:
    with pytest.raises(BusError, match="moved"):
        ask(FakeCluster({"a": "h:1"}), Leaders({"h:1": MOVED}), A)


def test_asked_once_what_was_found_comes_with_the_error_of_the_others() -> None:
    cluster = FakeCluster({"a": "h:1", "b": "h:2"})
    found, error = ask_leaders_once(cast("Cluster", cluster), [A, B], Leaders({"h:2": MOVED}), deadline_ms=0)
    assert (found, error) == ({A: "h:1"}, MOVED)
    assert cluster.forgotten == [{"b"}]


def test_a_partition_without_a_leader_is_refused_as_one_that_may_get_one() -> None:
    with pytest.raises(BusError, match="a-0 has no leader") as raised:
        leader_of(cast("Cluster", FakeCluster({})), A, deadline_ms=0)
    assert raised.value.code is ErrorCode.LEADER_NOT_AVAILABLE
