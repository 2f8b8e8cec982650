from __future__ import annotations

import pytest

from bus.cli.failures import Failure
from bus.cli.security.acl_export import (
    GrantPlan,
    Grants,
    parse_principal_map,
    posix_script,
)
from bus.security.acl_decisions import AclPolicy
from bus.security.acl_index import index_of
from bus.security.acls import ANY_PRINCIPAL, AclBinding
from bus.security.file_readers import plan_file_readers
from tests.support.acls import allow, deny

TOPICS = ("a", "orders")
CN = "User:CN=Alice B,O=Example"


def posix_grants(*acls: AclBinding, mapped: str = "") -> Grants:
    plan = GrantPlan(parse_principal_map(mapped))
    return plan.grants(plan_file_readers(index_of(acls), TOPICS, AclPolicy()))


def test_a_principal_is_the_user_of_its_name_or_what_the_map_says() -> None:
    mapped = f"# people\n\n{CN}   u:alice\nUser:bob g:staff\n"
    acls = (allow(principal=CN), allow(principal="User:bob"), allow(principal="User:carol", name="a"))
    assert posix_grants(*acls, mapped=mapped) == Grants(
        {"u:carol": ["a"], "u:alice": ["orders"], "g:staff": ["orders"]}, {}, []
    )


def test_who_is_nobody_in_the_storage_is_told() -> None:
    told = [f"{name}: name in --principal-map who it is in the storage" for name in (ANY_PRINCIPAL, CN)]
    assert posix_grants(allow(principal=CN), allow(principal=ANY_PRINCIPAL)) == Grants({}, {}, told)


def test_one_user_of_two_principals_gets_what_both_may_read() -> None:
    acls = (allow(name="a"), allow(), allow(principal="User:bob"))
    assert posix_grants(*acls, mapped="User:alice g:staff\nUser:bob g:staff") == Grants(
        {"g:staff": ["orders"]}, {}, ["g:staff is also User:bob, who may not read a: it is granted nothing"]
    )


def test_everyone_is_let_in_only_if_those_who_are_denied_can_be_kept_out() -> None:
    acls = (allow(principal=ANY_PRINCIPAL), deny(principal="User:bob"))
    assert posix_grants(*acls, mapped="User:* g:all") == Grants({"g:all": ["orders"]}, {"u:bob": ["orders"]}, [])
    told = "User:* may read orders, but not all of User:bob can be denied it"
    group = "User:* g:all\nUser:bob g:temps"
    assert posix_grants(*acls, mapped=group) == Grants({}, {}, [told])
    shared = posix_grants(*acls, allow(), mapped=f"{group}\nUser:alice g:all")
    assert shared.readers == {}
    assert shared.not_expressed[1] == "g:all is also User:*, who may not read orders: it is granted nothing"


def test_the_script_grants_what_is_there_and_what_comes() -> None:
    grants = Grants({"u:alice": ["orders"]}, {"u:bob": ["a b"]}, ["something"])
    assert list(posix_script(grants, "/data/the bus", tables_only=False))[1:] == [
        "# not expressed: something",
        "setfacl -R -d -m u:bob:- '/data/the bus/topics/a b'",
        "setfacl -R -m u:bob:- '/data/the bus/topics/a b'",
        "setfacl -m u:alice:x '/data/the bus' '/data/the bus/topics'",
        "setfacl -m u:alice:r '/data/the bus/bus-root.json'",
        "setfacl -R -d -m u:alice:rX '/data/the bus/topics/__cluster_metadata' '/data/the bus/topics/orders'",
        "setfacl -R -m u:alice:rX '/data/the bus/topics/__cluster_metadata' '/data/the bus/topics/orders'",
    ]
    alone = "\n".join(posix_script(grants, "/data", tables_only=True))
    assert "bus-root.json" not in alone
    assert "__cluster_metadata" not in alone


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("alice u:alice", "line 1: expected User:<name> and who that is in the storage, found 'alice u:alice'"),
        ("User:alice", "line 1: expected User:<name> and who that is in the storage, found 'User:alice'"),
        ("#\nUser:a u:a\nUser:a u:b", "line 3: expected each principal once, found User:a as u:a and u:b"),
        ("User:alice alice", "expected u:<user> or g:<group> for User:alice, found 'alice'"),
        ("User:alice u:a;reboot", "expected u:<user> or g:<group> for User:alice, found 'u:a;reboot'"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused(text: str, told: str) -> None:
    with pytest.raises(Failure) as caught:
        posix_grants(allow(), mapped=text)
    assert told in caught.value.message
