"""SQL over topics with the embedded engine: `connect(root).sql("SELECT ... FROM flights")`."""

from bus.point_in_time import Bound, parse_bound
from bus.sql.connection import Connection, Result, SqlError, connect

__all__ = ["Bound", "Connection", "Result", "SqlError", "connect", "parse_bound"]
