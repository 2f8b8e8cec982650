"""The audit of a root as a table: what callers did, or were kept from.

Read from `__audit`, so a broker need not be up.
"""

from __future__ import annotations

import pyarrow as pa

from bus.model import AUDIT_TOPIC
from bus.records.log_schema import AUDIT_VALUE_TYPE
from bus.tables.keyed_rows import all_values
from bus.tables.topics import TopicTables

AUDIT = pa.schema([*AUDIT_VALUE_TYPE])


def audit(tables: TopicTables) -> pa.Table:
    """The rows of the audit in the order in which they were written."""
    rows = all_values(tables, AUDIT_TOPIC, AUDIT_VALUE_TYPE, ("offset",))
    return rows.sort_by("offset").select(AUDIT.names) if rows.num_columns else AUDIT.empty_table()
