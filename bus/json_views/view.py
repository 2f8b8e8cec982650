"""A view of a topic whose values are JSON objects: which of their fields are columns, and what else is shown.

Guards one promise: a view that passes `check_view` can be made by both engines, with the same columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bus.json_views.columns import Field, SchemaError, fold_name
from bus.json_views.ddl import format_ddl, parse_ddl

CORRUPT_COLUMN = "_corrupt"  # the value as text where it is no JSON object, null where it is
ENVELOPE_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
    "producer_id",
    "producer_epoch",
    "sequence",
    "leader_epoch",
    "key_bytes",
    "value_bytes",
    CORRUPT_COLUMN,
)
DEFAULT_COLUMNS = ("partition", "offset", "timestamp", "key", CORRUPT_COLUMN)
SYSTEM_VIEW_NAMES = (
    "groups",
    "group_members",
    "group_offsets",
    "lag",
    "topics",
    "partitions",
    "versions",
    "log_maintenance",
    "brokers",
    "replicas",
    "elections",
    "reassignments",
    "transactions",
    "transaction_history",
    "quotas",
    "audit",
    "acls",
    "effective_acls",
)
NAME_LENGTH_MAX = 249
SCHEMA_LENGTH_MAX = 100_000
_LEGAL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_KEPT_NAMES = frozenset((*SYSTEM_VIEW_NAMES, "bus"))


@dataclass(frozen=True, slots=True)
class JsonView:
    """`columns`, of ENVELOPE_COLUMNS, come first, but for `_corrupt`, which comes last; none is named as a field is."""

    name: str
    topic: str
    schema: str  # DDL
    columns: tuple[str, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        return parse_ddl(self.schema)


def check_view(name: str, topic: str, schema: str, columns: Sequence[str] | None = None) -> JsonView:
    """The view with its schema in the one text that it has. Without `columns`: the usual ones, but for those that a
    field is named as. Raises `SchemaError`."""
    check_view_name(name)
    if len(schema) > SCHEMA_LENGTH_MAX:
        raise SchemaError(f"expected a schema of at most {SCHEMA_LENGTH_MAX} characters, found {len(schema)}")
    fields = parse_ddl(schema)
    taken = {fold_name(field.name) for field in fields}
    if columns is None:
        columns = [column for column in DEFAULT_COLUMNS if column not in taken]
    for number, column in enumerate(columns):
        if column not in ENVELOPE_COLUMNS:
            raise SchemaError(f"expected columns of {', '.join(ENVELOPE_COLUMNS)}, found {column!r}")
        if column in columns[:number]:
            raise SchemaError(f"expected each column once, found {column} twice")
        if column in taken:
            raise SchemaError(f"expected columns that are named as no field of the values is, found {column} as both")
    return JsonView(name, topic, format_ddl(fields), tuple(columns))


def check_view_name(name: str) -> None:
    """Raises `SchemaError` for a name that is no plain word in SQL, or that the bus keeps for itself."""
    if len(name) > NAME_LENGTH_MAX or _LEGAL_NAME.fullmatch(name) is None:
        raise SchemaError(
            f"expected a name of a view of up to {NAME_LENGTH_MAX} of the characters a-z, A-Z, 0-9 and '_', a letter "
            f"first, found {name!r}"
        )
    if name.casefold() in _KEPT_NAMES:
        raise SchemaError(f"expected a name that the bus does not have itself, found {name}")
