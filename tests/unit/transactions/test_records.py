from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.model import TRANSACTION_STATE_TOPIC
from bus.ports import KeyedRow
from bus.records.log_schema import TRANSACTION_PARTITION_TYPE, TRANSACTION_STATE_VALUE_TYPE
from bus.storage_delta.typed_log import DeltaKeyedRows
from bus.transactions.bounds import GROUPS_MAX, PARTITIONS_MAX
from bus.transactions.records import (
    LoggedRecord,
    TransactionExpired,
    TransactionLogged,
    decode_record,
    encode_record,
)
from bus.transactions.state import (
    AbortCause,
    AppliedRows,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
)

ROWS = DeltaKeyedRows(TRANSACTION_STATE_TOPIC, TRANSACTION_STATE_VALUE_TYPE)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
INTS, LONGS = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
PARTITIONS = st.builds(TransactionPartition, NAMES, NAMES, INTS)
ORDERS = TransactionPartition("orders", "id-of-orders", 7)
LOGGED = TransactionLogged(
    "billing",
    41,
    7,
    3,
    60_000,
    TransactionState.COMPLETE_COMMIT,
    99,
    2,
    6,
    {ORDERS: 4},
    (TransactionGroup("desk", 12),),
    90,
    None,
    {ORDERS: AppliedRows(11, 500)},
)


@st.composite
def logged_records(draw: st.DrawFn) -> TransactionLogged:
    state = draw(st.sampled_from(TransactionState))
    partitions = draw(st.dictionaries(PARTITIONS, st.integers(-1, 2**31 - 1), max_size=3))
    has_rows = {partition: draw(st.booleans()) for partition in partitions}
    is_abort = state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
    return TransactionLogged(
        draw(NAMES),
        draw(LONGS),
        draw(LONGS),
        draw(st.integers(1, 32_767) if state.is_decided else st.integers(0, 32_766)),
        draw(st.integers(1, 2**31 - 1)),
        state,
        draw(LONGS),
        draw(st.integers(-1, 32_766)),
        draw(st.integers(-1, 2**63 - 1)),
        partitions,
        tuple(draw(st.lists(st.builds(TransactionGroup, NAMES, INTS), max_size=3))),
        draw(st.integers(-1, 2**63 - 1)),
        draw(st.sampled_from(AbortCause)) if is_abort else None,
        {partition: AppliedRows(draw(LONGS), draw(LONGS)) for partition, has in has_rows.items() if has},
    )


RECORDS = logged_records() | st.builds(TransactionExpired, NAMES)


@given(RECORDS)
def test_what_is_written_is_what_is_read(record: LoggedRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(RECORDS)
def test_what_is_written_is_what_is_read_from_columns(record: LoggedRecord) -> None:
    (row,) = ROWS.decode_again(ROWS.encode([encode_record(record)], now_ms=1))
    assert decode_record(row) == record


def test_value_has_the_fields_of_its_column_and_no_other() -> None:
    value = encode_record(LOGGED).value
    assert value is not None
    assert set(value) == {field.name for field in TRANSACTION_STATE_VALUE_TYPE}
    assert set(value["partitions"][0]) == {field.name for field in TRANSACTION_PARTITION_TYPE}


def test_key_is_the_transactional_id_and_its_tombstone_has_the_same() -> None:
    assert encode_record(LOGGED).key == b"billing"
    assert encode_record(TransactionExpired("billing")) == KeyedRow(b"billing", None)


@pytest.mark.parametrize("key", [b"", b"\xff"])
def test_key_that_cannot_be_read_is_an_error(key: bytes) -> None:
    with pytest.raises(ValueError, match="expected a transactional id as the key, found"):
        decode_record(KeyedRow(key, None))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"type": "TransactionPromised"}, "expected a record of type TransactionLogged, found 'TransactionPromised'"),
        ({"transactional_id": "other"}, "expected transactional id billing, as its key says, found other"),
        ({"number": -1}, "expected 0 to 9223372036854775807 in the field number, found -1"),
        ({"number": None}, "expected an integer in the field number, found None"),
        ({"producer_id": True}, "expected an integer in the field producer_id, found True"),
        ({"producer_epoch": 32_768}, "expected 0 to 32767 in the field producer_epoch, found 32768"),
        ({"producer_epoch": 32_767}, "expected a producer epoch of at most 32766 in CompleteCommit, found 32767"),
        ({"state": "PrepareCommit", "producer_epoch": 0}, "expected a producer epoch of 1 or more in PrepareCommit"),
        ({"last_producer_epoch": -2}, "expected -1 to 32766 in the field last_producer_epoch, found -2"),
        ({"state": "Dead"}, "expected one of Empty, Ongoing, .* in the field state, found 'Dead'"),
        ({"abort_cause": "timeout"}, "expected a cause exactly of an abort, found .* with CompleteCommit"),
        ({"state": "CompleteAbort"}, "expected a cause exactly of an abort, found None with CompleteAbort"),
        ({"state": "PrepareAbort", "abort_cause": "whim"}, "in the field abort_cause, found 'whim'"),
        ({"partitions": None}, "expected a list in the field partitions, found None"),
        ({"partitions": [{"topic": "orders"}]}, "expected a string in the field topic_id, found None"),
        ({"groups": [None]}, "expected a group in every item in the field groups"),
        ({"start_ms": -2}, "in the field start_ms, found -2"),
    ],
)
def test_value_that_cannot_be_read_says_what_was_expected(change: dict[str, Any], expected: str) -> None:
    row = encode_record(LOGGED)
    with pytest.raises(ValueError, match=expected):
        decode_record(KeyedRow(row.key, {**(row.value or {}), **change}))


def test_largest_transaction_fits_a_record_of_the_log() -> None:
    partitions = {
        TransactionPartition("t" * 245 + f"{number:04}", "i" * 64, number): number for number in range(PARTITIONS_MAX)
    }
    groups = tuple(TransactionGroup("g" * 1_020 + f"{number:04}", number) for number in range(GROUPS_MAX))
    record = replace(
        LOGGED,
        transactional_id="b" * 249,
        partitions=partitions,
        groups=groups,
        results=dict.fromkeys(partitions, AppliedRows(9, 9)),
    )
    assert encode_record(record).size_bytes < 1 << 20


def test_record_of_a_transaction_does_not_grow_when_it_is_applied() -> None:
    """But for the name of its state."""
    open_record = replace(LOGGED, state=TransactionState.ONGOING, results={}, partitions={ORDERS: -1})
    grown = encode_record(LOGGED).size_bytes - encode_record(open_record).size_bytes
    assert grown == len("CompleteCommit") - len("Ongoing")
