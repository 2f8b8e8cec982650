import pytest

from bus.model import TopicPartition
from bus.tables.point_in_time import bound_of, check_bound, parse_bound


def test_a_partition_of_its_own_counts_before_its_topic() -> None:
    bound = {"flights": 7, TopicPartition("flights", 1): 9}
    assert bound_of(bound, TopicPartition("flights", 0)) == 7
    assert bound_of(bound, TopicPartition("flights", 1)) == 9
    assert bound_of(bound, TopicPartition("orders", 0)) is None
    assert bound_of(3, TopicPartition("orders", 0)) == 3
    assert bound_of(None, TopicPartition("orders", 0)) is None


def test_text_names_all_partitions_a_topic_or_one_partition() -> None:
    assert parse_bound([]) is None
    assert parse_bound(["12"]) == 12
    assert parse_bound(["a.b-c=1", "flights:3=4"]) == {"a.b-c": 1, TopicPartition("flights", 3): 4}


@pytest.mark.parametrize("texts", [["-1"], ["flights"], ["flights:x=1"], ["1", "2"], ["1", "flights=2"], ["=1"]])
def test_unclear_text_is_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_bound(texts)


@pytest.mark.parametrize("bound", [-1, {"flights": -1}, {"flights": True}])
def test_negative_numbers_are_refused(bound: object) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        check_bound(bound, "a version")  # type: ignore[arg-type]
