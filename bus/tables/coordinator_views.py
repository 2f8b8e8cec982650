"""The logs of the coordinators as tables: groups with their members, offsets and lag, and transactional ids.

Read from `__consumer_offsets` and `__transaction_state`, so a broker need not be up. Guards two promises. Of every key
of such a log the last row counts, and a null value deletes; a root without the log has empty views. And what a
transaction has is told of a transaction alone: an id that has none open, and whose last one left no rows, has no
partitions and groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bus.errors import StorageFault
from bus.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from bus.records.log_schema import CONSUMER_OFFSETS_VALUE_TYPE, TIMESTAMP_TYPE, TRANSACTION_STATE_VALUE_TYPE
from bus.tables.topics import TopicTables

LOG_PARTITION = pa.field("log_partition", pa.int32())


def last_values(tables: TopicTables, topic: str, value_type: pa.StructType) -> pa.Table:
    """The fields of the last value of every key, and `log_partition`, the partition that has it."""
    schema = pa.schema([*value_type, LOG_PARTITION])
    parts = [_last_values(tables, one, schema) for one in _partitions(tables, topic)]
    return pa.concat_tables([schema.empty_table(), *parts])


def _last_values(tables: TopicTables, partition: TopicPartition, schema: pa.Schema) -> pa.Table:
    rows = tables.read_rows(partition, ["offset", "key", "value"])
    last = rows.group_by("key").aggregate([("offset", "max")]).column("offset_max")
    rows = rows.filter(pc.and_(pc.is_in(rows.column("offset"), last), pc.is_valid(rows.column("value"))))
    return _with_fields(rows, partition, schema)


def all_values(
    tables: TopicTables, topic: str, value_type: pa.StructType, columns: Sequence[str] = ("offset", "timestamp", "key")
) -> pa.Table:
    """A row for each that the log still has: `columns` of the log, the fields of the value, and `log_partition`."""
    schema = pa.schema([*value_type, LOG_PARTITION])
    parts = []
    for partition in _partitions(tables, topic):
        rows = tables.read_rows(partition, [*columns, "value"])
        values = _with_fields(rows, partition, schema)
        parts.append(pa.table({**{name: rows.column(name) for name in columns}, **dict(_columns(values))}))
    return pa.concat_tables(parts) if parts else pa.table({})


def _partitions(tables: TopicTables, topic: str) -> list[TopicPartition]:
    return tables.partitions(topic) if topic in tables.topics() else []


def _with_fields(rows: pa.Table, partition: TopicPartition, schema: pa.Schema) -> pa.Table:
    fields, count = fields_of(rows.column("value")), rows.num_rows
    columns = [fields.get(field.name, pa.nulls(count, field.type)) for field in schema if field != LOG_PARTITION]
    return pa.Table.from_arrays([*columns, pa.repeat(pa.scalar(partition.partition, pa.int32()), count)], schema=schema)


def _columns(table: pa.Table) -> zip[tuple[str, pa.ChunkedArray]]:
    return zip(table.column_names, table.columns, strict=True)


def fields_of(structs: pa.Array | pa.ChunkedArray) -> dict[str, pa.Array]:
    """The columns of an array of structs; a null struct is null in each."""
    if isinstance(structs, pa.ChunkedArray):
        structs = structs.combine_chunks()
    return dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))


def time_of(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(pc.cast(milliseconds, pa.timestamp("ms", tz="UTC")), TIMESTAMP_TYPE)


def view_table(schema: pa.Schema, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """These columns in the schema's order and types; one that is not given is null."""
    count = len(next(iter(columns.values())))
    arrays = [pc.cast(columns.get(field.name, pa.nulls(count, field.type)), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


_PLACE = pa.struct([pa.field("topic", pa.string()), pa.field("partition", pa.int32())])

GROUPS = pa.schema(
    [
        ("group_id", pa.string()),
        ("state", pa.string()),
        ("protocol_type", pa.string()),
        ("protocol", pa.string()),
        ("generation", pa.int32()),
        ("leader_id", pa.string()),
        ("member_count", pa.int32()),
        ("state_time", TIMESTAMP_TYPE),
        ("coordinator_partition", pa.int32()),
    ]
)
GROUP_MEMBERS = pa.schema(
    [
        ("group_id", pa.string()),
        ("generation", pa.int32()),
        ("member_id", pa.string()),
        ("group_instance_id", pa.string()),
        ("client_id", pa.string()),
        ("client_host", pa.string()),
        ("session_timeout_ms", pa.int32()),
        ("rebalance_timeout_ms", pa.int32()),
        ("topics", pa.list_(pa.string())),
        ("partitions", pa.list_(_PLACE)),
    ]
)
GROUP_OFFSETS = pa.schema(
    [
        ("group_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("committed_offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("metadata", pa.string()),
        ("commit_time", TIMESTAMP_TYPE),
        ("expire_time", TIMESTAMP_TYPE),
        ("is_stale", pa.bool_()),  # committed for an earlier topic of that name, or one that is gone
    ]
)
LAG = pa.schema(
    [
        ("group_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("committed_offset", pa.int64()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),  # the high watermark
        ("lag", pa.int64()),
        ("metadata", pa.string()),
        ("commit_time", TIMESTAMP_TYPE),
        ("is_stale", pa.bool_()),
        ("consumer_id", pa.string()),
        ("client_id", pa.string()),
        ("host", pa.string()),
    ]
)


def groups(tables: TopicTables) -> pa.Table:
    """A group that never had a member has no row of its own in the log, only offsets: it is empty."""
    rows = _GroupRows(tables)
    stored = rows.of_type("GroupStored")
    members = stored.column("members")
    table = view_table(
        GROUPS,
        {
            **_same_named(stored, ("group_id", "state", "protocol_type", "protocol", "generation", "leader_id")),
            "member_count": pc.fill_null(pc.list_value_length(members), 0),
            "state_time": time_of(stored.column("state_ms")),
            "coordinator_partition": stored.column("log_partition"),
        },
    )
    offsets = rows.of_type("OffsetCommitted").select(["group_id", "log_partition"])
    only = offsets.filter(pc.invert(pc.is_in(offsets.column("group_id"), table.column("group_id"))))
    simple = only.group_by("group_id").aggregate([("log_partition", "min")])
    count = simple.num_rows
    others = view_table(
        GROUPS,
        {
            "group_id": simple.column("group_id"),
            "state": pa.repeat("Empty", count),
            "protocol_type": pa.repeat("", count),
            "generation": pa.repeat(pa.scalar(0, pa.int32()), count),
            "member_count": pa.repeat(pa.scalar(0, pa.int32()), count),
            "coordinator_partition": simple.column("log_partition_min"),
        },
    )
    return pa.concat_tables([table, others]).sort_by("group_id")


def group_members(tables: TopicTables) -> pa.Table:
    stored = _GroupRows(tables).of_type("GroupStored")
    lists = stored.column("members").combine_chunks()
    owners = stored.select(["group_id", "generation"]).take(pc.list_parent_indices(lists))
    members = fields_of(pc.list_flatten(lists))
    columns = {name: members[name] for name in GROUP_MEMBERS.names if name in members}
    table = view_table(GROUP_MEMBERS, {**columns, **_same_named(owners, ("group_id", "generation"))})
    return table.sort_by([("group_id", "ascending"), ("member_id", "ascending")])


def group_offsets(tables: TopicTables) -> pa.Table:
    rows = _GroupRows(tables).of_type("OffsetCommitted")
    current = {name: topic.topic_id for name, topic in tables.cluster().topics.items()}
    pairs = zip(rows.column("topic").to_pylist(), rows.column("topic_id").to_pylist(), strict=True)
    table = view_table(
        GROUP_OFFSETS,
        {
            **_same_named(rows, ("group_id", "topic", "partition", "committed_offset", "leader_epoch", "metadata")),
            "commit_time": time_of(rows.column("commit_ms")),
            "expire_time": time_of(rows.column("expire_ms")),
            "is_stale": pa.array([current.get(topic) != topic_id for topic, topic_id in pairs], pa.bool_()),
        },
    )
    return table.sort_by([(name, "ascending") for name in ("group_id", "topic", "partition")])


def lag(tables: TopicTables) -> pa.Table:
    """Every partition that a group has an offset of or that one of its members owns. No lag where nothing is committed,
    where the offset is of another topic, and where the partition's table cannot be read."""
    key = ["group_id", "topic", "partition"]
    owners = _owners(group_members(tables))
    joined = group_offsets(tables).join(owners, key, join_type="full outer")
    ends = _log_ends(tables, joined.select(["topic", "partition"]))
    joined = joined.join(ends, ["topic", "partition"], join_type="left outer")
    is_stale = pc.fill_null(joined.column("is_stale"), False)
    difference = pc.subtract(joined.column("log_end_offset"), joined.column("committed_offset"))
    table = view_table(
        LAG,
        {
            **_same_named(joined, tuple(name for name in LAG.names if name in joined.column_names)),
            "lag": pc.if_else(is_stale, pa.scalar(None, pa.int64()), difference),
            "is_stale": is_stale,
        },
    )
    return table.sort_by([(name, "ascending") for name in key])


def _owners(members: pa.Table) -> pa.Table:
    """One row for each partition that is assigned."""
    lists = members.column("partitions").combine_chunks()
    member = members.select(["group_id", "member_id", "client_id", "client_host"]).take(pc.list_parent_indices(lists))
    places = fields_of(pc.list_flatten(lists))
    return pa.table(
        {
            "group_id": member.column("group_id"),
            "topic": places["topic"],
            "partition": places["partition"],
            "consumer_id": member.column("member_id"),
            "client_id": member.column("client_id"),
            "host": member.column("client_host"),
        }
    )


def _log_ends(tables: TopicTables, places: pa.Table) -> pa.Table:
    """Return the log start and log end of these partitions, if they exist and can be read."""
    topics = tables.topics()
    found: list[dict[str, object]] = []
    for row in places.group_by(["topic", "partition"]).aggregate([]).to_pylist():
        if not 0 <= row["partition"] < topics.get(row["topic"], 0):
            continue
        try:
            state = tables.log_state(TopicPartition(row["topic"], row["partition"]))
        except StorageFault:
            continue
        found.append({**row, "log_start_offset": state.log_start, "log_end_offset": state.high_watermark})
    names = ("topic", "partition", "log_start_offset", "log_end_offset")
    return pa.Table.from_pylist(found, pa.schema([LAG.field(name) for name in names]))


class _GroupRows:
    """The log of the groups, compacted: of every key the last row, if it has a value."""

    def __init__(self, tables: TopicTables) -> None:
        self._rows = last_values(tables, CONSUMER_OFFSETS_TOPIC, CONSUMER_OFFSETS_VALUE_TYPE)

    def of_type(self, name: str) -> pa.Table:
        return self._rows.filter(pc.equal(self._rows.column("type"), name))


def _same_named(rows: pa.Table, names: tuple[str, ...]) -> dict[str, pa.ChunkedArray]:
    return {name: rows.column(name) for name in names}


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
_ID_STATE = [
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
TRANSACTIONS = pa.schema([*_ID_STATE, _COORDINATOR])
TRANSACTION_HISTORY = pa.schema([_COORDINATOR, ("offset", pa.int64()), ("time", TIMESTAMP_TYPE), *_ID_STATE])


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
        "partitions": _partition_lists(rows.column("partitions")),
        "group_ids": _lists_like(rows.column("groups"), fields_of(pc.list_flatten(rows.column("groups")))["group_id"]),
        "coordinator_partition": rows.column("log_partition"),
    }


def _partition_lists(column: pa.ChunkedArray) -> pa.ListArray:
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
