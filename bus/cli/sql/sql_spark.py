"""The same statement, by Spark: topics as views with the columns that the embedded engine gives them.

`key` and `value` are text, UTF-8 as it is and other bytes escaped as \\xNN; `key_bytes` and `value_bytes` are the bytes
themselves.

Guards one promise: no statement that passes writes a file or a table, changes the session, or starts a program. Spark's
own parser judges it: every node of the parsed plan has to be one of those that are listed here; what Spark or Delta add
to their grammar later is refused until it is listed.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bus.sql import SqlError
from bus.sql.connection import check_topic_of, suggestions
from bus.sql.read_only import AmbiguousName, NotReadOnly, quote_name, topics_named, views_named
from bus.tables.point_in_time import Bound, check_names
from bus.tables.system_views import VIEW_NAMES, VIEW_SCHEMA
from bus.tables.topics import TopicTables
from bus.tables.transaction_cuts import find_cut

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession


def run_statement(
    root: str,
    statement: str,
    *,
    at_version: Bound | None = None,
    at_offset: Bound | None = None,
    at_transaction: str | None = None,
) -> pa.Table:
    """All rows of the statement. Raises `SqlError`, `StorageFault`, or what `bus.spark.session` raises."""
    from pyspark.errors import PySparkException

    from bus.spark import read_topic, session
    from bus.spark.sessions import SHORT_SESSION
    from bus.spark.topics import with_text
    from bus.spark.views import register_json_views, register_system_views

    tables = TopicTables(root)
    check_names(at_version, tables.partitions)
    check_names(at_offset, tables.partitions)
    # What is not there is refused before a session begins; and all topics are seen at the same cut.
    cut = None if at_transaction is None else find_cut(tables, at_transaction)
    topics, views = tables.topics(), tables.cluster().views
    if statement.casefold().strip().rstrip("; ").split() == ["show", "tables"]:
        return pa.table({"name": pa.array([*topics, *sorted(view.name for view in views.values())], pa.string())})
    try:
        named = topics_named(statement, topics)
    except AmbiguousName as error:
        raise SqlError(str(error)) from None
    # ANSI's double quotes around a name, as the embedded engine takes them, and not Spark's backticks alone.
    settings = {**SHORT_SESSION, "spark.sql.ansi.doubleQuotedIdentifiers": "true"}
    settings["spark.ui.showConsoleProgress"] = "true" if sys.stderr.isatty() else "false"
    # It would log every statement that fails, with Java's stack; the user gets one line.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    spark = session("bus sql", conf=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        check_reads_only(spark, statement)

        def read(topic: str) -> DataFrame:
            return read_topic(spark, root, topic, at_version=at_version, at_offset=at_offset, at_transaction=cut)

        for topic in named:
            with_text(read(topic)).createOrReplaceTempView(quote_name(topic))
        register_system_views(spark, tables, views_named(statement, VIEW_NAMES, VIEW_SCHEMA))
        chosen = [views[name] for name in views_named(statement, views, VIEW_SCHEMA)]
        for view in chosen:
            check_topic_of(view, topics)
        register_json_views(spark, tables, chosen, read)
        frame = spark.sql(statement)
        check_calls(frame)
        return frame.toArrow()
    except NotReadOnly as error:
        raise SqlError(str(error)) from None
    except PySparkException as error:
        known = {"views": [*VIEW_NAMES, *sorted(view.name for view in views.values())], "topics": list(topics)}
        raise SqlError(_plain(error, known)) from None
    finally:
        spark.stop()


def _plain(error: PySparkException, known: Mapping[str, Sequence[str]]) -> str:
    """The first line of Spark's message: behind it are its query plan and its Java stack."""
    message = str(error).strip().splitlines()[0].removesuffix(";")
    if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        parameters = error.getMessageParameters() or {}
        return message + suggestions(parameters.get("relationName", "").strip("`"), known)
    if error.getCondition() == "INVALID_EXTRACT_BASE_FIELD_TYPE":
        column = (error.getMessageParameters() or {}).get("base", "").replace("`", "").strip('"').rpartition(".")[2]
        if column in ("key", "value"):
            way = f"write get_json_object({column}, '$.NAME')"
            return f"{message}\n{column} is text, and JSON where the topic has JSON: {way}"
    return message


_QUERY_NODES = frozenset(
    {
        "Aggregate",
        "AsOfJoin",
        "CurrentNamespace$",
        "Deduplicate",
        "Distinct",
        "Except",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Intersect",
        "Join",
        "LateralJoin",
        "LimitAll",
        "LocalLimit",
        "LocalRelation",
        "Offset",
        "OneRowRelation",
        "PipeExpression",
        "PipeOperator",
        "Pivot",
        "Project",
        "Range",
        "RebalancePartitions",
        "RelationTimeTravel",
        "Repartition",
        "RepartitionByExpression",
        "Sample",
        "Sort",
        "SubqueryAlias",
        "Union",
        "Unpivot",
        "UnresolvedHaving",
        "UnresolvedHint",
        "PlanWithUnresolvedIdentifier",
        "UnresolvedInlineTable",
        "UnresolvedNamespace",
        "UnresolvedRelation",
        "UnresolvedSubqueryColumnAliases",
        "UnresolvedTVFAliases",
        "UnresolvedTable",
        "UnresolvedTableOrView",
        "UnresolvedTableValuedFunction",
        "UnresolvedFunctionName",
        "UnresolvedWith",
        "Window",
        "WithWindowDefinition",
    }
)
_TELLING_COMMANDS = frozenset(
    {
        "DescribeColumn",
        "DescribeDeltaDetailCommand",
        "DescribeDeltaHistory",
        "DescribeFunction",
        "DescribeRelation",
        "ShowColumns",
        "ShowFunctions",
        "ShowNamespacesCommand",
        "ShowTables",
        "ShowViews",
    }
)
_SUBJECTS = {"ExplainCommand": "logicalPlan", "DescribeQueryCommand": "plan"}
# Calls of a static method of Java's by its name: there are some that write files, and one that ends the process.
_REFLECTION = re.compile(r'"class":"[\w.]*\.(CallMethodViaReflection|TryReflect)"')
_EXPECTED = "expected one statement that reads: SELECT, EXPLAIN, DESCRIBE or SHOW"


def check_reads_only(spark: SparkSession, statement: str) -> None:
    """Raises `NotReadOnly`, or `PySparkException` for what cannot be parsed."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    name = _name(plan)
    if name in _TELLING_COMMANDS:
        return
    subject = getattr(plan, _SUBJECTS[name])() if name in _SUBJECTS else plan
    for node in _nodes(subject):
        if node not in _QUERY_NODES:
            raise NotReadOnly(f"{_EXPECTED}; found {node}: a bus is written by its broker alone")


def check_calls(frame: DataFrame) -> None:
    """Check the statement's frame before its rows are asked for. Raises `NotReadOnly`."""
    # Which function a name is, the analysis tells; quotes inside of strings are escaped in the text.
    if _REFLECTION.search(frame._jdf.queryExecution().analyzed().toJSON()):
        raise NotReadOnly(f"{_EXPECTED}; found a call of a method of Java's: reflect, try_reflect or java_method")


def _nodes(plan: Any) -> Iterator[str]:
    """The node, those below it, and those of the queries inside of its expressions."""
    yield _name(plan)
    for below in (plan.children(), plan.innerChildren()):
        for number in range(below.size()):
            yield from _nodes(below.apply(number))


def _name(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())
