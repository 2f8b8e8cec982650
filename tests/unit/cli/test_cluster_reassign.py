from __future__ import annotations

import json
from collections import Counter

import pytest

from bus.cli.cluster.cluster_reassign import Plan, Racks, decode_plan, encode_plan, plan_evenly, plan_without
from bus.cli.failures import Failure
from bus.model import TopicPartition

NO_RACKS: Racks = {0: None, 1: None, 2: None}


def current(count: int, *replicas: int) -> Plan:
    return {TopicPartition("t", number): replicas for number in range(count)}


def test_even_plan_spreads_leaders_and_replicas_over_all_brokers() -> None:
    plan = plan_evenly(current(12, 0, 1), NO_RACKS)
    assert Counter(replicas[0] for replicas in plan.values()) == {0: 4, 1: 4, 2: 4}
    assert Counter(replicas[1] for replicas in plan.values()) == {0: 4, 1: 4, 2: 4}
    # What a broker leads falls to both others when it fails.
    assert {replicas for replicas in plan.values() if replicas[0] == 0} == {(0, 1), (0, 2)}


def test_even_plan_puts_the_replicas_of_a_partition_on_different_racks() -> None:
    racks: Racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    plan = plan_evenly(current(30, 0, 1, 2), racks)
    assert all(len({racks[one] for one in replicas}) == 3 for replicas in plan.values())
    assert set(Counter(replicas[0] for replicas in plan.values()).values()) == {5}


def test_partition_gets_no_more_replicas_than_there_are_brokers() -> None:
    assert {len(replicas) for replicas in plan_evenly(current(3, 0), NO_RACKS, 3).values()} == {3}
    assert {len(replicas) for replicas in plan_evenly(current(3, 0, 1, 2), {1: None}).values()} == {1}


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(Failure, match="expected 3 replicas at most, one on each active broker of 0, 1, 2, found 4"):
        plan_evenly(current(3, 0), NO_RACKS, 4)


@pytest.mark.parametrize("replicas", [(0,), (0, 1), (1, 0)])
def test_another_broker_stands_in_for_one_that_leaves(replicas: tuple[int, ...]) -> None:
    plan = plan_without({**current(4, *replicas), TopicPartition("u", 0): (2,)}, 0, {1: None, 2: None})
    assert TopicPartition("u", 0) not in plan
    assert len(plan) == 4
    for planned in plan.values():
        assert len(planned) == len(replicas) == len(set(planned))
        assert 0 not in planned


def test_partitions_of_a_leader_that_leaves_get_different_leaders() -> None:
    plan = plan_without(current(6, 0), 0, {1: None, 2: None, 3: None})
    assert Counter(replicas[0] for replicas in plan.values()) == {1: 2, 2: 2, 3: 2}
    # Also where no broker is free and the others move up.
    plan = plan_without(current(6, 0, 1, 2), 0, {1: None, 2: None})
    assert Counter(replicas[0] for replicas in plan.values()) == {1: 3, 2: 3}


def test_broker_of_a_rack_that_a_partition_does_not_have_stands_in() -> None:
    plan = plan_without({TopicPartition("t", 0): (0, 1)}, 0, {1: "a", 2: "a", 3: "b"})
    assert plan == {TopicPartition("t", 0): (3, 1)}


def test_plan_is_read_back_as_it_was_written() -> None:
    plan = plan_evenly(current(3, 0, 1), NO_RACKS)
    assert decode_plan(encode_plan(plan)) == plan
    first = json.loads(encode_plan(plan))["partitions"][0]
    assert first == {"topic": "t", "partition": 0, "replicas": [0, 1], "log_dirs": ["any", "any"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected JSON"),
        ("[]", "expected {"),
        ('{"partitions": [1]}', "expected {"),
        ('{"version": 2, "partitions": []}', "expected version 1, found 2"),
        ('{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "expected a topic, a partition"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": "1"}]}', "expected a topic, a partition"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}',
            't-0: expected log_dirs of "any"',
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
            ' {"topic": "t", "partition": 0, "replicas": [2]}]}',
            "expected each partition once",
        ),
    ],
)
def test_file_that_is_no_plan_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(Failure) as refused:
        decode_plan(text)
    assert said in refused.value.message
