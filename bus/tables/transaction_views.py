"""The transactional ids of a root as tables: what each is doing now, and what its log still tells of before.

Read from `__transaction_state`, so a broker need not be up. Guards one promise: what a transaction has is told of a
transaction alone: an id that has none open, and whose last one left no rows, has no partitions and groups.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bus.model import TRANSACTION_STATE_TOPIC
from bus.records.log_schema import TIMESTAMP_TYPE, TRANSACTION_STATE_VALUE_TYPE
from bus.tables.keyed_rows import all_values, fields_of, last_values, time_of, view_table
from bus.tables.topics import TopicTables

EXPIRED = "Expired"  # takes the place of a state: the id is forgotten
_PARTITION = pa.struct(
    [
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("last_sequence", pa.int32()),  # that is committed
        pa.field("version", pa.int64()),  # that has the rows
        pa.field("base_offset", pa.int64()),  # the offset of the first row
    ]
)
_STATE = [
    ("transactional_id", pa.string()),
    ("state", pa.string()),
    ("number", pa.int64()),
    ("producer_id", pa.int64()),
    ("producer_epoch", pa.int32()),
    ("timeout_ms", pa.int32()),
    ("start_time", TIMESTAMP_TYPE),  # the current or the last transaction
    ("update_time", TIMESTAMP_TYPE),
    ("abort_cause", pa.string()),
    ("partitions", pa.list_(_PARTITION)),
    ("group_ids", pa.list_(pa.string())),
]
_COORDINATOR = ("coordinator_partition", pa.int32())
TRANSACTIONS = pa.schema([*_STATE, _COORDINATOR])
TRANSACTION_HISTORY = pa.schema([_COORDINATOR, ("offset", pa.int64()), ("time", TIMESTAMP_TYPE), *_STATE])


def transactions(tables: TopicTables) -> pa.Table:
    rows = last_values(tables, TRANSACTION_STATE_TOPIC, TRANSACTION_STATE_VALUE_TYPE)
    return view_table(TRANSACTIONS, _state_columns(rows)).sort_by("transactional_id")


def transaction_history(tables: TopicTables) -> pa.Table:
    """Every change of an id that compaction has left, in the order in which they were made."""
    rows = all_values(tables, TRANSACTION_STATE_TOPIC, TRANSACTION_STATE_VALUE_TYPE)
    if not rows.num_columns:
        return TRANSACTION_HISTORY.empty_table()
    columns = _state_columns(rows)
    columns["transactional_id"] = pa.array([key.decode(errors="replace") for key in rows.column("key").to_pylist()])
    columns["state"] = pc.fill_null(rows.column("state"), EXPIRED)
    columns |= {"offset": rows.column("offset"), "time": rows.column("timestamp")}
    order = [("coordinator_partition", "ascending"), ("offset", "ascending")]
    return view_table(TRANSACTION_HISTORY, columns).sort_by(order)


def _state_columns(rows: pa.Table) -> dict[str, pa.Array | pa.ChunkedArray]:
    same = ("transactional_id", "state", "number", "producer_id", "producer_epoch", "timeout_ms", "abort_cause")
    columns: dict[str, pa.Array | pa.ChunkedArray] = {name: rows.column(name) for name in same}
    return columns | {
        "start_time": time_of(_known(rows.column("start_ms"))),
        "update_time": time_of(rows.column("update_ms")),
        "partitions": _partitions(rows.column("partitions")),
        "group_ids": _lists_like(rows.column("groups"), fields_of(pc.list_flatten(rows.column("groups")))["group_id"]),
        "coordinator_partition": rows.column("log_partition"),
    }


def _partitions(column: pa.ChunkedArray) -> pa.ListArray:
    stored = fields_of(pc.list_flatten(column))
    named = [stored[field.name] for field in _PARTITION]
    cleaned = [_known(values) if pa.types.is_integer(values.type) else values for values in named]
    return _lists_like(column, pa.StructArray.from_arrays(cleaned, fields=list(_PARTITION)))


def _lists_like(column: pa.ChunkedArray, values: pa.Array) -> pa.ListArray:
    """`values` in lists as long as those of `column`; a list that is null is empty."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).combine_chunks()
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(pc.cumulative_sum(lengths), pa.int32())])
    return pa.ListArray.from_arrays(offsets, values)


def _known(numbers: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """-1 says that there is none."""
    return pc.if_else(pc.less(numbers, 0), pa.scalar(None, numbers.type), numbers)
