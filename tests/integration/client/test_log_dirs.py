"""The sizes of the logs in the root, on one broker and on three, by the SDK and by `bus log dirs`."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus import Admin, BusError, ErrorCode, NewTopic, Producer, TopicPartition
from bus.broker import Broker
from bus.cli.main import cli
from bus.descriptions import LogDirDescription, ReplicaInfo
from bus.model import CLUSTER_METADATA_TOPIC
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.member_processes import wait_until, wait_until_holds

T_0, T_1 = TopicPartition("t", 0), TopicPartition("t", 1)
METADATA = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def files_below(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def send(address: str, *partitions: TopicPartition, count: int = 3) -> None:
    """Each record in a commit of its own."""
    with Producer(address) as producer:
        for one in partitions:
            for _ in range(count):
                producer.send(one.topic, b"v" * 100, partition=one.partition).result(50)


def run(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["log", "dirs", *arguments], env={"BUS_ADDRESS": address}, prog_name="bus")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def broker(root: Path) -> Iterator[Broker]:
    with running_broker(root) as running:
        yield running


@pytest.fixture
def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


@pytest.fixture
def admin(address: str) -> Iterator[Admin]:
    with Admin(address, retry_backoff_ms=1) as client:
        client.create_topics([NewTopic("t", 2), NewTopic("u", 1)])
        yield client


def only_log_dir(admin: Admin, *topics: str) -> LogDirDescription:
    (log_dirs,) = admin.describe_log_dirs(topics or None).values()
    (log_dir,) = log_dirs.values()
    return log_dir


def test_bytes_are_those_of_the_folder_and_the_volume_is_the_one_of_the_root(
    root: Path, address: str, admin: Admin
) -> None:
    send(address, T_0)
    log_dirs = admin.describe_log_dirs()
    assert {broker_id: list(paths) for broker_id, paths in log_dirs.items()} == {0: [str(root)]}
    found = log_dirs[0][str(root)]
    volume = shutil.disk_usage(root)
    assert (found.total_bytes, found.error) == (volume.total, None)
    assert found.usable_bytes is not None
    assert 0 < found.usable_bytes <= volume.total
    assert found.replica_infos.keys() == {T_0, T_1, TopicPartition("u", 0), METADATA}
    assert found.replica_infos[T_0] == ReplicaInfo(
        is_leader=True,
        size_bytes=bytes_below(root / "topics/t/0"),
        file_count=files_below(root / "topics/t/0"),
        reclaimable_bytes=0,
    )

    def check_all_topics() -> None:
        replicas = only_log_dir(admin).replica_infos.values()
        assert sum(one.size_bytes for one in replicas) == bytes_below(root / "topics")

    wait_until_holds(check_all_topics)  # records about producers may come meanwhile


def test_files_that_rolling_replaced_are_reclaimable_while_they_lie_there(
    root: Path, address: str, admin: Admin
) -> None:
    send(address, T_0)
    small = sum(path.stat().st_size for path in (root / "topics/t/0").glob("*.parquet"))
    assert [one.files_after for one in admin.maintain_log("t", "roll", [0])] == [1]
    replica = only_log_dir(admin, "t").replica_infos[T_0]
    assert (replica.reclaimable_bytes, replica.size_bytes) == (small, bytes_below(root / "topics/t/0"))


def test_topics_that_are_named_come_alone_and_unknown_ones_are_refused(admin: Admin) -> None:
    assert only_log_dir(admin, "t").replica_infos.keys() == {T_0, T_1}
    assert only_log_dir(admin, CLUSTER_METADATA_TOPIC).replica_infos.keys() == {METADATA}
    assert admin.describe_log_dirs([]) == admin.describe_log_dirs(brokers=[]) == {}
    with pytest.raises(BusError, match="nowhere") as caught:
        admin.describe_log_dirs(["t", "nowhere"])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broker_that_is_not_there_is_named(admin: Admin) -> None:
    assert admin.describe_log_dirs(brokers=[0]).keys() == {0}
    with pytest.raises(BusError, match="expected brokers that are registered and not fenced, found 7") as caught:
        admin.describe_log_dirs(brokers=[0, 7])
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_partition_that_does_not_open_has_its_size_all_the_same(root: Path) -> None:
    with running_broker(root) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("t", 2)])
        send(f"127.0.0.1:{broker.port}", T_0)
    for version in (root / "topics/t/0/_delta_log").glob("*1.json"):
        version.unlink()
    with running_broker(root) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        replicas = only_log_dir(admin, "t").replica_infos
        assert replicas[T_0].reclaimable_bytes is None
        assert replicas[T_0].size_bytes == bytes_below(root / "topics/t/0")
        assert replicas[T_1].reclaimable_bytes == 0


def test_the_command_shows_the_same_in_every_format(root: Path, address: str, admin: Admin) -> None:
    send(address, T_0)
    found = only_log_dir(admin, "t")
    size_bytes, file_count = found.replica_infos[T_0].size_bytes, found.replica_infos[T_0].file_count

    (log_dir,) = json.loads(run(address, "--topic", "t", "--format", "json").stdout)
    assert (log_dir["broker"], log_dir["log_dir"], log_dir["total_bytes"]) == (0, str(root), found.total_bytes)
    assert log_dir["replicas"][0] == {
        "topic": "t",
        "partition": 0,
        "is_leader": True,
        "size_bytes": size_bytes,
        "file_count": file_count,
        "reclaimable_bytes": 0,
        "error": None,
    }
    first, _ = csv.DictReader(run(address, "--topic", "t", "--format", "csv").stdout.splitlines())
    assert (first["role"], first["size_bytes"], first["error"]) == ("leader", str(size_bytes), "")

    heading, title, row, _ = run(address, "--topic", "t", "--format", "table").stdout.splitlines()
    assert heading.split("\t")[:2] == ["Broker: 0", f"LogDir: {root}"]
    assert title.split() == ["TOPIC", "PARTITION", "BROKER", "ROLE", "SIZE", "RECLAIMABLE", "FILES", "ERROR"]
    assert row.split()[:4] == ["t", "0", "0", "leader"]
    assert row.split()[-2:] == [str(file_count), "-"]

    refused = run(address, "--broker", "7")
    assert refused.exit_code == 1
    assert "BROKER_NOT_AVAILABLE: expected brokers" in refused.stderr


def test_of_three_brokers_each_partition_has_its_bytes_once_at_its_leader(root: Path) -> None:
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(running_broker(root, config=BrokerConfig(broker_id=number))) for number in range(3)
        ]
        addresses = [f"127.0.0.1:{broker.port}" for broker in brokers]
        admin = stack.enter_context(Admin(addresses))
        wait_until(lambda: len(admin.describe_cluster().brokers) == 3, "all brokers are in the cluster")
        admin.create_topics([NewTopic("t", 3, replication_factor=3)])
        names = [TopicPartition("t", number) for number in range(3)]
        send(",".join(addresses), *names)

        def check_every_broker() -> None:
            found = admin.describe_log_dirs(["t"])
            assert found.keys() == {0, 1, 2}
            for name in names:
                replicas = [one.replica_infos[name] for paths in found.values() for one in paths.values()]
                (led,) = (one for one in replicas if one.is_leader)
                assert led.size_bytes == bytes_below(root / f"topics/t/{name.partition}")
                assert [one for one in replicas if not one.is_leader] == [ReplicaInfo(False, 0, 0, 0)] * 2

        wait_until_holds(check_every_broker)  # each goes by the metadata as far as it has followed them
        rows = list(csv.DictReader(run(addresses[0], "--topic", "t", "--format", "csv").stdout.splitlines()))
        assert len(rows) == 9
        assert {row["size_bytes"] for row in rows if row["role"] == "follower"} == {""}
        assert admin.describe_log_dirs(brokers=[1]).keys() == {1}
