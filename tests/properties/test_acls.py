"""The index of bindings decides as a scan of all of them does, which is Kafka's rule restated.

BUS_ACL_SETS says how many random sets are played, BUS_ACL_SEED the first of their seeds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.security.acl_decisions import AclPolicy, DefaultRule, Requester, decide_access
from bus.security.acl_index import AclIndex, AclIndexDraft, index_of
from bus.security.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    AclResource,
    AclResourceType,
    PatternMatch,
    PatternType,
)
from tests.support.acls import allow

SETS = int(os.environ.get("BUS_ACL_SETS", "1000"))
FIRST_SEED = int(os.environ.get("BUS_ACL_SEED", "0"))

TYPES = (AclResourceType.TOPIC, AclResourceType.GROUP)
NAMES = ("a", "ab", "abc", "abcd", "b", "*", "ab*")
PRINCIPALS = ("User:alice", "User:bob", "User:*")
HOSTS = ("*", "10.0.0.1", "10.0.0.2")
OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
)

acls = st.builds(
    AclBinding,
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.sampled_from(PatternType),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from(AclPermission),
)


def index_after(added: Iterable[AclBinding], removed: Iterable[AclBinding] = ()) -> AclIndex:
    draft = AclIndexDraft(index_of(added))
    for acl in removed:
        draft.remove(acl)
    return draft.finish()


def scan(
    bindings: Iterable[AclBinding],
    requester: Requester,
    operation: AclOperation,
    resource: AclResource,
    *,
    super_user: bool,
    allows_unnamed: bool,
) -> bool:
    """Kafka's rule, without an index and without the code under test."""
    about = [
        acl
        for acl in bindings
        if acl.resource_type == resource.resource_type
        and (
            acl.resource_name in (resource.name, "*")
            if acl.pattern_type is PatternType.LITERAL
            else resource.name.startswith(acl.resource_name)
        )
    ]
    of_requester = [
        acl for acl in about if acl.principal in ("User:*", requester.principal) and acl.host in ("*", requester.host)
    ]
    if super_user:
        return True
    for acl in of_requester:
        if acl.permission is AclPermission.DENY and acl.operation in (AclOperation.ALL, operation):
            return False
    for acl in of_requester:
        if acl.permission is AclPermission.ALLOW:
            has = acl.operation
            if has in (AclOperation.ALL, operation):
                return True
            if operation is AclOperation.DESCRIBE and has.value in ("Read", "Write", "Delete", "Alter"):
                return True
            if operation is AclOperation.DESCRIBE_CONFIGS and has is AclOperation.ALTER_CONFIGS:
                return True
    return allows_unnamed and not about


def check(index: AclIndex, bindings: Iterable[AclBinding], requester: Requester, asked: AclResource) -> None:
    for operation in OPERATIONS[1:]:
        for super_user, allows_unnamed in ((False, False), (False, True), (True, False)):
            super_users = frozenset({requester.principal}) if super_user else frozenset[str]()
            decision = decide_access(index, requester, operation, asked, AclPolicy(super_users, allows_unnamed))
            assert decision.is_allowed is scan(
                bindings, requester, operation, asked, super_user=super_user, allows_unnamed=allows_unnamed
            )
            if isinstance(decision.rule, DefaultRule):
                assert decision.is_allowed is (decision.rule is not DefaultRule.DENY)
            else:
                assert decision.rule in bindings
                assert decision.is_allowed is (decision.rule.permission is AclPermission.ALLOW)


@given(
    st.lists(acls, max_size=10, unique=True),
    st.integers(0, 10),
    st.builds(Requester, st.sampled_from(PRINCIPALS[:2]), st.sampled_from(HOSTS[1:])),
    st.builds(AclResource, st.sampled_from(TYPES), st.sampled_from(NAMES)),
)
def test_the_index_decides_as_a_scan(
    bindings: list[AclBinding], kept: int, requester: Requester, asked: AclResource
) -> None:
    check(index_after(bindings, bindings[kept:]), bindings[:kept], requester, asked)
    assert index_after(bindings, bindings[kept:]) == index_after(bindings[:kept])


@given(
    st.lists(acls, max_size=10, unique=True),
    st.integers(0, 10),
    st.sampled_from(TYPES),
    st.sampled_from(PRINCIPALS),
    st.sets(st.sampled_from(OPERATIONS)),
)
def test_all_of_a_kind_are_those_of_a_scan(
    bindings: list[AclBinding], kept: int, kind: AclResourceType, principal: str, operations: set[AclOperation]
) -> None:
    before = index_after(bindings)
    draft = AclIndexDraft(before)
    for acl in bindings[kept:]:
        draft.remove(acl)
    for index, there in ((draft.finish(), bindings[:kept]), (before, bindings)):
        found = list(index.find_all(kind, principal, operations))
        assert len(found) == len(set(found))
        assert set(found) == {
            acl
            for acl in there
            if acl.resource_type is kind and acl.principal in (principal, "User:*") and acl.operation in operations
        }


@pytest.mark.parametrize("first_seed", range(FIRST_SEED, FIRST_SEED + SETS, 1000))
def test_the_index_decides_as_a_scan_of_random_sets(first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + 1000, FIRST_SEED + SETS)):
        chance = random.Random(seed)
        found = {
            AclBinding(
                chance.choice(TYPES),
                chance.choice(NAMES),
                chance.choice(list(PatternType)),
                chance.choice(PRINCIPALS),
                chance.choice(HOSTS),
                chance.choice(OPERATIONS),
                chance.choice(list(AclPermission)),
            ): None
            for _ in range(chance.randrange(12))
        }
        requester = Requester(chance.choice(PRINCIPALS[:2]), chance.choice(HOSTS[1:]))
        asked = AclResource(chance.choice(TYPES), chance.choice(NAMES))
        check(index_after(found), found, requester, asked)


@given(st.lists(acls, max_size=10, unique=True), st.sampled_from(TYPES), st.sampled_from(NAMES))
def test_the_filter_match_finds_what_can_decide(bindings: list[AclBinding], kind: AclResourceType, name: str) -> None:
    wanted = AclBindingFilter(kind, name, PatternMatch.MATCH)
    found = [acl for acl in bindings if wanted.matches(acl)]
    index = index_after(bindings)
    principals = {acl.principal for acl in bindings}
    asked = AclResource(kind, name)
    assert set(found) == {acl for principal in principals for acl in index.find(asked, principal)}


def test_to_remove_many_bindings_of_one_name_and_one_principal_compares_none_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One from each host: with all of them compared at each step, 30,000 would hold the event loop for minutes."""
    bindings = [allow(host=f"10.0.0.{number}") for number in range(200)]
    draft = AclIndexDraft(index_of(bindings))
    count, is_equal = 0, AclBinding.__eq__

    def counted(one: AclBinding, other: object) -> bool:
        nonlocal count
        count += 1
        return is_equal(one, other)

    monkeypatch.setattr(AclBinding, "__eq__", counted)
    for binding in bindings[1:]:
        draft.remove(binding)
    assert count < 10 * len(bindings)
    assert list(draft.finish().find(AclResource(AclResourceType.TOPIC, "orders"), "User:alice")) == bindings[:1]
