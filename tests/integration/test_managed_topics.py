"""A running broker and other Delta engines: whom tables let write, by level, by config, by `bus log upgrade`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import deltalake
import pytest
from click.testing import CliRunner, Result
from deltalake.exceptions import DeltaError

from bus import Admin, BusError, Consumer, ErrorCode, NewTopic, Producer
from bus.cli.main import cli
from bus.cluster_metadata.cluster_state import LEVEL_MAX
from bus.model import TopicPartition
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

# Written by version 0.1.0 before producer ids: a topic, orders, and the log of the cluster's metadata.
EARLIER_ROOT = Path(__file__).parents[1] / "golden" / "root_before_producer_ids"
FOREIGN_WRITERS = "delta.foreign.writers.enable"


def is_managed(root: Path, topic: str, partition: int = 0) -> bool:
    protocol = deltalake.DeltaTable(str(root / "topics" / topic / str(partition))).protocol()
    assert protocol.min_reader_version == 1
    return "busManaged" in (protocol.writer_features or ())


def upgrades(root: Path, topic: str, partition: int = 0) -> int:
    """Count the versions that have changed the protocol of the table since it was made."""
    log = root / "topics" / topic / str(partition) / "_delta_log"
    return sum("UPGRADE PROTOCOL" in path.read_text() for path in log.glob("*.json"))


def run(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["log", *arguments], env={"BUS_ADDRESS": address}, prog_name="bus")


def test_new_topics_are_managed_unless_their_config_says_otherwise(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, Admin(address := f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("closed", 1), NewTopic("open", 1, configs={FOREIGN_WRITERS: "true"})])
        with Producer(address, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("closed", b"v")
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send("open", b"v")
            producer.commit_transaction()
        admin.create_partitions({"closed": 2, "open": 2})
        assert [is_managed(tmp_path, "closed", number) for number in range(2)] == [True, True]
        assert [is_managed(tmp_path, "open", number) for number in range(2)] == [False, False]
        internal = [name for name in admin.list_topics(include_internal=True) if name.startswith("__")]
        assert "__transaction_state" in internal
        assert all(is_managed(tmp_path, name) for name in [*internal, "__cluster_metadata"])
        for name in ("closed", "__transaction_state", "__cluster_metadata"):
            with pytest.raises(DeltaError, match="feature"):
                deltalake.DeltaTable(str(tmp_path / "topics" / name / "0")).delete()
        compacted = deltalake.DeltaTable(str(tmp_path / "topics" / "open" / "0")).optimize.compact()
        assert compacted["totalFilesSkipped"] == 1


def test_a_topic_is_switched_to_and_fro_while_it_is_written_and_read(tmp_path: Path) -> None:
    name = TopicPartition("orders", 0)
    with (
        running_broker(tmp_path) as broker,
        Admin(address := f"127.0.0.1:{broker.port}") as admin,
        Producer(address) as producer,
        Consumer(address) as consumer,
    ):
        admin.create_topics([NewTopic("orders", 1)])
        consumer.assign([name])
        consumer.seek_to_beginning([name])
        for round_number, wanted in enumerate((True, False, False, True, True)):
            admin.alter_configs("orders", {FOREIGN_WRITERS: "false" if wanted else "true"})
            result = run(address, "upgrade", "orders", "--format", "json")
            assert result.exit_code == 0, result.output
            (row,) = json.loads(result.stdout)
            assert row["foreign_writers"] == ("refused" if wanted else "allowed")
            assert is_managed(tmp_path, "orders") == wanted
            assert producer.send("orders", b"%d" % round_number).result(30).offset == round_number
        assert upgrades(tmp_path, "orders") == 2
        values: list[bytes] = []
        while len(values) < 5:
            values += [record.value for record in consumer.poll(timeout_ms=5_000)]
        assert values == [b"0", b"1", b"2", b"3", b"4"]
    verified = CliRunner().invoke(cli, ["log", "verify", "--all"], env={"BUS_ROOT": str(tmp_path)})
    assert verified.exit_code == 0, verified.output


def test_an_earlier_root_is_switched_once_its_level_is_raised(tmp_path: Path) -> None:
    root = Path(shutil.copytree(EARLIER_ROOT, tmp_path / "root"))
    with running_broker(root) as broker, Admin(address := f"127.0.0.1:{broker.port}") as admin:
        assert admin.describe_cluster().feature_level < LEVEL_MAX
        admin.create_topics([NewTopic("before", 1)])
        assert not is_managed(root, "before")
        refused = run(address, "upgrade", "before")
        assert refused.exit_code == 1
        assert "UNSUPPORTED_VERSION" in refused.stderr
        assert "run bus cluster features upgrade" in refused.stderr
        with pytest.raises(BusError) as not_yet:
            admin.alter_configs("before", {FOREIGN_WRITERS: "true"})
        assert not_yet.value.code is ErrorCode.UNSUPPORTED_VERSION

        admin.update_features({"bus.version": LEVEL_MAX})
        admin.create_topics([NewTopic("after", 1)])
        assert is_managed(root, "after")
        assert not is_managed(root, "before")
        for _ in range(2):
            result = run(address, "upgrade", "--all")
            assert result.exit_code == 0, result.output
        for name in ("before", "orders", "__cluster_metadata"):
            assert is_managed(root, name), name
            assert upgrades(root, name) == 1
        assert upgrades(root, "after") == 0
    with running_broker(root, config=BrokerConfig()) as broker, Producer(f"127.0.0.1:{broker.port}") as producer:
        producer.send("before", b"v").result(30)
    verified = CliRunner().invoke(cli, ["log", "verify", "--all"], env={"BUS_ROOT": str(root)})
    assert verified.exit_code == 0, verified.output
