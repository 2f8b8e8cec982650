"""The columns that a sample of JSON values seems to have.

Guards two promises: no scalar of the sample is null in the columns that come out, if it has one; and no number of the
sample is another one there, so fractions are DOUBLE only if a double has the digits of all of them, else DECIMAL.
Fields are in the order in which they are first seen. What is null everywhere, what has several types, what JSON alone
cannot tell and numbers that no decimal holds are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any

from bus.json_views.view import (
    DATE,
    DECIMAL_PRECISION_MAX,
    DEPTH_MAX,
    EXPONENT,
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
from bus.records.json_text import parse_strict

TEXT = ScalarType("string")
_WHOLE_DIGITS_MAX = 1_000_000  # far more than any column holds
_DECIMAL = f"-?[0-9]+([.][0-9]+)?({EXPONENT})?"  # a number with a longer exponent is null in a DECIMAL


@dataclass(frozen=True, slots=True)
class _Numbers(ScalarType):
    """The numbers that were seen, until all have been: their DECIMAL has `whole_digits` before the point."""

    kind: str = "numbers"
    whole_digits: int = 0
    is_bigint: bool = True  # written as whole numbers, of 64 bits
    is_whole: bool = True
    is_double: bool = True  # a double of each is written as a number that is equal

    @classmethod
    def of(cls, text: str) -> _Numbers:
        is_whole = re.fullmatch("-?[0-9]+", text) is not None
        try:
            number = Decimal(text)
        except InvalidOperation:  # an exponent beyond Python's
            return cls(whole_digits=_WHOLE_DIGITS_MAX, is_bigint=False, is_whole=is_whole, is_double=False)
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int), f"expected a number of JSON, found {text[:100]}"
        whole_digits = max(0, len(digits) + exponent) if number else 0
        return cls(
            whole_digits=whole_digits if re.fullmatch(_DECIMAL, text) else _WHOLE_DIGITS_MAX,
            scale=max(0, -exponent),
            is_bigint=is_whole and len(digits) < 20 and -(2**63) <= int(text) < 2**63,
            is_whole=is_whole,
            is_double=Decimal(repr(float(text))) == number,
        )

    def and_of(self, other: _Numbers) -> _Numbers:
        return _Numbers(
            whole_digits=max(self.whole_digits, other.whole_digits),
            scale=max(self.scale, other.scale),
            is_bigint=self.is_bigint and other.is_bigint,
            is_whole=self.is_whole and other.is_whole,
            is_double=self.is_double and other.is_double,
        )

    def settled(self) -> ScalarType:
        """The column. A decimal has all the digits that there are: other values may be larger."""
        if self.is_bigint:
            return ScalarType("bigint")
        if self.is_double and not self.is_whole:
            return ScalarType("double")
        if self.whole_digits + self.scale <= DECIMAL_PRECISION_MAX:
            return ScalarType("decimal", DECIMAL_PRECISION_MAX, self.scale)
        return TEXT


def infer_fields(texts: Iterable[str | bytes]) -> tuple[Field, ...]:
    """Raises `SchemaError` if none of them is a JSON object that has a field."""
    seen: JsonType | None = None
    for text in texts:
        try:
            value = parse_strict(text, parse_float=_Numbers.of, parse_int=_Numbers.of)
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


def _type_of(value: Any, depth: int) -> JsonType | None:
    """None: of a null, which fits every type. What lies deeper than a column can is text."""
    match value:
        case list() | dict() if depth > DEPTH_MAX:
            return TEXT
        case None:
            return None
        case bool():
            return ScalarType("boolean")
        case _Numbers():
            return value
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
    raise AssertionError(f"expected a value of JSON, found {type(value).__name__}")


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
        case _Numbers(), _Numbers():
            return left.and_of(right)
        case _:
            return TEXT


def _merge_structs(left: StructType, right: StructType) -> StructType:
    fields = {field.name: field.type for field in left.fields}
    for field in right.fields:
        fields[field.name] = _merge(fields.get(field.name), field.type) or _UNKNOWN
    return StructType(tuple(Field(name, found) for name, found in fields.items()))


def _settle(found: JsonType, depth: int) -> JsonType:
    """Return the type as it can be a column: of names that differ only in case the first one stays, fields without a
    legal name are dropped, and what is nested too deep becomes text."""
    match found:
        case StructType(fields):
            by_folded: dict[str, Field] = {}
            for field in fields:
                if is_legal_name(field.name):
                    by_folded.setdefault(fold_name(field.name), Field(field.name, _settle(field.type, depth + 1)))
            return StructType(tuple(by_folded.values())) if by_folded and depth < DEPTH_MAX else TEXT
        case ArrayType(item):
            return ArrayType(_settle(item, depth + 1)) if depth < DEPTH_MAX else TEXT
        case _Numbers():
            return found.settled()
        case ScalarType():
            return TEXT if found == _UNKNOWN else found
