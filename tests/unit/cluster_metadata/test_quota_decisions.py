from __future__ import annotations

import pytest

from bus.cluster_metadata.cluster_decisions import decide_alter_quotas
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    ClientQuotaChanged,
    FeatureLevel,
    apply_all,
    encode_record,
    replay_cluster,
    snapshot_of,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.descriptions import DEFAULT_NAME, QuotaEntity
from bus.errors import ErrorCode, Refused
from bus.security.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, AlterQuotas

PAIR = QuotaEntity("alice", DEFAULT_NAME)
STATE = apply_all(EMPTY_CLUSTER, [BrokerRegistered(0, "h", 1), FeatureLevel("bus.version", 3)])


def after(state: ClusterState, changes: dict[str, float | None]) -> ClusterState:
    return apply_all(state, decide_alter_quotas(state, AlterQuotas(PAIR, changes)).records)


def test_quotas_are_what_the_changes_make_of_them_until_none_is_left() -> None:
    state = after(STATE, {PRODUCER_BYTE_RATE: 5.0, CONSUMER_BYTE_RATE: 6.0})
    assert state.quotas == {PAIR: {PRODUCER_BYTE_RATE: 5.0, CONSUMER_BYTE_RATE: 6.0}}
    state = after(state, {PRODUCER_BYTE_RATE: 7.0, CONSUMER_BYTE_RATE: None})
    assert state.quotas == {PAIR: {PRODUCER_BYTE_RATE: 7.0}}
    assert after(state, {PRODUCER_BYTE_RATE: None}).quotas == {}


def test_snapshot_has_the_quotas() -> None:
    state = after(STATE, {PRODUCER_BYTE_RATE: 5.0})
    assert replay_cluster(map(encode_record, snapshot_of(state))) == state


@pytest.mark.parametrize("changes", [{PRODUCER_BYTE_RATE: 5.0}, {CONSUMER_BYTE_RATE: None}, {}])
def test_what_is_so_already_is_no_record(changes: dict[str, float | None]) -> None:
    state = after(STATE, {PRODUCER_BYTE_RATE: 5.0})
    step = decide_alter_quotas(state, AlterQuotas(PAIR, changes))
    assert (step.response, step.records) == ({PRODUCER_BYTE_RATE: 5.0}, ())


def test_what_is_only_validated_is_no_record() -> None:
    step = decide_alter_quotas(STATE, AlterQuotas(PAIR, {PRODUCER_BYTE_RATE: 5.0}, validate_only=True))
    assert (step.response, step.records) == ({PRODUCER_BYTE_RATE: 5.0}, ())


def test_root_of_an_earlier_level_is_upgraded_first() -> None:
    state = apply_all(EMPTY_CLUSTER, [FeatureLevel("bus.version", 2)])
    step = decide_alter_quotas(state, AlterQuotas(PAIR, {PRODUCER_BYTE_RATE: 5.0}))
    assert isinstance(step.response, Refused)
    assert step.response.code is ErrorCode.UNSUPPORTED_VERSION
    assert "quotas need bus.version 3, found 2" in step.response.message
    assert step.records == ()


@pytest.mark.parametrize(
    ("record", "broken"),
    [
        (ClientQuotaChanged("x", None), "quotas of x"),
        (ClientQuotaChanged('{"user": "a"}', "[]"), "expected quotas by name"),
        (ClientQuotaChanged('{"user": "a"}', None), "expected quotas of user-principal 'a', found none"),
    ],
)
def test_record_that_does_not_fit_stops_the_machine(record: ClientQuotaChanged, broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        apply_all(STATE, [record])
