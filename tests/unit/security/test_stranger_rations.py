from __future__ import annotations

import pytest

from bus.security.stranger_rations import Admitted, Ration, RationSizes, StrangerRations

SIZES = RationSizes(
    connection=Ration(100, 1),
    address=Ration(300, 10),
    all_together=Ration(600, 20),
    modest_bytes=10,
    modest_address_bytes=40,
    connections_max=8,
    address_connections_max=6,
)


@pytest.fixture
def rations() -> StrangerRations:
    return StrangerRations(SIZES)


def let_in(rations: StrangerRations, connection: object, address: str, now_s: float = 0) -> None:
    assert rations.admit(connection, address, now_s) == Admitted()


def spend(rations: StrangerRations, address: str, count: int, now_s: float = 0) -> None:
    """Connections of the address use up so much, and end."""
    for number in range(count // 100):
        let_in(rations, (address, number), address, now_s)
        assert rations.receive((address, number), 100, now_s) is None
        rations.leave((address, number))


def test_connection_is_refused_behind_its_ration_and_given_back_a_byte_a_second(rations: StrangerRations) -> None:
    let_in(rations, "c", "a")
    assert rations.receive("c", 100, 0) is None
    assert rations.receive("c", 150, 50) is None
    assert rations.left_of("c", 50) == 0
    assert rations.receive("c", 151, 50) == "it has sent more than 100 bytes without a login"


def test_address_that_has_used_up_its_ration_is_refused_new_connections_until_it_is_given_back(
    rations: StrangerRations,
) -> None:
    spend(rations, "a", 300)
    let_in(rations, "c", "a")
    let_in(rations, "d", "a")
    assert rations.receive("c", 11, 0) == "its address has sent more than 300 bytes without a login"
    assert rations.receive("d", 10, 0) is None  # modest
    assert isinstance(rations.admit("e", "a", 2), str)
    let_in(rations, "e", "a", 3)
    let_in(rations, "f", "b")


def test_what_was_sent_before_a_login_counts_no_longer(rations: StrangerRations) -> None:
    for number in range(50):
        let_in(rations, number, "a")
        assert rations.receive(number, 90, 0) is None
        rations.recognise(number, 0)
    assert rations.receive(1, 10_000, 0) is None


def test_login_gives_back_nothing_that_time_has_given_back_already(rations: StrangerRations) -> None:
    let_in(rations, "c", "a")
    assert rations.receive("c", 100, 0) is None
    spend(rations, "a", 300, now_s=100)
    rations.recognise("c", 100)
    let_in(rations, "d", "a", 100)
    assert rations.receive("d", 11, 100) == "its address has sent more than 300 bytes without a login"


def test_address_that_has_sent_little_is_served_while_all_together_have_used_up_theirs(
    rations: StrangerRations,
) -> None:
    for address in ("a", "b"):
        spend(rations, address, 300)
    let_in(rations, "c", "c")
    let_in(rations, "d", "d")
    assert rations.receive("c", 40, 0) is None
    assert rations.receive("d", 41, 0) == "callers without a login have sent more than 600 bytes"
    rations.leave("d")
    assert isinstance(rations.admit("e", "d", 0), str)
    let_in(rations, "f", "d", 10)  # 200 bytes are given back


def test_oldest_connection_of_the_address_with_the_most_makes_room(rations: StrangerRations) -> None:
    for number in range(6):
        let_in(rations, number, "a")
    assert rations.admit(6, "a", 0) == "its address has 6 connections without a login"
    for number in (7, 8):
        let_in(rations, number, "b")
    why = "its address has the most connections without a login"
    assert rations.admit(9, "b", 0) == Admitted(0, why)
    assert rations.admit(10, "c", 0) == Admitted(1, why)
    assert rations.admit(11, "b", 0) == "there are 8 connections without a login"
    assert rations.receive(0, 10_000, 0) is None  # it is no longer there


def test_connections_that_lie_idle_make_room_for_users_of_their_address(rations: StrangerRations) -> None:
    for number in range(6):
        let_in(rations, number, "nat", number)
    crowd = "its address has 6 connections without a login"
    assert rations.admit("user", "nat", 9.9) == crowd, "a login may still come by the oldest one"
    assert rations.admit("user", "nat", 10) == Admitted(0, f"it has not logged in for 10 s, and {crowd}")
    rations.recognise("user", 10)
    let_in(rations, "another", "nat", 10)  # a user who has logged in holds no place
    assert rations.admit("third", "nat", 10) == crowd
    assert rations.admit("third", "nat", 11) == Admitted(1, f"it has not logged in for 10 s, and {crowd}")


def test_connections_that_lie_idle_make_room_for_users_of_other_addresses_where_none_has_many(
    rations: StrangerRations,
) -> None:
    for number in range(8):
        let_in(rations, number, f"network {number}", number)
    crowd = "there are 8 connections without a login"
    assert rations.admit("user", "b", 9.9) == crowd, "a login may still come by the oldest one"
    why = f"it has not logged in for 10 s, and {crowd}"
    assert rations.admit("user", "b", 10) == Admitted(0, why)
    rations.recognise("user", 10)
    let_in(rations, "another", "b", 10)
    assert rations.admit("third", "c", 10) == crowd
    assert rations.admit("third", "c", 11) == Admitted(1, why)


def test_address_that_has_sent_too_much_makes_no_room(rations: StrangerRations) -> None:
    spend(rations, "a", 300)
    for number in range(6):
        let_in(rations, number, "a", 100)
    spend(rations, "b", 300, now_s=109)
    rations.receive(0, 90, 109)
    for number in range(1, 4):
        rations.receive(number, 90, 109)
    refused = rations.admit("new", "a", 110)
    assert refused == "its address has sent more than 300 bytes without a login"
    assert rations.left_of(0, 110) < SIZES.connection.bytes_max, "nobody has left for it"


def test_addresses_that_owe_nothing_are_forgotten(rations: StrangerRations) -> None:
    for number in range(1_000):
        let_in(rations, number, str(number), number)
        rations.receive(number, 9, number)
        rations.leave(number)
    assert len(rations._addresses) <= 3


@pytest.mark.parametrize(("connections_max", "expected"), [(20_000, (1_024, 256)), (512, (256, 64)), (1, (2, 1))])
def test_strangers_leave_half_of_the_places_of_a_listener_and_most_of_theirs_to_other_addresses(
    connections_max: int, expected: tuple[int, int]
) -> None:
    sizes = RationSizes().within(connections_max)
    assert (sizes.connections_max, sizes.address_connections_max) == expected
