"""`bus quotas` against a broker, and the view of them after it has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bus import Admin, BusError, Consumer, Producer, TopicPartition
from bus.broker import Broker
from bus.cli.main import cli
from bus.descriptions import ANY_NAME, DEFAULT_NAME, QuotaEntity
from bus.errors import ErrorCode
from tests.support.broker_thread import running_broker


def run(broker: Broker, root: Path, *arguments: str) -> Result:
    environment = {"BUS_ADDRESS": f"127.0.0.1:{broker.port}", "BUS_ROOT": str(root)}
    return CliRunner().invoke(cli, arguments, env=environment, prog_name="bus")


def done(broker: Broker, root: Path, *arguments: str) -> str:
    result = run(broker, root, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def row(user: str | None, client_id: str | None, quota: str, value: float) -> dict[str, Any]:
    return {"user": user, "client_id": client_id, "quota": quota, "value": value}


def test_quotas_are_set_listed_deleted_and_there_after_a_restart(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker:
        said = done(broker, root, "quotas", "set", "producer_byte_rate=1024", "--user", "user1", "--client", "clientA")
        assert said == "Updated config for entity: user-principal 'user1', client-id 'clientA'.\n"
        said = done(broker, root, "quotas", "set", "request_rate=0.5", "consumer_byte_rate=7", "--default-user")
        assert said == "Updated config for entity: the default user-principal.\n"
        pair = row("user1", "clientA", "producer_byte_rate", 1024.0)
        default = [row("<default>", None, "consumer_byte_rate", 7.0), row("<default>", None, "request_rate", 0.5)]
        assert json.loads(done(broker, root, "quotas", "list")) == [*default, pair]
        assert json.loads(done(broker, root, "quotas", "list", "--client", "clientA")) == [pair]
        done(broker, root, "quotas", "delete", "consumer_byte_rate", "--default-user")
    query = "SELECT * FROM quotas ORDER BY 1 DESC"
    assert json.loads(done(broker, root, "sql", query)) == [pair, default[1]]  # with the broker down
    with running_broker(root) as broker:
        assert json.loads(done(broker, root, "quotas", "list")) == [default[1], pair]
        done(broker, root, "quotas", "delete", "--user", "user1", "--client", "clientA")
        assert json.loads(done(broker, root, "quotas", "list")) == [default[1]]


@pytest.mark.parametrize(
    ("arguments", "status", "found"),
    [
        (("set", "request_rate=1"), 2, "expected --user, --default-user, --client or --default-client, found none"),
        (("set", "request_rate=1", "--user", "a", "--default-user"), 2, "--user or --default-user, found both"),
        (("set", "request_rate=1", "--user", "User:a"), 2, "--user: expected the name alone, 'a', found 'User:a'"),
        (("set", "request_rate", "--user", "a"), 2, "expected NAME=VALUE with a number"),
        (("set", "request_percentage=5", "--user", "a"), 1, "request_rate limits requests per second"),
        (("set", "connection_creation_rate=5", "--user", "a"), 1, "gRPC does not show"),
        (("set", "producer_byte_rate=0", "--user", "a"), 1, "expected a number above 0"),
    ],
)
def test_what_cannot_be_a_quota_is_refused(
    quiet: tuple[Broker, Path], arguments: tuple[str, ...], status: int, found: str
) -> None:
    result = run(*quiet, "quotas", *arguments)
    assert result.exit_code == status
    assert found in " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("quiet") / "root"
    with running_broker(root) as broker:
        yield broker, root


def test_admin_filters_validates_and_tells_of_every_failure(quiet: tuple[Broker, Path]) -> None:
    alice, pair = QuotaEntity("alice"), QuotaEntity("alice", DEFAULT_NAME)
    with Admin(f"127.0.0.1:{quiet[0].port}") as admin:
        admin.alter_client_quotas({alice: {"request_rate": 1}}, validate_only=True)
        assert admin.describe_client_quotas() == {}
        admin.alter_client_quotas({alice: {"request_rate": 1}, pair: {"request_rate": 2}})
        assert admin.describe_client_quotas(alice, strict=True) == {alice: {"request_rate": 1.0}}
        assert admin.describe_client_quotas(QuotaEntity(ANY_NAME, DEFAULT_NAME)) == {pair: {"request_rate": 2.0}}
        with pytest.raises(BusError) as caught:
            admin.alter_client_quotas({alice: {"request_rate": 3, "x": 1}, pair: {"request_rate": None}})
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert admin.describe_client_quotas() == {alice: {"request_rate": 1.0}}
        admin.alter_client_quotas({alice: {"request_rate": None}})
        assert admin.describe_quota_usage() == []


def test_user_that_is_named_like_the_default_has_a_quota_of_its_own(quiet: tuple[Broker, Path]) -> None:
    named, default = QuotaEntity("<default>"), QuotaEntity(DEFAULT_NAME)
    with Admin(f"127.0.0.1:{quiet[0].port}") as admin:
        admin.alter_client_quotas({named: {"request_rate": 1_000}, default: {"request_rate": 2_000}})
        assert admin.describe_client_quotas(named) == {named: {"request_rate": 1_000.0}}
        assert admin.describe_client_quotas(default) == {default: {"request_rate": 2_000.0}}
        assert admin.describe_client_quotas(QuotaEntity("<any>")) == {}
        admin.alter_client_quotas({named: {"request_rate": None}})
        assert admin.describe_client_quotas() == {default: {"request_rate": 2_000.0}}
        admin.alter_client_quotas({default: {"request_rate": None}})
        with pytest.raises(BusError, match="expected a key of alterations with names or DEFAULT_NAME, found <any>"):
            admin.alter_client_quotas({QuotaEntity(ANY_NAME): {"request_rate": 1}})


@pytest.mark.parametrize("alterations", [None, {"alice": {}}, {QuotaEntity("a"): 1}, {QuotaEntity("a"): {"x": "1"}}])
def test_admin_says_how_quotas_are_given(quiet: tuple[Broker, Path], alterations: Any) -> None:
    with Admin(f"127.0.0.1:{quiet[0].port}") as admin, pytest.raises(BusError, match="expected"):
        admin.alter_client_quotas(alterations)


def test_clients_over_their_quotas_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, value = tmp_path / "root", "x" * 20_000
    with running_broker(root) as broker:
        done(broker, root, "topics", "create", "orders")
        done(broker, root, "quotas", "set", "producer_byte_rate=100", "--client", "loader")
        done(broker, root, "quotas", "set", "consumer_byte_rate=100", "--client", "reader")
        with Producer(f"127.0.0.1:{broker.port}", client_id="loader") as producer:
            producer.send("orders", value.encode()).result(60)
        with Consumer(f"127.0.0.1:{broker.port}", client_id="reader", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            assert len(consumer.poll(60_000)) == 1
    said = [one for one in caplog.messages if "is throttled" in one]
    assert [one.partition(" by the broker at ")[0] for one in said] == ["loader is throttled", "reader is throttled"]
    assert "by the quota producer_byte_rate" in said[0]
    assert "by the quota consumer_byte_rate" in said[1]
