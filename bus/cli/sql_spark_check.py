"""Which statements Spark may run for `bus sql`: one that reads, judged by Spark's own parser.

Guards one promise: no statement that passes writes a file or a table, changes the session, or starts a program. Every
node of the parsed plan has to be one of those that are listed here; what Spark or Delta add to their grammar later is
refused until it is listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bus.sql.read_only import NotReadOnly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """Of the statement's frame, before its rows are asked for. Raises `NotReadOnly`."""
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
