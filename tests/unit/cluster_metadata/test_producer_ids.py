"""Producer ids and names: who may write, who is fenced, and who gets which identity."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    ProducerIdsAllocated,
    ProducerNamed,
    apply,
    apply_all,
    encode_record,
    replay_cluster,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.cluster_metadata.producer_decisions import (
    IdentityStep,
    InitProducer,
    decide_allocate_producer_ids,
    decide_init_producer,
    needs_new_id,
)
from bus.cluster_metadata.producer_ids import PRODUCER_EPOCH_MAX, ProducerIdentity, check_producer, check_producer_name
from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp, Step


def cluster(*records: ClusterRecord) -> ClusterState:
    state = EMPTY_CLUSTER
    for record in (BrokerRegistered(0, "a", 1), ProducerIdsAllocated(0, 1000), *records):
        state = apply(state, record)
    return state


# "billing" came as a new instance at epoch 4, "audit" raised its epoch from 6 to 7 by itself.
STATE = cluster(ProducerNamed("billing", 7, 4, -1), ProducerNamed("audit", 8, 7, 6))


def init(name: str, producer_id: int | None = None, epoch: int = 0, state: ClusterState = STATE) -> IdentityStep:
    current = None if producer_id is None else ProducerIdentity(producer_id, epoch)
    return decide_init_producer(state, InitProducer(name, current), new_producer_id=99)


def refusal(step: IdentityStep) -> Refused:
    assert isinstance(step.response, Refused)
    assert step.records == ()
    return step.response


def test_blocks_follow_one_another_whoever_gets_them() -> None:
    state = cluster()
    for broker_id, first in ((0, 1000), (1, 2000), (0, 3000)):
        step = decide_allocate_producer_ids(state, broker_id=broker_id)
        assert step.response == range(first, first + 1000)
        assert step.records == (ProducerIdsAllocated(broker_id, first + 1000),)
        state = apply(state, step.records[0])


def test_new_name_gets_the_new_id_at_epoch_0() -> None:
    step = init("new")
    assert step.response == ProducerIdentity(99, 0)
    assert step.records == (ProducerNamed("new", 99, 0, -1),)


def test_next_instance_of_a_name_gets_its_id_and_the_next_epoch() -> None:
    step = init("billing")
    assert step.response == ProducerIdentity(7, 5)
    assert step.records == (ProducerNamed("billing", 7, 5, -1),)


def test_holder_of_the_current_identity_gets_the_next_epoch_and_the_same_one_if_it_asks_again() -> None:
    step = init("billing", 7, 4)
    assert step.response == ProducerIdentity(7, 5)
    assert step.records == (ProducerNamed("billing", 7, 5, 4),)
    again = init("billing", 7, 4, apply(STATE, step.records[0]))
    assert again.response == ProducerIdentity(7, 5)
    assert again.records == ()


def test_who_keeps_the_epoch_gets_the_identity_as_it_is_and_fences_nobody() -> None:
    command = InitProducer("billing", keeps_epoch=True)
    assert decide_init_producer(STATE, command, new_producer_id=None) == Step(ProducerIdentity(7, 4))


def test_who_keeps_the_epoch_of_a_new_name_names_it_at_epoch_0_once() -> None:
    command = InitProducer("new", keeps_epoch=True)
    step = decide_init_producer(STATE, command, new_producer_id=99)
    assert step == Step(ProducerIdentity(99, 0), (ProducerNamed("new", 99, 0, -1),))
    state = apply(STATE, step.records[0])
    assert decide_init_producer(state, command, new_producer_id=None) == Step(ProducerIdentity(99, 0))


def test_who_keeps_the_epoch_has_no_identity_of_its_own() -> None:
    command = InitProducer("billing", ProducerIdentity(7, 4), keeps_epoch=True)
    refused = refusal(decide_init_producer(STATE, command, new_producer_id=None))
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert refused.message == "expected no producer id of who keeps the epoch of a name, found 7"


@pytest.mark.parametrize(
    ("name", "producer_id", "epoch", "code", "message"),
    [
        (
            "billing",
            7,
            3,
            ErrorCode.PRODUCER_FENCED,
            "producer billing (id 7): epoch 3 was fenced, a later",
        ),
        ("audit", 8, 5, ErrorCode.PRODUCER_FENCED, "epoch 5 was fenced, a later instance of this name has epoch 7"),
        ("billing", 7, 5, ErrorCode.INVALID_PRODUCER_EPOCH, "expected epoch 4, found 5, which was never given"),
        ("billing", 8, 4, ErrorCode.INVALID_PRODUCER_ID_MAPPING, "producer billing has id 7, found id 8"),
        ("new", 9, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING, "producer new has no id yet, found id 9"),
        ("", None, 0, ErrorCode.INVALID_REQUEST, "expected a producer name of 1 to 249 characters, found 0"),
        ("x" * 250, None, 0, ErrorCode.INVALID_REQUEST, "expected a producer name of 1 to 249 characters, found 250"),
        ("a b", None, 0, ErrorCode.INVALID_REQUEST, "expected a producer name of a-z, A-Z, 0-9, '.', '_' and '-', "),
        ("billing", -1, 4, ErrorCode.INVALID_REQUEST, "expected a producer id from 0 on and an epoch from 0 to 32767"),
        ("billing", 7, -1, ErrorCode.INVALID_REQUEST, "found 7 and -1"),
        ("billing", 7, 32768, ErrorCode.INVALID_REQUEST, "found 7 and 32768"),
    ],
)
def test_init_is_refused_with_what_was_expected_and_found(
    name: str, producer_id: int | None, epoch: int, code: ErrorCode, message: str
) -> None:
    refused = refusal(init(name, producer_id, epoch))
    assert refused.code is code
    assert message in refused.message


def test_an_instance_in_between_fences_the_one_before_it_though_that_had_the_last_epoch() -> None:
    # 7 was raised from 6 by the holder; then another instance came: 6 and 7 are both over.
    state = apply(STATE, ProducerNamed("audit", 8, 8, -1))
    for epoch in (6, 7):
        assert refusal(init("audit", 8, epoch, state)).code is ErrorCode.PRODUCER_FENCED


def test_name_that_has_had_its_last_epoch_goes_on_with_a_new_id_and_the_old_one_is_fenced() -> None:
    state = cluster(ProducerNamed("old", 3, PRODUCER_EPOCH_MAX - 1, -1))
    step = init("old", state=state)
    assert step.response == ProducerIdentity(3, PRODUCER_EPOCH_MAX)
    state = apply(state, step.records[0])
    assert needs_new_id(state, InitProducer("old"))
    assert not needs_new_id(state, InitProducer("old", keeps_epoch=True))
    step = init("old", state=state)
    assert step.response == ProducerIdentity(99, 0)
    state = apply_all(state, step.records)
    for epoch in (0, PRODUCER_EPOCH_MAX):
        refused = check_producer(state.producers, ProducerStamp(3, epoch, 0))
        assert refused is not None
        assert refused.code is ErrorCode.PRODUCER_FENCED
    assert check_producer(state.producers, ProducerStamp(99, 0, 0)) is None
    assert init("old", state=state).response == ProducerIdentity(99, 1)
    assert refusal(init("old", 3, PRODUCER_EPOCH_MAX, state)).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [
        (0, 0, None),  # of a block, no name
        (999, 32767, None),  # without a name the epoch is the producer's own affair
        (1000, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (7, 4, None),
        (7, 3, ErrorCode.PRODUCER_FENCED),
        (7, 5, None),  # the name's own instances may count on: partitions refuse what is too low
        (8, 6, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_stamp_is_checked_against_what_was_given(producer_id: int, epoch: int, code: ErrorCode | None) -> None:
    refused = check_producer(STATE.producers, ProducerStamp(producer_id, epoch, 0))
    assert (refused and refused.code) == code


def test_every_character_of_a_name_is_taken() -> None:
    assert check_producer_name("Az09._-") is None
    assert check_producer_name("x" * 249) is None
    assert check_producer_name("x\n") is not None


@pytest.mark.parametrize(
    ("record", "broken"),
    [
        (ProducerIdsAllocated(0, 1000), "next producer id went from 1000 to 1000"),
        (ProducerNamed("new", 1000, 0, -1), "expected a producer id below 1000 for new, found 1000"),
        (ProducerNamed("new", 7, 0, -1), "producer id 7 of new belongs to .*billing"),
        (ProducerNamed("billing", 9, 5, -1), "producer id of billing went from 7 to 9"),
        (ProducerNamed("billing", 7, 4, -1), "epoch of billing went from 4 to 4"),
        (ProducerNamed("billing", 7, 5, 5), "expected a last epoch of billing below 5, found 5"),
    ],
)
def test_record_that_breaks_an_invariant_stops_the_machine(record: ClusterRecord, broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        apply(STATE, record)


def test_log_that_contradicts_itself_is_refused_with_the_offset() -> None:
    rows = [encode_record(record) for record in (ProducerIdsAllocated(0, 1000), ProducerNamed("new", 1000, 0, -1))]
    with pytest.raises(ValueError, match="record at offset 1 of the cluster metadata: expected a producer id below"):
        replay_cluster(rows)
