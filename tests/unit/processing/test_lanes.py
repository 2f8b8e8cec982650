"""Order within a lane, turns among lanes."""

from __future__ import annotations

from collections.abc import Hashable

from bus.processing.lanes import Lanes


def lanes_of(items: dict[Hashable, str]) -> Lanes[str]:
    lanes: Lanes[str] = Lanes()
    for lane, letters in items.items():
        for letter in letters:
            lanes.add(lane, letter)
    return lanes


def test_one_item_of_a_lane_at_a_time() -> None:
    lanes = lanes_of({"x": "ab"})
    assert lanes.take(0) == "a"
    assert lanes.take(0) is None
    lanes.finish("x")
    assert lanes.take(0) == "b"


def test_lanes_take_turns() -> None:
    lanes = lanes_of({"x": "abc", "y": "pq"})
    taken = []
    for lane in "xyxyx":
        taken.append(lanes.take(0))
        lanes.finish(lane)
    assert taken == ["a", "p", "b", "q", "c"]
    assert lanes.is_empty


def test_what_is_put_off_holds_up_its_lane_and_no_other() -> None:
    lanes = lanes_of({"x": "ab", "y": "p"})
    lanes.take(0)
    lanes.put_off("x", "a again", until_ms=100)
    assert lanes.take(99) == "p"
    assert lanes.take(99) is None
    assert lanes.next_delayed_ms() == 100
    assert lanes.take(100) == "a again"
    lanes.finish("x")
    assert lanes.take(100) == "b"


def test_what_is_dropped_is_not_handed_out_but_what_was_taken_ends_in_its_lane() -> None:
    lanes = lanes_of({"x": "ab", "y": "pq"})
    assert lanes.take(0) == "a"
    assert lanes.drop(lambda item: item not in "abp") == 2
    lanes.add("x", "c")
    assert lanes.take(0) == "q"
    assert lanes.take(0) is None
    lanes.finish("x")
    assert lanes.take(0) == "c"


def test_what_waits_for_another_attempt_is_dropped_too() -> None:
    lanes = lanes_of({"x": "a"})
    lanes.take(0)
    lanes.put_off("x", "a", until_ms=10)
    assert lanes.drop(lambda item: False) == 1
    assert lanes.next_delayed_ms() is None
    assert lanes.take(10) is None
    assert lanes.is_empty
