"""Typed values, those of topics whose `value` is a struct, as bytes: for readers of single records.

Guards one promise: every value has a text, and no two values of a topic have the same one. It is JSON with the struct's
fields in their order; bytes within are base64, times ISO 8601.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa


def value_bytes(values: pa.Array) -> list[bytes | None]:
    """The values of records, typed or not; a null one is None."""
    if pa.types.is_binary(values.type):
        plain: list[bytes | None] = values.to_numpy(zero_copy_only=False).tolist()
        return plain
    return [None if value is None else _encode(value) for value in values.to_pylist()]


def _encode(value: Any) -> bytes:
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> str:
    """What JSON has no type for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
