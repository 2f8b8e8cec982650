"""A compacted topic takes no record without a key: who sends one is told, and the others arrive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from bus import Admin, BusError, ErrorCode, NewTopic, Producer
from bus.cli.main import cli
from tests.support.broker_thread import running_broker


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("keys") / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            for name, policy in (("compacted", "compact"), ("both", "compact,delete"), ("plain", "delete")):
                admin.create_topics([NewTopic(name, 1, {"cleanup.policy": policy})])
        yield address


@pytest.mark.parametrize("topic", ["compacted", "both"])
@pytest.mark.parametrize("is_idempotent", [True, False])
def test_record_without_a_key_fails_alone(address: str, topic: str, is_idempotent: bool) -> None:
    with Producer(address, linger_ms=50, enable_idempotence=is_idempotent) as producer:
        futures = [producer.send(topic, b"v", key=key) for key in (b"a", None, b"b")]
        producer.flush()
        with pytest.raises(BusError, match="expected a key") as caught:
            futures[1].result(50)
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert not caught.value.retriable
        first, last = futures[0].result(50).offset, futures[2].result(50).offset
        assert last == first + 1


def test_batch_without_keys_is_refused_with_the_reason(address: str) -> None:
    with Producer(address) as producer, pytest.raises(BusError, match=r"cleanup\.policy has compact") as caught:
        producer.send("compacted", b"v").result(50)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_bus_produce_says_what_is_wrong(address: str) -> None:
    environment = {"BUS_ADDRESS": address}
    result = CliRunner().invoke(cli, ["produce", "compacted"], input="no key\n", env=environment, prog_name="bus")
    assert result.exit_code == 1
    assert "INVALID_RECORD" in result.stderr
    assert "expected a key" in result.stderr
    assert CliRunner().invoke(cli, ["produce", "plain"], input="v\n", env=environment, prog_name="bus").exit_code == 0


def test_policy_that_is_altered_counts_from_the_next_record_on(address: str) -> None:
    with Admin(address) as admin, Producer(address) as producer:
        admin.create_topics([NewTopic("altered", 1)])
        producer.send("altered", b"v").result(50)
        admin.alter_configs("altered", {"cleanup.policy": "compact"})
        with pytest.raises(BusError, match="expected a key"):
            producer.send("altered", b"v").result(50)
        admin.alter_configs("altered", delete=["cleanup.policy"])
        producer.send("altered", b"v").result(50)
