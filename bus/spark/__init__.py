"""Topics in Spark: `session()` starts it with the right configuration, `read_topic()` gives a topic as a DataFrame,
`register_views()` makes groups, offsets and lag tables of its SQL."""

from bus.spark.jars import JarsMissing
from bus.spark.sessions import SHORT_SESSION, SparkUnavailable, session
from bus.spark.topics import read_topic
from bus.spark.views import register_views

__all__ = ["SHORT_SESSION", "JarsMissing", "SparkUnavailable", "read_topic", "register_views", "session"]
