"""Topics in Spark: `session()` starts it with the right configuration, `read_topic()` and `read_stream_topic()` give a
topic as a DataFrame, `register()` makes tables of all that a bus can tell. `format("bus")` needs none of them."""

from bus.spark.jars import JarsMissing
from bus.spark.native import read_stream_topic
from bus.spark.sessions import SHORT_SESSION, SparkUnavailable, session
from bus.spark.topics import read_topic
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
