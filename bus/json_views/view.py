"""A view of a topic whose values are JSON objects: the types of its columns, their text, and what else it shows.

The text of the columns is the DDL that Spark's `from_json` takes, of the types that both engines have. Guards two
promises: `parse_ddl(format_ddl(fields)) == fields`, so what is stored means the same for ever; and a view that passes
`check_view` can be made by both engines, with the same columns.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

DECIMAL_PRECISION_MAX = 38
FIELD_NAME_LENGTH_MAX = 255
_ILLEGAL = frozenset("\"'`\\")

# Kind -> how Spark's DDL and the embedded engine call it.
SPARK_NAMES = {
    "string": "STRING",
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INT",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "decimal": "DECIMAL",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
}
INTEGER_KINDS = ("tinyint", "smallint", "int", "bigint")
FRACTION_KINDS = ("float", "double")

# The forms of a text that counts as a number, a date, a time: the same for both engines and for inference. The engines'
# own casts accept different further forms (1.5 as a whole number, 2024-1-2 as a date, a time without a zone in the zone
# of the session), so only matching texts reach them. No backslashes: the engines quote them differently.
WHOLE = "-?[0-9]{1,19}"
EXPONENT = "[eE][-+]?[0-9]{1,4}"
NUMBER = "-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?"
BOOLEAN = "true|false"
DATE = "[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}"
ZONE = "Z|[-+](0[0-9]|1[0-7]):[0-5][0-9]"
TIMESTAMP = f"{DATE}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{{1,9}})?({ZONE})?"


class SchemaError(ValueError):
    """The columns are not valid for a view; the message says what was expected and found."""


@dataclass(frozen=True, slots=True)
class ScalarType:
    kind: str  # one of SPARK_NAMES
    precision: int = 0  # for a decimal: 0 < precision <= 38
    scale: int = 0  # 0 <= scale <= precision


@dataclass(frozen=True, slots=True)
class ArrayType:
    item: JsonType


@dataclass(frozen=True, slots=True)
class Field:
    name: str  # the key of the JSON object, and the name of the column
    type: JsonType


@dataclass(frozen=True, slots=True)
class StructType:
    fields: tuple[Field, ...]  # never empty; no two names that differ in case only, as SQL's do not


JsonType = ScalarType | ArrayType | StructType


def check_fields(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Raises `SchemaError`: none, a name that neither engine could say, or one that is there twice."""
    if not fields:
        raise SchemaError("expected at least one column, found none")
    seen: dict[str, str] = {}
    for field in fields:
        if not is_legal_name(field.name):
            raise SchemaError(
                f"expected a name of 1 to {FIELD_NAME_LENGTH_MAX} printable characters without quotes and backslashes, "
                f"found {field.name!r}"
            )
        other = seen.get(fold_name(field.name))
        if other is not None:
            raise SchemaError(f"expected names that differ in more than case, found {other!r} and {field.name!r}")
        seen[fold_name(field.name)] = field.name
    return fields


def fold_name(name: str) -> str:
    """One text for all names that an engine takes for one: in any case, composed or not. Java's rule looks at capitals
    first, for which an i is one with and without its dot."""
    return unicodedata.normalize("NFC", name.upper().casefold()).replace("i\u0307", "i")


def is_legal_name(name: str) -> bool:
    return 0 < len(name) <= FIELD_NAME_LENGTH_MAX and name.isprintable() and not _ILLEGAL.intersection(name)


