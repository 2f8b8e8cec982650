from __future__ import annotations

from bus.client.consumer.record_reader import InHand


def held(*given: tuple[str, int, int]) -> InHand[str]:
    in_hand: InHand[str] = InHand()
    for place, first, next_offset in given:
        in_hand.give(place, first, next_offset)
    return in_hand


def test_what_one_call_gave_begins_where_its_first_part_began() -> None:
    assert held(("a", 3, 7), ("b", 0, 1), ("a", 7, 20)).first() == {"a": 3, "b": 0}


def test_coming_back_settles_all() -> None:
    in_hand = held(("a", 3, 7))
    in_hand.come_back()
    assert in_hand.first() == {}


def test_commit_inside_moves_the_beginning_and_one_behind_it_settles_all() -> None:
    in_hand = held(("a", 3, 7), ("b", 3, 7))
    in_hand.settle("a", 5)
    in_hand.settle("b", 7)
    in_hand.settle("c", 1)
    assert in_hand.first() == {"a": 5}


def test_place_with_another_position_is_in_hand_no_more() -> None:
    in_hand = held(("a", 3, 7), ("b", 3, 7))
    in_hand.drop("a")
    assert in_hand.first() == {"b": 3}
