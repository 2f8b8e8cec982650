"""`bus acls export --check`: rights in force that differ from what ACLs ask for are told, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus import Admin, NewTopic, Producer
from bus.broker import Broker
from bus.cli.failures import Failure
from bus.cli.main import cli
from bus.cli.security import posix_check
from bus.cli.security.acl_export import Grants
from bus.cli.security.posix_check import Reader, Rights, check_files
from bus.settings.broker import BrokerConfig
from tests.support.acls import allow
from tests.support.broker_thread import running_broker
from tests.support.posix_acls import grant, has_acls, set_acl

ALICE, BOB, STAFF = "u:45678", "u:45679", "g:45680"
READ, SEARCH = 4, 5
METADATA = "__cluster_metadata"
TOPICS = (METADATA, "orders", "other")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With rights for alice to orders, as the script of the export gives them."""
    if not has_acls(tmp_path):
        pytest.skip("needs a file system with access control lists")
    root = tmp_path / "root"
    for topic in TOPICS:
        (root / "topics" / topic / "0" / "_delta_log").mkdir(parents=True)
        for name in ("_delta_log/0.json", "part.parquet"):
            (root / "topics" / topic / "0" / name).touch(0o640)
    (root / "bus-root.json").touch(0o640)
    for path in (root, root / "topics", *(root / "topics").rglob("*")):
        path.chmod(0o750 if path.is_dir() else 0o640)
    for path in (root, root / "topics"):
        set_acl(path, {ALICE: 1})
    set_acl(root / "bus-root.json", {ALICE: READ})
    for topic in (METADATA, "orders"):
        grant(root / "topics" / topic, {ALICE: READ})
    return root


def differences(root: Path, grants: Grants, *, tables_only: bool = False, brokers: tuple[str, ...] = ()) -> list[str]:
    return list(check_files(grants, str(root), TOPICS, tables_only=tables_only, brokers=brokers))


ASKED_FOR = Grants({ALICE: ["orders"]}, {}, [])


def test_rights_that_were_asked_for_are_no_difference(root: Path) -> None:
    assert differences(root, ASKED_FOR) == []


def test_reader_without_a_right_is_told_with_the_first_place(root: Path) -> None:
    folder = root / "topics" / "orders" / "0"
    set_acl(folder / "part.parquet", {ALICE: READ}, mask=0)
    assert differences(root, ASKED_FOR) == [
        f"{ALICE}: expected the right to read topic orders, found none for 1 of 5 files and folders, as "
        f"{folder}/part.parquet"
    ]
    set_acl(folder, {ALICE: READ})  # may list it, and reach nothing in it
    assert "found none for 2 of 5 files and folders" in differences(root, ASKED_FOR)[0]


def test_reader_who_will_not_read_what_comes_is_told(root: Path) -> None:
    folder = root / "topics" / "orders" / "0"
    os.removexattr(folder, "system.posix_acl_default")
    assert differences(root, ASKED_FOR) == [
        f"{ALICE}: expected a default right to read what comes to topic orders, found none at 1 of 3 folders, as "
        f"{folder}"
    ]


def test_the_way_to_the_topics_is_looked_at_too(root: Path) -> None:
    for path in (root, root / "topics", root / "bus-root.json"):
        set_acl(path, {})
    assert differences(root, ASKED_FOR) == [
        f"{ALICE}: expected the right to search {root}, found none",
        f"{ALICE}: expected the right to search {root}/topics, found none",
        f"{ALICE}: expected the right to read {root}/bus-root.json, found none",
    ]


def test_anyone_who_may_read_and_is_not_asked_for_is_told(root: Path) -> None:
    grant(root / "topics" / "other", {BOB: READ, STAFF: READ})
    assert [line.split(", as")[0] for line in differences(root, ASKED_FOR)] == [
        f"{STAFF}: expected no right to read topic other, found one for 5 of 5 files and folders",
        f"{BOB}: expected no right to read topic other, found one for 5 of 5 files and folders",
        f"{STAFF}: expected no default right to read what comes to topic other, found one at 3 of 3 folders",
        f"{BOB}: expected no default right to read what comes to topic other, found one at 3 of 3 folders",
    ]
    # A right that the mask takes away is none.
    for path in ((root / "topics" / "other"), *(root / "topics" / "other").rglob("*")):
        set_acl(path, {BOB: READ, STAFF: READ}, mask=0)
        if path.is_dir():
            os.removexattr(path, "system.posix_acl_default")
    assert differences(root, ASKED_FOR) == []


