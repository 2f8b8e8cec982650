"""Makes `format("bus")` known to Spark without registration: Spark looks for modules of this prefix by itself, imports
all of them at its first look, and takes their `DefaultSource`. So nothing heavy is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bus.spark.data_source import BusDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from bus.spark.data_source import BusDataSource

        return BusDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
