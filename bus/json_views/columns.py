"""The types that a field of a JSON object can be viewed as, those that both engines have, and what text of them looks
like.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

DECIMAL_PRECISION_MAX = 38
NAME_LENGTH_MAX = 255
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
                f"expected a name of 1 to {NAME_LENGTH_MAX} printable characters without quotes and backslashes, "
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
    return 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable() and not _ILLEGAL.intersection(name)
