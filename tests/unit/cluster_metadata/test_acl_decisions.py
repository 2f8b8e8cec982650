"""Access control lists: what is added and removed, what changes nothing, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.cluster_metadata.cluster_decisions import ACLS_MAX, decide_create_acls, decide_delete_acls
from bus.cluster_metadata.cluster_records import (
    AclAdded,
    AclRemoved,
    FeatureLevel,
    apply_all,
    encode_acl,
    encode_record,
    is_snapshot_due,
    replay_cluster,
    snapshot_of,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, LEVEL_OF_SECURITY, ClusterState
from bus.errors import ErrorCode, Refused
from bus.security.acl_index import index_of
from bus.security.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclResourceType,
    PatternMatch,
)
from tests.support.acls import allow, prefixed

READ = allow(AclOperation.READ, "orders")
WRITE = allow(AclOperation.WRITE, "orders")
PREFIX = prefixed(allow(AclOperation.READ, "ord"))
LEVEL = FeatureLevel("bus.version", LEVEL_OF_SECURITY)


def state_with(*acls: AclBinding) -> ClusterState:
    return apply_all(EMPTY_CLUSTER, [LEVEL, *(AclAdded(encode_acl(acl)) for acl in acls)])


def test_new_bindings_are_added_and_those_that_are_there_are_no_error() -> None:
    step = decide_create_acls(state_with(READ), [READ, WRITE, WRITE])
    assert step.response == [None, None, None]
    assert step.records == (AclAdded(encode_acl(WRITE)),)


def test_a_binding_that_cannot_be_costs_itself_alone() -> None:
    step = decide_create_acls(state_with(), [replace(READ, principal="alice"), WRITE])
    assert isinstance(step.response, list)
    refused, fine = step.response
    assert fine is None
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert step.records == (AclAdded(encode_acl(WRITE)),)


@pytest.mark.parametrize(
    ("acl", "message"),
    [
        (allow(name="orders "), "expected a topic name of a-z, A-Z, 0-9, '.', '_' and '-', found 'orders '"),
        (allow(name="ordérs"), "expected a topic name of a-z, A-Z, 0-9, '.', '_' and '-', found 'ordérs'"),
        (allow(name=".."), "expected a topic name other than . and .., found .."),
        (prefixed(allow(name="o/")), "expected a topic name of a-z, A-Z, 0-9, '.', '_' and '-', found 'o/'"),
        (
            prefixed(allow(name="*")),
            "expected what names of topics begin with, found '*', which stands for all topics as a literal name only",
        ),
    ],
)
def test_a_pattern_that_no_topic_can_match_is_refused(acl: AclBinding, message: str) -> None:
    assert decide_create_acls(state_with(), [acl]).response == [Refused(ErrorCode.INVALID_REQUEST, message)]


def test_each_pattern_that_a_topic_can_match_is_taken() -> None:
    acls = [allow(name="*"), allow(name="t" * 249), *(prefixed(allow(name=name)) for name in (".", "__", "t" * 249))]
    of_group = allow(name="any text, *", of=AclResourceType.GROUP)
    assert decide_create_acls(state_with(), [*acls, of_group]).response == [None] * 6


def test_more_bindings_than_there_may_be_are_refused() -> None:
    acls = (replace(READ, resource_name=f"topic-{number}") for number in range(ACLS_MAX - 1))
    full = replace(EMPTY_CLUSTER, level=LEVEL_OF_SECURITY, acls=index_of(acls))
    step = decide_create_acls(full, [READ, WRITE, READ])
    assert isinstance(step.response, list)
    assert [why and why.code for why in step.response] == [None, ErrorCode.POLICY_VIOLATION, None]
    assert step.records == (AclAdded(encode_acl(READ)),)


def test_each_filter_is_told_what_it_found_and_each_binding_is_removed_once() -> None:
    state = state_with(READ, WRITE, PREFIX)
    filters = [
        AclBindingFilter(AclResourceType.TOPIC, "orders", PatternMatch.MATCH, operation=AclOperation.READ),
        AclBindingFilter(AclResourceType.TOPIC, "orders", PatternMatch.LITERAL),
        AclBindingFilter(AclResourceType.GROUP),
    ]
    step = decide_delete_acls(state, filters)
    assert step.response == [[READ, PREFIX], [READ, WRITE], []]
    assert step.records == tuple(AclRemoved(encode_acl(acl)) for acl in (READ, PREFIX, WRITE))
    assert len(apply_all(state, step.records).acls) == 0


def test_filters_that_find_more_than_one_answer_may_have_are_refused_and_nothing_is_removed() -> None:
    state = state_with(*(replace(READ, resource_name=f"topic-{number}") for number in range(5_001)))
    wide, other = AclBindingFilter(AclResourceType.TOPIC), AclBindingFilter(operation=AclOperation.READ)
    assert len(decide_delete_acls(state, [wide]).records) == 5_001
    step = decide_delete_acls(state, [wide, other])
    assert isinstance(step.response, Refused)
    assert step.response.code is ErrorCode.INVALID_REQUEST
    assert "at most 10,000 ACLs together, found 10,002: nothing was removed" in step.response.message
    assert not step.records


def test_filters_that_would_hold_the_loop_for_long_are_refused_together() -> None:
    state = state_with(*(replace(READ, resource_name=f"topic-{number}") for number in range(20_001)))
    exact = AclBindingFilter(
        READ.resource_type,
        "topic-1",
        PatternMatch.LITERAL,
        READ.principal,
        READ.host,
        READ.operation,
        READ.permission,
    )
    wide = AclBindingFilter(AclResourceType.GROUP)
    assert (
        decide_delete_acls(state, [wide] * 49 + [exact] * 51).response
        == [[]] * 49 + [[replace(READ, resource_name="topic-1")]] * 51
    )
    assert decide_delete_acls(state, [wide] * 50).response == Refused(
        ErrorCode.INVALID_REQUEST,
        "expected at most 49 filters in a call while there are 20,001 ACLs, beside those that name a single ACL, "
        "found 50",
    )


def test_below_their_level_there_are_no_lists() -> None:
    below = apply_all(EMPTY_CLUSTER, [FeatureLevel("bus.version", LEVEL_OF_SECURITY - 1)])
    for response in (decide_create_acls(below, [READ]).response, decide_delete_acls(below, []).response):
        assert response == Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            "ACLs need bus.version 3, found 2: run bus cluster features upgrade once all brokers are of this version",
        )


def test_bindings_are_in_snapshots_in_their_order() -> None:
    state = apply_all(state_with(READ, WRITE, PREFIX), [AclRemoved(encode_acl(READ)), AclAdded(encode_acl(READ))])
    replayed = replay_cluster(map(encode_record, snapshot_of(state)))
    assert replayed == state
    assert list(replayed.acls) == [WRITE, PREFIX, READ]


def test_many_bindings_do_not_make_a_snapshot_due_again_at_once() -> None:
    state = state_with(*(replace(READ, resource_name=f"topic-{number}") for number in range(300)))
    assert not is_snapshot_due(len(snapshot_of(state)) + 1, state)
    assert is_snapshot_due(4 * len(snapshot_of(state)), state)