def test_tables_only_asks_for_no_cluster_metadata(root: Path) -> None:
    found = differences(root, ASKED_FOR, tables_only=True)
    assert {line.partition(", found")[0] for line in found} == {
        f"{ALICE}: expected no right to read topic {METADATA}",
        f"{ALICE}: expected no default right to read what comes to topic {METADATA}",
    }


def test_who_is_denied_must_not_read_as_everyone_in_a_group_does(root: Path) -> None:
    grants = Grants({STAFF: ["orders"]}, {ALICE: ["orders"]}, [])
    found = differences(root, grants)
    assert f"{ALICE}: expected no right to read topic orders, found one for 5 of 5 files and folders" in "\n".join(
        found
    )
    for path in (root, root / "topics"):
        set_acl(path, {STAFF: 1})
    set_acl(root / "bus-root.json", {STAFF: READ})
    grant(root / "topics" / METADATA, {STAFF: READ})
    grant(root / "topics" / "orders", {STAFF: READ, ALICE: 0})
    assert differences(root, grants) == []


def test_a_named_user_of_a_group_that_may_read_is_no_stranger(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (root, root / "topics"):
        set_acl(path, {STAFF: 1})
    set_acl(root / "bus-root.json", {STAFF: READ})
    for topic in (METADATA, "orders"):
        grant(root / "topics" / topic, {STAFF: READ, ALICE: READ})
    grants = Grants({STAFF: ["orders"]}, {}, [])
    assert any(line.startswith(ALICE) for line in differences(root, grants))
    find = posix_check.find_reader
    member = Reader(ALICE, 45678, frozenset([45680]))
    monkeypatch.setattr(posix_check, "find_reader", lambda name: member if name == ALICE else find(name))
    assert differences(root, grants) == []


def test_what_comes_is_not_for_others_whatever_the_default(root: Path) -> None:
    """The broker makes its files with the mode 0640."""
    for path in (root, root / "topics"):
        path.chmod(0o755)
        set_acl(path, {ALICE: 1})
    folder = root / "topics" / "orders"
    folder.chmod(0o755)
    set_acl(folder, {ALICE: SEARCH}, is_default=True)
    set_acl(folder, {ALICE: SEARCH})
    found = differences(root, ASKED_FOR)
    assert [line.partition(", found")[0] for line in found] == ["everyone: expected no right to read topic orders"]


def test_others_may_read_only_if_they_reach_the_topics(root: Path) -> None:
    (root / "topics" / "other" / "0" / "part.parquet").chmod(0o644)
    assert differences(root, ASKED_FOR) == []
    for path in (root, root / "topics"):
        path.chmod(0o755)
        set_acl(path, {ALICE: 1})
    [line] = differences(root, ASKED_FOR)
    assert line.startswith("everyone: expected no right to read topic other, found one for 1 of 5 files and folders")


def test_who_may_write_is_told_also_if_asked_to_read(root: Path) -> None:
    file = root / "topics" / "orders" / "0" / "_delta_log" / "0.json"
    set_acl(file, {ALICE: 6})
    [line] = differences(root, ASKED_FOR)
    assert line == (
        f"{ALICE}: expected no right to write to topic orders, found one for 1 of 5 files and folders, as {file}"
    )


def test_what_comes_cannot_be_written_to_whatever_the_default(root: Path) -> None:
    folder = root / "topics" / "orders"
    set_acl(folder, {ALICE: 7}, is_default=True)
    assert differences(root, ASKED_FOR) == []
    set_acl(folder, {ALICE: SEARCH, BOB: 7}, is_default=True)
    assert differences(root, ASKED_FOR) == [
        f"{BOB}: expected no default right to read what comes to topic orders, found one at 1 of 3 folders, as {folder}"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_what_comes_into_a_folder_of_another_owner_is_the_brokers(root: Path) -> None:
    folder = root / "topics" / "other"
    os.chown(folder, 45679, 0)
    assert differences(root, ASKED_FOR) == [
        f"{BOB}: expected no right to read topic other, found one for 1 of 5 files and folders, as {folder}",
        f"{BOB}: expected no right to write to topic other, found one for 1 of 5 files and folders, as {folder}",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_file_of_another_owner_is_told_unless_that_is_a_broker(root: Path) -> None:
    file = root / "topics" / "other" / "0" / "part.parquet"
    os.chown(file, 45679, 45680)
    found = {line.partition(" topic other")[0] for line in differences(root, ASKED_FOR)}
    assert found == {
        f"{BOB}: expected no right to read",
        f"{BOB}: expected no right to write to",
        f"{STAFF}: expected no right to read",
    }
    assert differences(root, ASKED_FOR, brokers=(BOB, STAFF)) == []


def test_what_goes_meanwhile_and_links_are_no_difference(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "topics" / "orders" / "0"
    (folder / "link").symlink_to("part.parquet")
    look = posix_check.rights_of

    def rights_of(path: Path) -> Rights:
        if path.name == "part.parquet":
            path.unlink(missing_ok=True)
        return look(path)

    monkeypatch.setattr(posix_check, "rights_of", rights_of)
    assert differences(root, ASKED_FOR) == []
    assert not (folder / "part.parquet").exists()


def test_user_that_the_machine_does_not_know_is_told(root: Path) -> None:
    grants = Grants({**ASKED_FOR.readers, "u:who-is-that": ["orders"]}, {}, [])
    assert differences(root, grants) == ["u:who-is-that: expected a user or group of this machine, found none"]
    with pytest.raises(Failure, match="--broker: expected a user or group of this machine, found g:who-is-that"):
        differences(root, ASKED_FOR, brokers=("g:who-is-that",))


def test_what_is_no_root_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, "s3://lake/bus"):
        with pytest.raises(Failure, match="expected --root with the folder of a root on this machine"):
            list(check_files(ASKED_FOR, str(place), TOPICS, tables_only=False))


# ------------------------------------------------------------------ the command


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = BrokerConfig(authorizer_class_name="acl", super_users="User:ANONYMOUS")
    with running_broker(tmp_path / "root", config=config) as broker:
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.create_topics([NewTopic("orders"), NewTopic("other")])
            admin.create_acls([allow(name="orders"), allow(name="other", host="10.0.0.1")])
        yield broker


def check(broker: Broker, *options: str) -> Result:
    address = f"127.0.0.1:{broker.port}"
    return CliRunner().invoke(cli, ["acls", "export", "--address", address, *options], catch_exceptions=False)


def test_the_command_ends_with_1_for_a_difference_and_with_0_without(broker: Broker, tmp_path: Path) -> None:
    root = tmp_path / "root"
    if not has_acls(tmp_path):
        pytest.skip("needs a file system with access control lists")
    (tmp_path / "people").write_text(f"User:alice {ALICE}")
    options = ("--as", "posix", "--principal-map", str(tmp_path / "people"), "--check")
    done = check(broker, *options)
    assert done.exit_code == 1
    assert f"{ALICE}: expected the right to search {root}, found none" in done.stdout.splitlines()
    assert "files know no host, so it grants nothing" in done.stderr
    for path in (root, root / "topics"):
        set_acl(path, {ALICE: 1})
    set_acl(root / "bus-root.json", {ALICE: READ})
    for topic in (METADATA, "orders"):
        grant(root / "topics" / topic, {ALICE: READ})
    with Producer(f"127.0.0.1:{broker.port}") as producer:  # what comes has the rights, too
        producer.send("orders", b"v").result()
    done = check(broker, *options)
    assert (done.exit_code, done.stdout) == (0, "")


def test_broker_is_named_for_a_check_alone() -> None:
    options = ("--address", "127.0.0.1:1", "--as", "posix", "--broker", "u:0")
    done = CliRunner().invoke(cli, ["acls", "export", *options])
    assert done.exit_code == 2
    assert "expected --check with --broker, found none" in " ".join(done.stderr.split())


def test_whoever_adds_acls_is_told_of_files_that_they_do_not_guard(broker: Broker, tmp_path: Path) -> None:
    add = ("acls", "add", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "orders")
    options = ("--address", f"127.0.0.1:{broker.port}")
    root = tmp_path / "root"
    for path in (root / "topics" / "orders", root / "topics"):
        path.chmod(0o755)
        done = CliRunner().invoke(cli, [*add, *options], catch_exceptions=False)
        assert (done.exit_code, done.stderr) == (0, "")
    root.chmod(0o755)
    done = CliRunner().invoke(cli, [*add, *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stderr.startswith("note: every user of this machine may read the files of topic orders, whatever ACLs")
