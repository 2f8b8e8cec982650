"""SQL over topics with the embedded engine: `connect(root).sql("SELECT ... FROM flights")`."""

from bus.sql.connection import Connection, Result, SqlError, connect
from bus.tables.point_in_time import Bound, parse_bound

__all__ = ["Bound", "Connection", "Result", "SqlError", "connect", "parse_bound"]