DEPTH_MAX = 32
_TOKEN = re.compile(r"\s*(?:(?P<word>\w+)|`(?P<quoted>[^`]*)`|(?P<sign>[<>(),:])|(?P<other>\S))")
_ALIASES = {
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "tinyint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_ddl(text: str) -> tuple[Field, ...]:
    """`carrier STRING, delay INT, legs ARRAY<STRUCT<origin: STRING>>`. Raises `SchemaError`."""
    parser = _Parser(text)
    fields = parser.fields(end="", depth=0)
    return check_fields(fields)


def format_ddl(fields: tuple[Field, ...]) -> str:
    """The one text of these columns."""
    return ", ".join(f"{_name(field.name)} {format_type(field.type)}" for field in fields)


def format_type(json_type: JsonType) -> str:
    match json_type:
        case ScalarType("decimal", precision, scale):
            return f"DECIMAL({precision},{scale})"
        case ScalarType(kind):
            return SPARK_NAMES[kind]
        case ArrayType(item):
            return f"ARRAY<{format_type(item)}>"
        case StructType(fields):
            return f"STRUCT<{', '.join(f'{_name(field.name)}: {format_type(field.type)}' for field in fields)}>"


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name}`"


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [match for match in _TOKEN.finditer(text) if match[0].strip()]
        self._at = 0

    def fields(self, end: str, depth: int) -> tuple[Field, ...]:
        """Up to `end`, which is taken too; an empty one is the end of the text."""
        found: list[Field] = []
        while True:
            name = self._take_name()
            self._skip(":")
            found.append(Field(name, self._type(depth)))
            if self._skip(","):
                continue
            self._expect(end)
            return tuple(found)

    def _type(self, depth: int) -> JsonType:
        if depth > DEPTH_MAX:
            raise SchemaError(f"expected at most {DEPTH_MAX} types inside each other, found more")
        word = self._take_word()
        kind = _ALIASES.get(word.lower(), word.lower())
        if kind == "array":
            self._expect("<")
            item = self._type(depth + 1)
            self._expect(">")
            return ArrayType(item)
        if kind == "struct":
            self._expect("<")
            return StructType(check_fields(self.fields(">", depth + 1)))
        if kind not in SPARK_NAMES:
            known = ", ".join([*SPARK_NAMES.values(), "ARRAY<...>", "STRUCT<...>"])
            raise SchemaError(f"expected one of {known}, found {word!r}")
        return self._decimal() if kind == "decimal" else ScalarType(kind)

    def _decimal(self) -> ScalarType:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._take_number()
            scale = self._take_number() if self._skip(",") else 0
            self._expect(")")
        if not (0 < precision <= DECIMAL_PRECISION_MAX and scale <= precision):
            raise SchemaError(
                f"expected DECIMAL of 1 to {DECIMAL_PRECISION_MAX} digits, at most as many of them behind the point, "
                f"found DECIMAL({precision},{scale})"
            )
        return ScalarType("decimal", precision, scale)

    def _take_name(self) -> str:
        token = self._next()
        name = None if token is None else token["word"] or token["quoted"]
        if not name:
            raise SchemaError(f"expected the name of a column, found {self._found()}")
        self._at += 1
        return str(name)

    def _take_word(self) -> str:
        token = self._next()
        if token is None or token["word"] is None:
            raise SchemaError(f"expected a type, found {self._found()}")
        self._at += 1
        return str(token["word"])

    def _take_number(self) -> int:
        token = self._next()
        if token is None or token["word"] is None or re.fullmatch("[0-9]{1,9}", token["word"]) is None:
            raise SchemaError(f"expected a number of digits, found {self._found()}")
        self._at += 1
        return int(token["word"])

    def _skip(self, sign: str) -> bool:
        token = self._next()
        if token is None or token["sign"] != sign:
            return False
        self._at += 1
        return True

    def _expect(self, sign: str) -> None:
        is_there = self._skip(sign) if sign else self._next() is None
        if not is_there:
            raise SchemaError(f"expected {sign or 'the end'}, found {self._found()}")

    def _next(self) -> re.Match[str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _found(self) -> str:
        token = self._next()
        return "the end" if token is None else repr(token[0].strip())


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
VIEW_NAME_LENGTH_MAX = 249
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
    if len(name) > VIEW_NAME_LENGTH_MAX or _LEGAL_NAME.fullmatch(name) is None:
        raise SchemaError(
            f"expected a name of a view of up to {VIEW_NAME_LENGTH_MAX} of the characters a-z, A-Z, 0-9 and '_', a "
            f"letter first, found {name!r}"
        )
    if name.casefold() in _KEPT_NAMES:
        raise SchemaError(f"expected a name that the bus does not have itself, found {name}")
