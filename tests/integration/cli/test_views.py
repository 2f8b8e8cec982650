"""`bus views` against a broker, and `bus sql` over what it creates, also after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus import Admin, BusError, NewTopic
from bus.broker import Broker
from bus.cli.main import cli
from bus.errors import ErrorCode
from tests.support.broker_thread import running_broker

FLIGHTS = '{"carrier":"UA","delay":5}\n{"carrier":"AA","delay":null}\nno json\n{"carrier":"B6","delay":1.5}\n'


def run(broker: Broker, root: Path, *arguments: str, text: str | None = None) -> Result:
    environment = {"BUS_ADDRESS": f"127.0.0.1:{broker.port}", "BUS_ROOT": str(root)}
    return CliRunner().invoke(cli, arguments, input=text, env=environment, prog_name="bus")


def done(broker: Broker, root: Path, *arguments: str, text: str | None = None) -> str:
    result = run(broker, root, *arguments, text=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_view_is_inferred_queried_listed_and_deleted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    query = "SELECT carrier, delay, _corrupt FROM delays ORDER BY partition, offset"
    rows = [
        {"carrier": "UA", "delay": 5.0, "_corrupt": None},
        {"carrier": "AA", "delay": None, "_corrupt": None},
        {"carrier": None, "delay": None, "_corrupt": "no json"},
        {"carrier": "B6", "delay": 1.5, "_corrupt": None},
    ]
    with running_broker(root) as broker:
        done(broker, root, "topics", "create", "flights", "--partitions", "1")
        refused = run(broker, root, "views", "create", "delays", "flights")
        assert refused.exit_code == 1
        assert "in the sample, found none; --schema says the columns" in refused.stderr
        done(broker, root, "produce", "flights", text=FLIGHTS)
        possible = done(broker, root, "views", "create", "delays", "flights", "--validate-only")
        assert possible == "view delays could be created: carrier STRING, delay DOUBLE\n"
        assert json.loads(done(broker, root, "views", "list")) == []
        done(broker, root, "views", "create", "delays", "flights")
        assert json.loads(done(broker, root, "sql", query)) == rows
    assert json.loads(done(broker, root, "sql", query)) == rows  # with the broker down
    with running_broker(root) as broker:
        schema = "delay INT, carrier STRING"
        done(broker, root, "views", "create", "Delays", "flights", "--schema", schema, "--columns", "key", "--replace")
        view = {"name": "Delays", "topic": "flights", "columns": ["key"], "schema": schema}
        assert json.loads(done(broker, root, "views", "list")) == [{**view, "columns": "key"}]
        assert json.loads(done(broker, root, "views", "describe", "delays")) == [view]
        lines = done(broker, root, "views", "describe", "--format", "csv").splitlines()
        assert lines[1:] == [
            "Delays,flights,key,of the record",
            "Delays,flights,delay,INT",
            "Delays,flights,carrier,STRING",
        ]
        found = done(broker, root, "sql", "SELECT delay FROM delays WHERE carrier = 'B6'")
        assert json.loads(found) == [{"delay": None}]
        assert done(broker, root, "views", "delete", "delays") == "deleted view delays\n"
        assert json.loads(done(broker, root, "views", "list")) == []
        missing = run(broker, root, "views", "describe", "delays")
        assert (missing.exit_code, "views there: none yet" in missing.stderr) == (1, True)


def test_admin_creates_lists_and_deletes_views_and_is_told_why_not(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("flights")])
        view = admin.create_view("delays", "flights", "delay int", columns=[])
        assert (view.schema, view.columns) == ("delay INT", ())
        assert admin.list_views() == [view]
        with pytest.raises(BusError, match="view delays exists already") as caught:
            admin.create_view("Delays", "flights", "delay int")
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        with pytest.raises(BusError, match="found none named 'nowhere'") as caught:
            admin.create_view("other", "nowhere", "delay int")
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        admin.delete_view("delays")
        with pytest.raises(BusError, match="expected a view, found none named 'delays'"):
            admin.delete_view("delays")
        assert admin.list_views() == []
