from __future__ import annotations

import random
from collections import Counter

import pytest

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.metadata_cache import PartitionLeader, TopicInfo
from bus.client.producer.partitioning import PartitionChoice
from bus.client.producer.queue import PartitionQueue
from bus.errors import ErrorCode

KIB = 1024


@pytest.fixture(autouse=True)
def same_chance_in_every_run() -> None:
    random.seed(7)


def topic_of(count: int, stopped: frozenset[int] = frozenset()) -> TopicInfo:
    def leader(number: int) -> PartitionLeader:
        return PartitionLeader(number, 0, 0, ErrorCode.KAFKA_STORAGE_ERROR if number in stopped else 0, "")

    return TopicInfo("t", "id", tuple(map(leader, range(count))), 0.0)


def choice_of(*queued_batches: int, is_adaptive: bool = True) -> PartitionChoice:
    """`queued_batches`: what waits for each partition, all the time."""
    config = parse_config(ProducerConfig, {"partitioner_adaptive_partitioning_enable": is_adaptive})
    queues: dict[int, PartitionQueue] = {}
    for partition, count in enumerate(queued_batches):
        queues[partition] = PartitionQueue("t", partition)
        queues[partition].pending_bytes = count * config.batch_size
    return PartitionChoice(
        config,
        leader_of=lambda info, partition: "host:1",
        queue_of=lambda topic, partition: queues.get(partition),
    )


def bytes_given(choice: PartitionChoice, info: TopicInfo, sizes: list[int]) -> Counter[int]:
    given: Counter[int] = Counter()
    for size in sizes:
        given[choice.choose("t", info, size, 0.0)] += size
    return given


@pytest.mark.parametrize("is_adaptive", [True, False])
def test_partitions_get_the_same_share_of_the_bytes_however_large_the_batches_are(is_adaptive: bool) -> None:
    sizes = [random.choice((16, 16, 48, 512)) * KIB for _ in range(400)]
    given = bytes_given(choice_of(is_adaptive=is_adaptive), topic_of(4), sizes)
    mean = sum(sizes) / 4
    assert all(abs(given[partition] - mean) < 1024 * KIB for partition in range(4)), given


def test_few_large_batches_do_not_meet_in_one_partition() -> None:
    for seed in range(50):
        random.seed(seed)
        given = bytes_given(choice_of(), topic_of(4), [16 * KIB] + [96 * KIB] * 4)
        assert sorted(given.values()) == [96 * KIB] * 3 + [112 * KIB]


def test_partition_that_is_stopped_gets_nothing_while_another_serves() -> None:
    choice = choice_of()
    assert set(bytes_given(choice, topic_of(3, frozenset({1})), [16 * KIB] * 100)) == {0, 2}
    assert choice.choose("u", topic_of(1, frozenset({0})), 1, 0.0) == 0


def test_partition_that_was_away_need_not_have_all_that_it_missed() -> None:
    choice = choice_of()
    bytes_given(choice, topic_of(2, frozenset({1})), [16 * KIB] * 10_000)
    given = bytes_given(choice, topic_of(2), [16 * KIB] * 2_000)
    assert 0 < given[1] - given[0] < 200 * 16 * KIB


def test_longer_queues_get_a_smaller_share_of_the_bytes() -> None:
    # The example of KIP-794: queues of 0, 3 and 1 have shares of 4, 1 and 3.
    given = bytes_given(choice_of(0, 3, 1), topic_of(3), [16 * KIB] * 8_000)
    assert [round(given[partition] / (16 * KIB * 1_000), 1) for partition in range(3)] == [4.0, 1.0, 3.0]
