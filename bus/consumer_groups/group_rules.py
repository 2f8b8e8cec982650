"""What the broker's configuration says to the rules of groups. Each field is named after its key."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupRules:
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30 * MINUTE_MS
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    # Ids that were given and have not come back; a large group that begins has one for each of its members.
    pending_members_max: int = 10_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    # Who joins for the first time cannot send heartbeats; this long may its join wait (a constant of Kafka's).
    new_member_join_timeout_ms: int = 5 * MINUTE_MS
