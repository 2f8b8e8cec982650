"""What the administrator's client says of the life of a log: small immutable values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """`low_watermark` is the log start now: no reader of the bus sees a record below it. `version` is the Delta version
    that says so."""

    low_watermark: int
    version: int


@dataclass(frozen=True, slots=True)
class MaintainedLog:
    """What maintenance by hand found in one partition, and what it left. Nothing to do is a result, too."""

    partition: int
    version: int  # of the table, after it
    files_before: int  # live data files
    files_after: int
    bytes_before: int  # their size
    bytes_after: int
    rewritten_bytes: int  # that were written anew
    log_start: int
    dropped_versions: int
    deleted_files: int  # data files that are gone from the storage
    deleted_bytes: int
