"""Two brokers that have to log in at one another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bus import Admin, NewTopic
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import run_on, running_broker


def check_that_brokers_log_in(
    root: Path, first: BrokerConfig, second: BrokerConfig, settings: Mapping[str, Any], *, secret: str
) -> None:
    """Check that the first broker, the controller, does what a client requests at the second one. `settings` are the
    client's. `secret` is the brokers', which no broker shows."""
    with running_broker(root, config=first) as controller, running_broker(root, config=second) as other:
        run_on(other, other.wait_until_unfenced())
        with Admin(f"127.0.0.1:{other.port}", **settings) as admin:
            admin.create_topics([NewTopic("forwarded", partitions=2)])
            assert {one.broker_id for one in admin.describe_cluster().brokers} == {0, 1}
        with Admin(f"127.0.0.1:{controller.port}", **settings) as admin:
            shown = {one.name: one.value for one in admin.describe_configs(kind="broker")}
            assert admin.list_topics() == ["forwarded"]
        assert secret not in str(shown)
