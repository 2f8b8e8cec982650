"""The columns of the log: the one truth for broker, SDK, jobs and Spark source.

A partition is a Delta table with these columns, in this order. A typed topic differs in one thing: its `value` is a
struct instead of binary. Types must match exactly in every data file (Delta protocol, "Data Files").
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import pyarrow as pa

from bus.model import AUDIT_TOPIC, CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from bus.records.json_text import parse_json

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

# Statistics are kept for these, and only these (delta.dataSkippingStatsColumns).
STATS_COLUMNS = ("offset", "timestamp", "producer_id", "sequence")


@lru_cache(maxsize=64)
def log_schema(value_type: pa.DataType | None = None) -> pa.Schema:
    """The Arrow schema of a partition; `value_type` is binary unless the topic is typed."""
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
            pa.field("timestamp_type", pa.int32(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", value_type if value_type is not None else pa.binary()),
            pa.field("headers", HEADERS_TYPE),
            pa.field("producer_id", pa.int64()),
            pa.field("producer_epoch", pa.int16()),
            pa.field("sequence", pa.int32()),
            pa.field("leader_epoch", pa.int32(), nullable=False),
        ]
    )


LOG_SCHEMA = log_schema()

# The value of `__cluster_metadata`: one struct for all records, `type` names the record, what it lacks is null. Fields
# are only ever added, at the end: a root that was written before gets them when a broker opens it.
CLUSTER_METADATA_VALUE_TYPE = pa.struct(
    [
        pa.field("type", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("partitions", pa.int32()),
        pa.field("broker_id", pa.int32()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("host", pa.string()),
        pa.field("port", pa.int32()),
        pa.field("config_name", pa.string()),
        pa.field("config_value", pa.string()),
        pa.field("next_producer_id", pa.int64()),
        pa.field("producer_name", pa.string()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int16()),
        pa.field("last_producer_epoch", pa.int16()),
        pa.field("view_name", pa.string()),
        pa.field("view_schema", pa.string()),
        pa.field("view_columns", pa.string()),
        pa.field("used_ms", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("rack", pa.string()),
        pa.field("incarnation", pa.string()),
        pa.field("broker_epoch", pa.int64()),
        pa.field("level_min", pa.int32()),
        pa.field("level_max", pa.int32()),
        pa.field("replicas", pa.string()),
        pa.field("feature", pa.string()),
        pa.field("level", pa.int32()),
    ]
)

# The value of `__consumer_offsets`, in the same manner. Its keys are JSON texts: ["offset", group, topic, partition],
# ["group", group] and ["pending", group, producer id, producer epoch]; a null value deletes the key's state.
GROUP_MEMBER_TYPE = pa.struct(
    [
        pa.field("member_id", pa.string()),
        pa.field("group_instance_id", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("client_host", pa.string()),
        pa.field("session_timeout_ms", pa.int32()),
        pa.field("rebalance_timeout_ms", pa.int32()),
        pa.field("subscription", pa.binary()),  # the bytes that the member sent
        pa.field("topics", pa.list_(pa.string())),  # the subscribed topics, if the protocol type is consumer
        pa.field("assignment", pa.binary()),  # the bytes that the leader sent
        pa.field(
            "partitions",  # the content of the assignment, if the protocol type is consumer
            pa.list_(pa.struct([pa.field("topic", pa.string()), pa.field("partition", pa.int32())])),
        ),
    ]
)
PENDING_OFFSET_TYPE = pa.struct(
    [
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("committed_offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("metadata", pa.string()),
    ]
)
CONSUMER_OFFSETS_VALUE_TYPE = pa.struct(
    [
        pa.field("type", pa.string()),  # OffsetCommitted, GroupStored or TxnOffsetsPending
        pa.field("group_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("committed_offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("metadata", pa.string()),
        pa.field("commit_ms", pa.int64()),
        pa.field("expire_ms", pa.int64()),  # null: offsets.retention.minutes decides
        pa.field("protocol_type", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("generation", pa.int32()),
        pa.field("leader_id", pa.string()),
        pa.field("state", pa.string()),  # Stable or Empty
        pa.field("state_ms", pa.int64()),  # since when
        pa.field("members", pa.list_(GROUP_MEMBER_TYPE)),
        pa.field("producer_id", pa.int64()),  # this and the rest: of a transaction
        pa.field("producer_epoch", pa.int16()),
        pa.field("sequence", pa.int32()),  # the sequence of its last offset commit
        pa.field("pending_offsets", pa.list_(PENDING_OFFSET_TYPE)),  # committed once the transaction is
    ]
)

# The value of `__transaction_state`, in the same manner. Its key is the transactional id.
TRANSACTION_PARTITION_TYPE = pa.struct(
    [
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("last_sequence", pa.int32()),  # that is committed; -1: none, or not decided
        # the version of the partition's table that has the rows; -1: no rows, or not completed
        pa.field("version", pa.int64()),
        pa.field("base_offset", pa.int64()),  # the offset of the first row; -1 with the version
    ]
)
TRANSACTION_STATE_VALUE_TYPE = pa.struct(
    [
        pa.field("type", pa.string()),  # TransactionLogged
        pa.field("transactional_id", pa.string()),
        pa.field("number", pa.int64()),  # the number of the current or the last transaction
        pa.field("producer_id", pa.int64()),
        # the epoch of the next request; one more than that of the rows once decided
        pa.field("producer_epoch", pa.int16()),
        # the epoch that the same instance had before; -1: it was another's
        pa.field("last_producer_epoch", pa.int16()),
        pa.field("previous_producer_id", pa.int64()),  # that of the last epoch, if it was another one; else -1
        pa.field("timeout_ms", pa.int32()),
        pa.field("state", pa.string()),  # Kafka's name
        pa.field("abort_cause", pa.string()),  # only for PrepareAbort and CompleteAbort
        pa.field("partitions", pa.list_(TRANSACTION_PARTITION_TYPE)),
        pa.field(
            "groups",  # groups with offsets in the transaction
            pa.list_(pa.struct([pa.field("group_id", pa.string()), pa.field("offsets_partition", pa.int32())])),
        ),
        pa.field("start_ms", pa.int64()),  # the begin of the transaction; -1: none since the producer was initialised
        pa.field("update_ms", pa.int64()),
    ]
)

# The value of the log of users, in the same manner; it is no topic.
USERS_VALUE_TYPE = pa.struct(
    [
        pa.field("type", pa.string()),
        pa.field("name", pa.string()),
        pa.field("mechanism", pa.string()),
        pa.field("salt", pa.binary()),
        pa.field("stored_key", pa.binary()),
        pa.field("server_key", pa.binary()),
        pa.field("iterations", pa.int32()),
    ]
)

# The value of `__audit`: what callers did, or were kept from; see security/audit_trail.py.
AUDIT_VALUE_TYPE = pa.struct(
    [
        pa.field("time", TIMESTAMP_TYPE),
        pa.field("kind", pa.string()),  # DECISION, LOGIN, CHANGE or GAP
        pa.field("principal", pa.string()),
        pa.field("host", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("listener", pa.string()),
        pa.field("mechanism", pa.string()),
        pa.field("call", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("resource_type", pa.string()),
        pa.field("resource", pa.string()),
        pa.field("decision", pa.string()),
        pa.field("rule", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("request_id", pa.string()),
        pa.field("error", pa.string()),
        pa.field("broker_id", pa.int32()),  # that tells it
    ]
)

# Internal topics are typed: the struct of each one's values.
INTERNAL_VALUE_TYPES: dict[str, pa.StructType] = {
    CLUSTER_METADATA_TOPIC: CLUSTER_METADATA_VALUE_TYPE,
    CONSUMER_OFFSETS_TOPIC: CONSUMER_OFFSETS_VALUE_TYPE,
    TRANSACTION_STATE_TOPIC: TRANSACTION_STATE_VALUE_TYPE,
    AUDIT_TOPIC: AUDIT_VALUE_TYPE,
}
LOG_COLUMNS = tuple(LOG_SCHEMA.names)

_DELTA_PRIMITIVES: dict[pa.DataType, str] = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP_TYPE: "timestamp",
}
# The log has none of these two, but a table may: another engine can add columns.
_ARROW_PRIMITIVES = {name: arrow_type for arrow_type, name in _DELTA_PRIMITIVES.items()} | {
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)", re.ASCII)


def delta_type(arrow_type: pa.DataType) -> Any:
    """A Delta schema type for an Arrow type, as JSON data (Delta protocol, "Schema Serialization Format").

    Raises `ValueError` for a type that a topic's value cannot have.
    """
    if arrow_type in _DELTA_PRIMITIVES:
        return _DELTA_PRIMITIVES[arrow_type]
    if pa.types.is_struct(arrow_type):
        return {"type": "struct", "fields": [_delta_field(field) for field in arrow_type]}
    if pa.types.is_list(arrow_type):
        item = arrow_type.value_field
        return {"type": "array", "elementType": delta_type(item.type), "containsNull": item.nullable}
    if pa.types.is_map(arrow_type):
        return {
            "type": "map",
            "keyType": delta_type(arrow_type.key_type),
            "valueType": delta_type(arrow_type.item_type),
            "valueContainsNull": arrow_type.item_field.nullable,
        }
    known = ", ".join(str(known_type) for known_type in _DELTA_PRIMITIVES)
    raise ValueError(f"expected one of {known}, or a struct, list or map of them, found {arrow_type}")


def _delta_field(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": delta_type(field.type), "nullable": field.nullable, "metadata": {}}


def delta_schema_string(schema: pa.Schema) -> str:
    """`metaData.schemaString` of a table with this schema."""
    return json.dumps({"type": "struct", "fields": [_delta_field(field) for field in schema]}, separators=(",", ":"))


@lru_cache(maxsize=64)
def arrow_schema(schema_string: str) -> pa.Schema:
    """The Arrow schema of a `metaData.schemaString`; comments and other metadata of its columns are left out.

    Raises `ValueError` for text that is no Delta schema, and for a type that no reader version 1 knows.
    """
    try:
        return pa.schema(list(_arrow_type(parse_json(schema_string))))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"expected a Delta schema as JSON ({type(error).__name__}: {error})") from None


def _arrow_type(delta: Any) -> pa.DataType:
    if isinstance(delta, str):
        if delta in _ARROW_PRIMITIVES:
            return _ARROW_PRIMITIVES[delta]
        if decimal := _DECIMAL.fullmatch(delta):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        raise ValueError(f"expected a type of Delta, found {delta!r}")
    match delta["type"]:
        case "struct":
            return pa.struct([_arrow_field(field) for field in delta["fields"]])
        case "array":
            return pa.list_(pa.field("element", _arrow_type(delta["elementType"]), bool(delta["containsNull"])))
        case "map":
            value = pa.field("value", _arrow_type(delta["valueType"]), bool(delta["valueContainsNull"]))
            return pa.map_(_arrow_type(delta["keyType"]), value)
        case other:
            raise ValueError(f"expected a struct, an array or a map, found {other!r}")


def _arrow_field(field: Any) -> pa.Field:
    return pa.field(field["name"], _arrow_type(field["type"]), bool(field["nullable"]))


def table_schema_string(schema: pa.Schema) -> str:
    """The Delta schema of a partition: every column nullable, though the bus writes no null offset or timestamp.

    NOT NULL is an invariant that each foreign writer has to check before a MERGE or OPTIMIZE; delta-spark refuses to
    write to a table that has it within a list, as the key of a header is. A promise that only the broker can keep is
    better checked by the broker.
    """
    return delta_schema_string(pa.schema([_nullable(column) for column in schema]))


def _nullable(column: pa.Field) -> pa.Field:
    return pa.field(column.name, nullable_type(column.type))


def nullable_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type with nulls allowed everywhere, as Delta tables of the bus have it."""
    if pa.types.is_struct(arrow_type):
        return pa.struct([_nullable(inner) for inner in arrow_type])
    if pa.types.is_list(arrow_type):
        return pa.list_(_nullable(arrow_type.value_field))
    if pa.types.is_map(arrow_type):
        return pa.map_(nullable_type(arrow_type.key_type), _nullable(arrow_type.item_field))
    return arrow_type


@lru_cache(maxsize=64)  # each partition is asked about when it is opened, and most have the same columns
def is_same_schema(schema_string: str, schema: pa.Schema) -> bool:
    """True if a table has the columns of `schema`. Nullability and comments are ignored."""
    return _are_equal(schema_string, table_schema_string(schema))


def has_same_columns(one: str, other: str) -> bool:
    """The same of two schema strings."""
    return one == other or _are_equal(one, other)


def _are_equal(one: str, other: str) -> bool:
    try:
        found, expected = (parse_json(text, object_hook=_without_trimmings) for text in (one, other))
    except ValueError:
        return False
    return bool(found == expected)


def _without_trimmings(node: dict[str, Any]) -> dict[str, Any]:
    left_out = ("nullable", "metadata", "containsNull", "valueContainsNull")
    return {key: value for key, value in node.items() if key not in left_out}
