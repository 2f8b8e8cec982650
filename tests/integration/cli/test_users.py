"""`bus users`: with a broker and without one; passwords are printed once and read from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus import Admin, BusError, ScramCredentialInfo, UserScramCredentialDeletion, UserScramCredentialUpsertion
from bus.broker import Broker
from bus.cli.main import cli
from bus.errors import ErrorCode
from bus.security.scram import SCRAM_MECHANISMS, is_password_of
from tests.support.broker_thread import running_broker

SHA_256, SHA_512 = SCRAM_MECHANISMS


def run(*arguments: str, broker: Broker | None = None, text: str | None = None) -> Result:
    environment = {} if broker is None else {"BUS_ADDRESS": f"127.0.0.1:{broker.port}"}
    return CliRunner().invoke(cli, ("users", *arguments), input=text, env=environment, prog_name="bus")


def done(*arguments: str, broker: Broker | None = None, text: str | None = None) -> str:
    result = run(*arguments, broker=broker, text=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_first_user_is_made_on_the_root_and_known_to_its_broker(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    password = done("create", "alice", "--root", root).strip()
    assert len(password) >= 40
    with running_broker(root) as broker:
        credential = broker._core._users._ledger.follow().find("alice", SHA_512)  # type: ignore[union-attr]
        assert credential is not None
        assert is_password_of(SCRAM_MECHANISMS[SHA_512], credential, password)
        assert json.loads(done("list", broker=broker)) == [
            {"user": "alice", "mechanism": SHA_256, "iterations": 4096},
            {"user": "alice", "mechanism": SHA_512, "iterations": 4096},
        ]
        done("create", "bob", "--root", root)  # beside the broker that runs
        assert {row["user"] for row in json.loads(done("list", broker=broker))} == {"alice", "bob"}


def test_users_are_created_reset_and_deleted_at_a_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker:
        first = done("create", "alice", broker=broker)
        again = run("create", "alice", broker=broker)
        assert again.exit_code == 1
        assert "bus users reset alice" in again.stderr
        assert done("reset", "alice", "--mechanism", SHA_512, broker=broker) != first
        rows = json.loads(done("list", broker=broker))
        assert [row["mechanism"] for row in rows] == [SHA_512]  # the earlier password proves nothing any more
        assert done("delete", "alice", broker=broker) == "deleted user alice\n"
        missing = run("delete", "alice", broker=broker)
        assert missing.exit_code == 1
        assert "bus users list" in missing.stderr


def test_a_chosen_password_comes_from_a_file_and_is_not_short(tmp_path: Path) -> None:
    root, file = str(tmp_path / "root"), tmp_path / "password"
    file.write_text("short\n")
    refused = run("create", "alice", "--root", root, "--password-file", str(file))
    assert refused.exit_code == 1
    assert "at least 12 characters" in refused.stderr
    assert "short" not in refused.stderr
    printed = done("create", "alice", "--root", root, "--password-file", "-", text="from-kafka-1\nrest\n")
    assert printed == ""
    rows = json.loads(done("list", "--root", root))
    assert {row["iterations"] for row in rows} == {16_384}


def test_admin_describes_and_alters_users_as_kafkas_does(tmp_path: Path) -> None:
    upsertion = UserScramCredentialUpsertion("alice", ScramCredentialInfo(SHA_256, 8192), "pencil")
    assert "pencil" not in repr(upsertion)
    with running_broker(tmp_path / "root") as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.alter_user_scram_credentials([upsertion])
        assert admin.describe_user_scram_credentials() == {"alice": [ScramCredentialInfo(SHA_256, 8192)]}
        assert admin.describe_user_scram_credentials([]) == {}
        for call, code in (
            (lambda: admin.describe_user_scram_credentials(["bob"]), ErrorCode.RESOURCE_NOT_FOUND),
            (lambda: admin.describe_user_scram_credentials(["alice", "alice"]), ErrorCode.DUPLICATE_RESOURCE),
            (
                lambda: admin.alter_user_scram_credentials([UserScramCredentialDeletion("bob", SHA_256)]),
                ErrorCode.RESOURCE_NOT_FOUND,
            ),
            (
                lambda: admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", "PLAIN")]),
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            ),
            (lambda: admin.alter_user_scram_credentials([upsertion, upsertion]), ErrorCode.DUPLICATE_RESOURCE),
            (
                lambda: admin.alter_user_scram_credentials(
                    [UserScramCredentialUpsertion("a\nb", ScramCredentialInfo(SHA_256), "pencil")]
                ),
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
            ),
            (
                lambda: admin.alter_user_scram_credentials(
                    [UserScramCredentialUpsertion("carol", ScramCredentialInfo(SHA_256, 1), "pencil")]
                ),
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
            ),
        ):
            with pytest.raises(BusError) as caught:
                call()
            assert caught.value.code is code
        admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", SHA_256)])
        assert admin.describe_user_scram_credentials() == {}
