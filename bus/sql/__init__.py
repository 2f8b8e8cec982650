"""SQL over topics with the embedded engine: `connect(root).sql("SELECT ... FROM flights")`.

The engine is the extra [sql]: each name is loaded when it is first used, and says so where the extra is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.extras import load_name

if TYPE_CHECKING:
    from bus.sql.connection import Connection, Result, SqlError, connect
    from bus.tables.point_in_time import Bound, parse_bound

__all__ = ["Bound", "Connection", "Result", "SqlError", "connect", "parse_bound"]

_HOMES = {
    "Bound": "bus.tables.point_in_time",
    "Connection": "bus.sql.connection",
    "Result": "bus.sql.connection",
    "SqlError": "bus.sql.connection",
    "connect": "bus.sql.connection",
    "parse_bound": "bus.tables.point_in_time",
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
