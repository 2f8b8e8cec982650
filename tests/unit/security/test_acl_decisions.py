from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bus.security.acl_decisions import (
    AclPolicy,
    Decision,
    DefaultRule,
    Requester,
    allowed_operations,
    decide_access,
    decide_access_to_any,
)
from bus.security.acl_index import NO_ACLS, AclIndexDraft, index_of
from bus.security.acls import (
    ANY_PRINCIPAL,
    CLUSTER,
    AclBinding,
    AclOperation,
    AclResource,
    AclResourceType,
)
from tests.support.acls import allow, deny, prefixed

ALICE = Requester("User:alice", "10.0.0.1")
ORDERS = AclResource(AclResourceType.TOPIC, "orders")
OP = AclOperation


def decide(*acls: AclBinding, operation: AclOperation = OP.READ, policy: AclPolicy | None = None) -> Decision:
    return decide_access(index_of(acls), ALICE, operation, ORDERS, policy or AclPolicy())


def test_what_no_binding_allows_is_denied() -> None:
    assert decide() == Decision(False, DefaultRule.DENY)
    assert decide(allow(principal="User:bob")) == Decision(False, DefaultRule.DENY)
    assert decide(allow(host="10.0.0.2")) == Decision(False, DefaultRule.DENY)
    assert decide(allow(name="order")) == Decision(False, DefaultRule.DENY)
    assert decide(allow(of=AclResourceType.GROUP)) == Decision(False, DefaultRule.DENY)


@pytest.mark.parametrize(
    "acl",
    [
        allow(),
        allow(OP.ALL),
        allow(host="10.0.0.1"),
        allow(principal=ANY_PRINCIPAL),
        allow(name="*"),
        prefixed(allow(name="ord")),
        prefixed(allow(name="orders")),
    ],
)
def test_a_binding_allows_and_is_named(acl: AclBinding) -> None:
    assert decide(acl) == Decision(True, acl)


def test_a_denial_decides_however_much_is_allowed() -> None:
    denied = prefixed(deny(name="o", principal=ANY_PRINCIPAL))
    assert decide(allow(), allow(OP.ALL), allow(name="*"), denied) == Decision(False, denied)


def test_the_nearest_name_is_what_is_told() -> None:
    assert decide(prefixed(allow(name="o")), allow(name="*"), prefixed(allow(name="ord"))).rule == allow(name="*")
    assert decide(prefixed(allow(name="o")), prefixed(allow(name="ord"))).rule == prefixed(allow(name="ord"))
    assert decide(allow(name="*"), allow(OP.ALL)).rule == allow(OP.ALL)


@pytest.mark.parametrize("operation", [OP.READ, OP.WRITE, OP.DELETE, OP.ALTER])
def test_to_read_write_delete_or_alter_includes_to_describe(operation: AclOperation) -> None:
    assert decide(allow(operation), operation=OP.DESCRIBE).is_allowed
    assert not decide(allow(operation), operation=OP.DESCRIBE_CONFIGS).is_allowed
    assert not decide(allow(OP.DESCRIBE), operation=operation).is_allowed


def test_to_alter_configs_includes_to_describe_them() -> None:
    assert decide(allow(OP.ALTER_CONFIGS), operation=OP.DESCRIBE_CONFIGS).is_allowed
    assert not decide(allow(OP.ALTER_CONFIGS), operation=OP.DESCRIBE).is_allowed


@pytest.mark.parametrize("operation", [OP.READ, OP.WRITE, OP.DELETE, OP.ALTER])
def test_to_be_denied_something_implies_nothing(operation: AclOperation) -> None:
    assert decide(deny(operation), allow(OP.DESCRIBE), operation=OP.DESCRIBE).is_allowed
    assert not decide(deny(OP.ALL), allow(OP.DESCRIBE), operation=OP.DESCRIBE).is_allowed


def test_to_be_denied_to_describe_leaves_the_right_to_read() -> None:
    assert decide(deny(OP.DESCRIBE), allow(OP.READ)).is_allowed


def test_prefixes_know_no_separators() -> None:
    index = index_of([prefixed(allow(name="pay"))])
    for name, is_allowed in (("pay", True), ("payments", True), ("pay.me", True), ("pa", False), ("Pay", False)):
        topic = AclResource(AclResourceType.TOPIC, name)
        assert decide_access(index, ALICE, OP.READ, topic).is_allowed is is_allowed


def test_a_super_user_may_do_what_is_denied() -> None:
    policy = AclPolicy(frozenset({"User:alice"}))
    assert decide(deny(OP.ALL), policy=policy) == Decision(True, DefaultRule.SUPER_USER)


