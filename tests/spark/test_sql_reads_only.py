"""The statements that `bus sql --engine spark` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bus.cli.sql.sql_spark import check_calls, check_reads_only
from bus.sql.read_only import NotReadOnly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITES = [
    "INSERT INTO delta.`/x` SELECT 1",
    "INSERT OVERWRITE delta.`/x` SELECT 1",
    "INSERT INTO t REPLACE WHERE a = 1 SELECT 1",
    "INSERT OVERWRITE DIRECTORY '/x' USING csv SELECT 1",
    "WITH a AS (SELECT 1) INSERT INTO delta.`/x` SELECT * FROM a",
    "FROM t INSERT INTO u SELECT a INSERT INTO v SELECT a",
    "EXPLAIN INSERT INTO t SELECT 1",
    "VACUUM delta.`/x`",
    "VACUUM delta.`/x` RETAIN 0 HOURS",
    "OPTIMIZE delta.`/x`",
    "REORG TABLE delta.`/x` APPLY (PURGE)",
    "RESTORE TABLE delta.`/x` TO VERSION AS OF 0",
    "DELETE FROM delta.`/x`",
    "UPDATE delta.`/x` SET a = 1",
    "MERGE INTO delta.`/x` USING t ON true WHEN MATCHED THEN DELETE",
    "GENERATE symlink_format_manifest FOR TABLE delta.`/x`",
    "CONVERT TO DELTA parquet.`/x`",
    "CREATE OR REPLACE TABLE delta.`/x` SHALLOW CLONE t",
    "ALTER TABLE delta.`/x` SET TBLPROPERTIES ('a' = 'b')",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TABLE t USING csv LOCATION '/x' AS SELECT 1",
    "CREATE TEMP VIEW v AS SELECT 1",
    "CREATE FUNCTION f AS 'x'",
    "DROP TABLE t",
    "TRUNCATE TABLE t",
    "LOAD DATA INPATH '/x' INTO TABLE t",
    "ANALYZE TABLE t COMPUTE STATISTICS",
    "CACHE TABLE t",
    "SET spark.sql.shuffle.partitions = 1",
    "DECLARE VARIABLE a INT",
    "USE t",
    "ADD JAR '/x'",
    "CALL p()",
    "EXECUTE IMMEDIATE 'INSERT INTO t SELECT 1'",
    "BEGIN INSERT INTO t SELECT 1; END",
    "SELECT TRANSFORM(a) USING 'cat' AS (b) FROM t",
    "SELECT (SELECT max(b) FROM (SELECT TRANSFORM(a) USING 'cat' AS (b) FROM t))",
    "WITH a AS (SELECT TRANSFORM(a) USING 'cat' AS (b) FROM t) SELECT * FROM a",
]
READS = [
    "SELECT * FROM t WHERE a IN (SELECT a FROM u) UNION SELECT 1 EXCEPT SELECT 2 INTERSECT SELECT 3",
    "WITH a AS (SELECT 1), b AS (FROM a) SELECT DISTINCT * FROM b",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t",
    "SELECT a, count(*) FROM t GROUP BY ALL HAVING count(*) > 1 ORDER BY 1 LIMIT 3 OFFSET 2",
    "SELECT sum(a) OVER w FROM t WINDOW w AS (PARTITION BY b)",
    "SELECT /*+ REPARTITION(3) */ * FROM t, LATERAL (SELECT 1)",
    "SELECT * FROM t JOIN u USING (a) LEFT JOIN v ON t.a = v.a",
    "SELECT * FROM t VERSION AS OF 3",
    "SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2))",
    "SELECT * FROM t UNPIVOT (v FOR n IN (a, b))",
    "SELECT * FROM t LATERAL VIEW explode(a) e AS b",
    "SELECT * FROM t TABLESAMPLE (10 PERCENT)",
    "SELECT * FROM range(3) AS r(a), LATERAL explode(array(1)) q",
    "SELECT * FROM VALUES (1), (2) AS t(a)",
    "SELECT * FROM t DISTRIBUTE BY a SORT BY b",
    "FROM t |> AGGREGATE sum(a) GROUP BY b |> ORDER BY b |> LIMIT 3 |> EXTEND 1 AS c |> SET c = 2 |> DROP c",
    "SELECT * FROM IDENTIFIER('t')",
    "SELECT filter(array(1, 2), x -> x > 1), 'INSERT INTO t'",
    "TABLE t",
    "VALUES (1)",
    "EXPLAIN EXTENDED SELECT * FROM t",
    "DESCRIBE t",
    "DESCRIBE SELECT 1",
    "DESCRIBE HISTORY delta.`/x`",
    "DESC FUNCTION sum",
    "SHOW TABLES",
    "SHOW COLUMNS IN t",
    "SHOW FUNCTIONS",
    "SHOW DATABASES",
]


@pytest.mark.parametrize("statement", WRITES)
def test_what_does_more_than_to_read_is_refused_before_it_runs(spark: SparkSession, statement: str) -> None:
    with pytest.raises(NotReadOnly, match=r"expected one statement that reads: .*; found [A-Z]\w+: a bus is written"):
        check_reads_only(spark, statement)


@pytest.mark.parametrize("statement", READS)
def test_what_only_reads_is_not_refused(spark: SparkSession, statement: str) -> None:
    check_reads_only(spark, statement)


@pytest.mark.parametrize(
    "call",
    [
        "java_method(a, b, c)",
        "reflect(a, b, c)",
        "system.builtin.Reflect(a, b, c)",
        "IDENTIFIER('try_reflect')(a, b, c)",
    ],
)
@pytest.mark.parametrize(
    "statement", ["SELECT {}", "SELECT 1 WHERE {} IS NULL", "SELECT * FROM range(1) WHERE id IN (SELECT length({}))"]
)
def test_a_call_of_java_is_refused_before_it_runs(spark: SparkSession, statement: str, call: str) -> None:
    called = call.replace("a, b, c", "'java.lang.System', 'getProperty', 'user.home'")
    with pytest.raises(NotReadOnly, match="found a call of a method of Java's"):
        check_calls(spark.sql(statement.format(called)))


def test_the_words_of_such_a_call_are_no_call(spark: SparkSession) -> None:
    check_calls(spark.sql("""SELECT '"class":"x.CallMethodViaReflection"', 1 AS reflect"""))
