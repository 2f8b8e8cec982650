"""`bus acls export` against a broker, and its script on a file system."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus import Admin, NewTopic, Producer
from bus.broker import Broker
from bus.cli.main import cli
from bus.settings.broker import BrokerConfig
from tests.support.acls import allow, deny, prefixed
from tests.support.broker_thread import running_broker

CONFIG = BrokerConfig(authorizer_class_name="acl", super_users="User:ANONYMOUS")
UID = "45678"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "root", config=CONFIG) as broker:
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.create_topics([NewTopic(name) for name in ("orders", "orders-secret", "other")])
            admin.create_acls(
                [prefixed(allow(name="ord")), deny(name="orders-secret"), allow(name="other", host="10.0.0.1")]
            )
        yield broker


def export(broker: Broker, *options: str) -> Result:
    address = f"127.0.0.1:{broker.port}"
    return CliRunner().invoke(cli, ["acls", "export", "--address", address, *options], catch_exceptions=False)


def test_what_files_cannot_express_is_a_comment_of_the_script(broker: Broker) -> None:
    lines = export(broker, "--as", "posix", "--tables-only").stdout.splitlines()
    told = [
        "Read on Topic ord (prefixed) from *: topics that are created later are not in it: export again",
        "Read on Topic other (literal) from 10.0.0.1: files know no host, so it grants nothing",
    ]
    assert [line for line in lines if "not expressed" in line] == [
        f"# not expressed: Allow User:alice {line}" for line in told
    ]


def test_the_script_names_the_root_of_the_broker(broker: Broker, tmp_path: Path) -> None:
    lines = export(broker, "--as", "posix", "--tables-only").stdout.splitlines()
    assert f"setfacl -R -m u:alice:rX {tmp_path}/root/topics/orders" in lines
    assert [line for line in lines if line[0] != "#" and ("secret" in line or "other" in line)] == []


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="needs setfacl")
def test_a_reader_has_a_right_to_what_is_there_and_to_what_comes(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "people").write_text(f"User:alice u:{UID}")
    script = export(broker, "--as", "posix", "--principal-map", str(tmp_path / "people")).stdout
    subprocess.run(["sh", "-eu"], input=script, text=True, check=True, timeout=100)
    with Producer(f"127.0.0.1:{broker.port}", batch_size=0) as producer:
        for topic in ("orders", "orders-secret"):
            producer.send(topic, b"v").result()
    root = tmp_path / "root"

    def rights(path: Path) -> str:
        listed = subprocess.run(["getfacl", "-nc", str(path)], capture_output=True, text=True, check=True, timeout=100)
        found = [line for line in listed.stdout.splitlines() if line.startswith(f"user:{UID}:")]
        return "".join(found).partition("#effective:")[2] or "".join(found)[-3:]

    for topic in ("orders", "__cluster_metadata"):
        paths = [root / "topics" / topic, *(root / "topics" / topic).rglob("*")]
        assert len(paths) > 5
        assert {rights(path) for path in paths if path.is_dir()} == {"r-x"}
        assert {rights(path) for path in paths if path.is_file()} == {"r--"}
    assert [rights(path) for path in (root, root / "topics", root / "bus-root.json")] == ["--x", "--x", "r--"]
    others = [root / "topics" / "orders-secret", *(root / "topics" / "orders-secret").rglob("*"), root / "cluster"]
    assert {rights(path) for path in others} == {""}
