"""The columns that a sample of JSON values seems to have.

Guards one promise: no scalar of the sample is null in the columns that come out, if it has one. Fields are in the order
in which they are first seen; what is null everywhere, what has several types and what JSON alone cannot tell is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date
from typing import Any

from bus.json_views.columns import (
    DATE,
    TIMESTAMP,
    ArrayType,
    Field,
    JsonType,
    ScalarType,
    SchemaError,
    StructType,
    check_fields,
    fold_name,
    is_legal_name,
)
from bus.json_views.ddl import DEPTH_MAX
from bus.records.json_text import parse_json

TEXT = ScalarType("string")
_BIGINT = ScalarType("bigint")
_DOUBLE = ScalarType("double")
_WIDER = {frozenset((_BIGINT, _DOUBLE)): _DOUBLE}


def infer_fields(texts: Iterable[str | bytes]) -> tuple[Field, ...]:
    """Raises `SchemaError` if none of them is a JSON object that has a field."""
    seen: JsonType | None = None
    for text in texts:
        try:
            value = parse_json(text, parse_constant=_refuse_constant)
            if isinstance(value, dict):
                seen = _merge(seen, _type_of(value, 0))
        except ValueError:
            continue
    if not isinstance(seen, StructType):
        raise SchemaError("expected a JSON object with a field in the sample, found none")
    settled = _settle(seen, 0)
    if not isinstance(settled, StructType):
        raise SchemaError("expected a JSON object with a field whose name can be a column's, found none")
    return check_fields(settled.fields)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"expected JSON, found {name}")


def _type_of(value: Any, depth: int) -> JsonType | None:
    """None: of a null, which fits every type. What lies deeper than a column can is text."""
    match value:
        case list() | dict() if depth > DEPTH_MAX:
            return TEXT
        case None:
            return None
        case bool():
            return ScalarType("boolean")
        case int():
            return _BIGINT if -(2**63) <= value < 2**63 else TEXT
        case float():
            return _DOUBLE if math.isfinite(value) else TEXT
        case str():
            return _type_of_text(value)
        case list():
            item: JsonType | None = None
            for one in value:
                item = _merge(item, _type_of(one, depth + 1))
            return ArrayType(_UNKNOWN if item is None else item)
        case dict():
            fields = tuple(Field(name, _type_of(inner, depth + 1) or _UNKNOWN) for name, inner in value.items())
            return StructType(fields) if fields else None
    raise AssertionError(f"expected a value of json.loads, found {type(value).__name__}")


_UNKNOWN = ScalarType("unknown")  # seen as null only


def _type_of_text(text: str) -> ScalarType:
    kind = "timestamp" if re.fullmatch(TIMESTAMP, text) else "date" if re.fullmatch(DATE, text) else "string"
    if kind != "string":
        try:
            date.fromisoformat(text[:10])
        except ValueError:
            return TEXT
    return ScalarType(kind)


def _merge(left: JsonType | None, right: JsonType | None) -> JsonType | None:
    """The narrowest type that holds both."""
    if left is None or left in (_UNKNOWN, right):
        return right if right is not None else left
    if right is None or right == _UNKNOWN:
        return left
    match left, right:
        case StructType(), StructType():
            return _merge_structs(left, right)
        case ArrayType(), ArrayType():
            return ArrayType(_merge(left.item, right.item) or _UNKNOWN)
        case ScalarType(), ScalarType():
            return _WIDER.get(frozenset((left, right)), TEXT)
        case _:
            return TEXT


def _merge_structs(left: StructType, right: StructType) -> StructType:
    fields = {field.name: field.type for field in left.fields}
    for field in right.fields:
        fields[field.name] = _merge(fields.get(field.name), field.type) or _UNKNOWN
    return StructType(tuple(Field(name, found) for name, found in fields.items()))


def _settle(found: JsonType, depth: int) -> JsonType:
    """As it can be a column: of names that differ in case only the first one stays, what has no legal name goes, and
    what lies too deep is text."""
    match found:
        case StructType(fields):
            by_folded: dict[str, Field] = {}
            for field in fields:
                if is_legal_name(field.name):
                    by_folded.setdefault(fold_name(field.name), Field(field.name, _settle(field.type, depth + 1)))
            return StructType(tuple(by_folded.values())) if by_folded and depth < DEPTH_MAX else TEXT
        case ArrayType(item):
            return ArrayType(_settle(item, depth + 1)) if depth < DEPTH_MAX else TEXT
        case ScalarType():
            return TEXT if found == _UNKNOWN else found
