import pytest

from bus.sql.read_only import AmbiguousName, quote_offset, topics_named, views_named

TOPICS = ["flights", "my-topic.v1", "Orders", "orders", "date", "__cluster_metadata"]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT * FROM flights", {"flights"}),
        ("SELECT * FROM FLIGHTS f", {"flights"}),
        ('SELECT * FROM "my-topic.v1"', {"my-topic.v1"}),
        ("PIVOT flights ON key", {"flights"}),
        ("SELECT * FROM date", {"date"}),
        ("SELECT 'flights' -- flights\n/* flights */", set()),
        ("SELECT * FROM flights JOIN __cluster_metadata USING (key)", {"flights", "__cluster_metadata"}),
        ('SELECT * FROM "Orders"', {"Orders"}),
        ("SELECT * FROM orders", {"orders"}),
    ],
)
def test_topics_are_found_by_name(query: str, named: set[str]) -> None:
    assert topics_named(query, TOPICS) == named


@pytest.mark.parametrize("query", ["SELECT * FROM ORDERS", 'SELECT * FROM orders, "Orders"'])
def test_names_that_differ_in_case_only_are_refused_when_both_are_meant(query: str) -> None:
    with pytest.raises(AmbiguousName, match="Orders"):
        topics_named(query, TOPICS)


@pytest.mark.parametrize(
    ("query", "quoted"),
    [
        ("SELECT offset FROM t", 'SELECT "offset" FROM t'),
        ("SELECT t.OFFSET FROM t", 'SELECT t."OFFSET" FROM t'),
        ("SELECT * FROM t WHERE offset >= 5 LIMIT 3", 'SELECT * FROM t WHERE "offset" >= 5 LIMIT 3'),
        ("SELECT * FROM t WHERE offset IN (1, 2)", 'SELECT * FROM t WHERE "offset" IN (1, 2)'),
        ("SELECT * FROM t ORDER BY offset", 'SELECT * FROM t ORDER BY "offset"'),
        ("SELECT 'é', offset FROM \"ü\"", 'SELECT \'é\', "offset" FROM "ü"'),
    ],
)
def test_offset_is_quoted_where_it_is_the_column(query: str, quoted: str) -> None:
    assert quote_offset(query) == quoted


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t LIMIT 5 OFFSET 10",
        "SELECT * FROM t LIMIT 5 offset ?",
        "SELECT * FROM t LIMIT 5 OFFSET $1",
        "SELECT * FROM t OFFSET (SELECT 3)",
        "SELECT \"offset\", 'offset' FROM t -- offset",
    ],
)
def test_offset_stays_where_it_is_a_clause_a_string_or_quoted(query: str) -> None:
    assert quote_offset(query) == query


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT * FROM lag", ["lag"]),
        ("SELECT * FROM Lag JOIN groups USING (group_id)", ["lag", "groups"]),
        ("SELECT * FROM orders, lag", ["lag"]),
        ("SELECT * FROM (lag)", ["lag"]),
        ("SELECT * FROM bus.lag", ["lag"]),
        ('SELECT * FROM "bus"."lag"', ["lag"]),
        ("FROM lag", ["lag"]),
        ("DESCRIBE lag", ["lag"]),
        ("SELECT lag(offset) OVER (ORDER BY offset) FROM orders", []),
        ("SELECT value.lag FROM orders", []),
        ("SELECT offset AS lag FROM orders", []),
        ("SELECT * FROM orders -- not FROM lag", []),
        ("SELECT 'FROM lag' FROM orders", []),
    ],
)
def test_views_are_named_where_a_table_can_stand(query: str, named: list[str]) -> None:
    assert views_named(query, ("groups", "lag"), "bus") == named
