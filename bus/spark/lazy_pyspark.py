"""Names of PySpark that are loaded when they are first used, so that a job shows its usage where PySpark is missing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import StorageLevel
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

__all__ = ["StorageLevel", "Window", "sql"]


class _Lazy:
    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(import_module(self._module), self._name), name)


if not TYPE_CHECKING:
    StorageLevel = _Lazy("pyspark", "StorageLevel")
    Window = _Lazy("pyspark.sql", "Window")
    sql = _Lazy("pyspark.sql", "functions")
