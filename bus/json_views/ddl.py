"""The columns of a view as text: the DDL that Spark's `from_json` takes, of the types that both engines have.

Guards one promise: `parse_ddl(format_ddl(fields)) == fields`, so what is stored means the same for ever.
"""

from __future__ import annotations

import re

from bus.json_views.columns import (
    DECIMAL_PRECISION_MAX,
    SPARK_NAMES,
    ArrayType,
    Field,
    JsonType,
    ScalarType,
    SchemaError,
    StructType,
    check_fields,
)

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
