"""Rights to files by POSIX 1003.1e, draft 17, 23.1.5, and users and groups of this machine."""

from __future__ import annotations

import os
import pwd

import pytest

from bus.cli.security.posix_check import READ, SEARCH, WRITE, Reader, Rights, find_reader, group_name, user_name

OWNER, ALICE, GROUP, STAFF = 1, 2, 10, 11
RIGHTS = Rights(
    OWNER, GROUP, owner=WRITE, group=READ | WRITE, other=READ, mask=READ, users={ALICE: 7}, groups={STAFF: WRITE}
)


@pytest.mark.parametrize(
    ("user_id", "group_ids", "rights"),
    [
        (OWNER, {GROUP, STAFF}, WRITE),  # neither the mask nor the groups count for the owner
        (ALICE, {GROUP}, READ),  # as the mask says
        (3, {GROUP}, READ),
        (3, {STAFF}, 0),  # the mask takes it away, and others' rights are not for members
        (3, {GROUP, STAFF}, READ),
        (3, {12}, READ),
        (3, set(), READ),
    ],
)
def test_the_first_entry_that_is_about_a_user_decides(user_id: int, group_ids: set[int], rights: int) -> None:
    assert Reader("u:x", user_id, frozenset(group_ids)).rights(RIGHTS) == rights


@pytest.mark.parametrize(("group_id", "rights"), [(GROUP, READ), (STAFF, 0), (12, READ)])
def test_members_of_a_group_have_its_rights_or_those_of_others(group_id: int, rights: int) -> None:
    assert Reader("g:x", None, frozenset([group_id])).rights(RIGHTS) == rights


def test_the_owning_group_that_is_named_as_well_has_both() -> None:
    rights = Rights(OWNER, GROUP, 0, READ, 0, groups={GROUP: SEARCH})
    assert Reader("g:x", None, frozenset([GROUP])).rights(rights) == READ | SEARCH


def test_users_are_known_by_name_and_number_with_their_groups() -> None:
    own = pwd.getpwuid(os.geteuid())
    by_name, by_number = find_reader(f"u:{own.pw_name}"), find_reader(f"u:{own.pw_uid}")
    assert by_name is not None
    assert by_number is not None
    assert by_name.user_id == by_number.user_id == own.pw_uid
    assert own.pw_gid in by_name.group_ids
    assert by_name.group_ids == by_number.group_ids
    assert user_name(own.pw_uid) == f"u:{own.pw_name}"
    assert find_reader(group_name(own.pw_gid)) == Reader(group_name(own.pw_gid), None, frozenset([own.pw_gid]))


def test_who_is_unknown_has_a_number_at_most() -> None:
    assert find_reader("u:45678") == Reader("u:45678", 45678, frozenset())
    assert (user_name(45678), group_name(45678)) == ("u:45678", "g:45678")
    assert find_reader("u:who-is-that") is None
    assert find_reader("g:who-is-that") is None
