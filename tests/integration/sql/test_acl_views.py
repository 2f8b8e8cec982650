"""The views of access control lists, of a root whose broker is not up."""

from __future__ import annotations

from pathlib import Path

import bus.sql
from bus import AclOperation, Admin, NewTopic
from bus.settings.broker import BrokerConfig
from tests.support.acls import allow, deny, prefixed
from tests.support.broker_thread import running_broker

CONFIG = BrokerConfig(authorizer_class_name="acl", super_users="User:ANONYMOUS")


def test_lists_and_what_follows_from_them_can_be_queried(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root, config=CONFIG) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("orders-1"), NewTopic("other")])
        admin.create_acls(
            [
                prefixed(allow(AclOperation.READ, "orders-")),
                deny(AclOperation.ALL, "orders-1", principal="User:*"),
                allow(AclOperation.ALTER_CONFIGS, "other"),
            ]
        )
    with bus.sql.connect(str(root)) as connection:
        listed = connection.sql("SELECT * FROM acls").fetchall()
        found = connection.sql(
            "SELECT principal, name, operation, permission FROM effective_acls WHERE name <> 'kafka-cluster'"
            " AND operation IN ('Read', 'DescribeConfigs')"
        ).fetchall()
        (rule,) = connection.sql(
            "SELECT DISTINCT rule FROM effective_acls WHERE principal = 'User:alice' AND name = 'other'"
        ).fetchall()
    assert [tuple(row) for row in listed] == [
        ("Topic", "orders-", "prefixed", "User:alice", "*", "Read", "Allow"),
        ("Topic", "orders-1", "literal", "User:*", "*", "All", "Deny"),
        ("Topic", "other", "literal", "User:alice", "*", "AlterConfigs", "Allow"),
    ]
    assert sorted(map(tuple, found)) == [
        ("User:*", "orders-1", "DescribeConfigs", "Deny"),
        ("User:*", "orders-1", "Read", "Deny"),
        ("User:alice", "orders-1", "DescribeConfigs", "Deny"),
        ("User:alice", "orders-1", "Read", "Deny"),
        ("User:alice", "other", "DescribeConfigs", "Allow"),
    ]
    assert rule[0] == "Allow User:alice AlterConfigs on Topic other (literal) from *"
