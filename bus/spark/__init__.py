"""Topics in Spark: `session()` starts it with the right configuration, `read_topic()` and `read_stream_topic()` give a
topic as a DataFrame, `register()` makes tables of all that a bus can tell. `format("bus")` needs none of them, and its
workers come through here for each query: so each name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.extras import load_name

if TYPE_CHECKING:
    from bus.spark.jars import JarsMissing
    from bus.spark.sessions import SHORT_SESSION, SparkUnavailable, session
    from bus.spark.topics import read_stream_topic, read_topic
    from bus.spark.views import register

__all__ = [
    "SHORT_SESSION",
    "JarsMissing",
    "SparkUnavailable",
    "read_stream_topic",
    "read_topic",
    "register",
    "session",
]

_HOMES = {
    "SHORT_SESSION": "bus.spark.sessions",
    "JarsMissing": "bus.spark.jars",
    "SparkUnavailable": "bus.spark.sessions",
    "read_stream_topic": "bus.spark.topics",
    "read_topic": "bus.spark.topics",
    "register": "bus.spark.views",
    "session": "bus.spark.sessions",
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