def test_only_what_no_binding_names_is_open_to_everyone() -> None:
    policy = AclPolicy(allows_unnamed=True)
    assert decide(policy=policy) == Decision(True, DefaultRule.ALLOW)
    assert decide(allow(name="other", principal="User:bob"), policy=policy).is_allowed
    for acl in (allow(principal="User:bob"), deny(OP.WRITE), allow(name="*"), prefixed(allow(name="ord"))):
        named = replace(acl, principal="User:bob")
        assert decide(named, policy=policy) == Decision(False, DefaultRule.DENY)


def test_all_operations_that_are_allowed_are_listed() -> None:
    index = index_of([allow(OP.WRITE), allow(OP.ALTER_CONFIGS), deny(OP.DESCRIBE_CONFIGS)])
    assert allowed_operations(index, ALICE, ORDERS, AclPolicy()) == [OP.WRITE, OP.DESCRIBE, OP.ALTER_CONFIGS]
    assert allowed_operations(index, ALICE, CLUSTER, AclPolicy()) == []


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ((), False),
        ((allow(OP.READ),), False),
        ((allow(OP.WRITE),), True),
        ((allow(OP.ALL, name="*"),), True),
        ((allow(OP.WRITE, principal="User:bob"),), False),
        ((allow(OP.WRITE, of=AclResourceType.GROUP),), False),
        ((allow(OP.WRITE), deny(OP.WRITE)), False),
        ((allow(OP.WRITE), deny(OP.READ)), True),
        ((allow(OP.WRITE), allow(OP.WRITE, name="others"), deny(OP.WRITE)), True),
        ((allow(OP.WRITE), prefixed(deny(OP.WRITE, name="ord"))), False),
        ((prefixed(allow(OP.WRITE, name="orders")), prefixed(deny(OP.ALL, name="ord"))), False),
        ((prefixed(allow(OP.WRITE, name="ord")), prefixed(deny(OP.WRITE, name="orders"))), True),
        ((prefixed(allow(OP.WRITE, name="ord")), deny(OP.WRITE, name="ord")), True),
        ((allow(OP.WRITE, name="*"), prefixed(deny(OP.WRITE, name="o"))), True),
        ((allow(OP.WRITE, name="*"), allow(OP.WRITE), deny(OP.WRITE, name="*")), False),
    ],
)
def test_whether_there_is_any_topic_to_write_to(acls: tuple[AclBinding, ...], is_allowed: bool) -> None:
    found = decide_access_to_any(index_of(acls), ALICE, OP.WRITE, AclResourceType.TOPIC)
    assert found.is_allowed is is_allowed


def test_any_topic_may_be_written_to_where_what_is_not_named_is_open() -> None:
    policy = AclPolicy(allows_unnamed=True)
    for acl, is_allowed in ((deny(OP.WRITE), True), (deny(OP.WRITE, name="*"), False)):
        found = decide_access_to_any(index_of([acl]), ALICE, OP.WRITE, AclResourceType.TOPIC, policy)
        assert found.is_allowed is is_allowed


class Untouched(Mapping[Any, Any]):
    """Fails a test that goes through it."""

    def __getitem__(self, key: object) -> Any:
        raise AssertionError(f"expected no look at {key}")

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("expected no look at all bindings")

    def __len__(self) -> int:
        return 1


def test_whether_any_topic_may_be_written_to_costs_no_look_at_what_others_may_do() -> None:
    others = [allow(OP.WRITE, name=f"t{number}", principal="User:bob") for number in range(10)]
    index = index_of([*others, allow(OP.READ)])
    kinds = {kind: acls if "User:alice" in kind else Untouched() for kind, acls in index.by_kind.items()}
    bare = replace(index, bindings=Untouched(), by_principal=Untouched(), by_kind=kinds)
    found = decide_access_to_any(bare, ALICE, OP.WRITE, AclResourceType.TOPIC)
    assert found == Decision(False, DefaultRule.DENY)


def test_a_binding_is_added_once_and_removed_once() -> None:
    draft = AclIndexDraft(index_of([allow()]))
    with pytest.raises(AssertionError, match="expected a new binding"):
        draft.add(allow())
    draft.remove(allow())
    with pytest.raises(AssertionError, match="expected a binding that is there"):
        draft.remove(allow())
    assert draft.finish() == NO_ACLS


def test_a_draft_changes_nothing_that_others_hold() -> None:
    before = index_of([allow()])
    draft = AclIndexDraft(before)
    assert draft.finish() is before
    draft.add(deny())
    assert len(before) == 1
    assert decide_access(before, ALICE, OP.READ, ORDERS).is_allowed
    assert not decide_access(draft.finish(), ALICE, OP.READ, ORDERS).is_allowed
