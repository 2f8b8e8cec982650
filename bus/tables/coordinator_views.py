"""The groups of a root as tables: groups, their members, their offsets, their lag.

Read from `__consumer_offsets`, so a broker need not be up. Guards one promise: of every key of that log the last row
counts, and a null value deletes. A root without groups has empty views.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bus.errors import StorageFault
from bus.model import CONSUMER_OFFSETS_TOPIC, TopicPartition
from bus.records.log_schema import CONSUMER_OFFSETS_VALUE_TYPE, TIMESTAMP_TYPE
from bus.tables.keyed_rows import fields_of, last_values, time_of, view_table
from bus.tables.topics import TopicTables

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
