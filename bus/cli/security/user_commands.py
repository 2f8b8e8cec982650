"""`bus users`: users that log in by a password. With --root the log of users is changed without asking a broker, which
is how the first user is created."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from bus.cli.commands import BusGroup
from bus.cli.failures import Failure
from bus.cli.options import address_option, listing_format_option, open_admin
from bus.cli.output import Column, Columns, Kind, echo, write_listing
from bus.errors import BusError, Refused
from bus.platform.bounded_files import FileFault, read_bounded_text
from bus.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_MECHANISMS, salt_password

if TYPE_CHECKING:
    from bus.client.values import UserScramCredentialDeletion, UserScramCredentialUpsertion
    from bus.descriptions import ScramCredentialInfo

    Alterations = Sequence[UserScramCredentialUpsertion | UserScramCredentialDeletion]

_SECRET_BYTES = 32
_CHOSEN_LENGTH_MIN = 12
_END_OF_LINE = re.compile(r"\r\n|\r|\n")
_COLUMNS: Columns[tuple[str, ScramCredentialInfo]] = (
    Column("user", lambda row: row[0], is_key=True),
    Column("mechanism", lambda row: row[1].mechanism, is_key=True),
    Column("iterations", lambda row: row[1].iterations, Kind.NUMBER),
)
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class _Users(Protocol):
    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> Mapping[str, Sequence[ScramCredentialInfo]]: ...

    def alter_user_scram_credentials(self, alterations: Alterations) -> None: ...


@click.group(cls=BusGroup)
def users() -> None:
    """Users that log in by a password: create, list, delete them, give them new ones."""


def _root_option(command: CommandT) -> CommandT:
    return click.option(
        "--root",
        metavar="FOLDER",
        help="Use the root itself in place of asking a broker, whether one runs or not; needs the broker's rights "
        "to its files.",
    )(command)


def _password_options(command: CommandT) -> CommandT:
    command = click.option(
        "--mechanism",
        "mechanisms",
        type=click.Choice(tuple(SCRAM_MECHANISMS)),
        multiple=True,
        default=tuple(SCRAM_MECHANISMS),
        show_default=False,
        help="For which mechanism; repeatable.  [default: both]",
    )(command)
    return click.option(
        "--password-file",
        type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
        metavar="FILE",
        help=f"A password of {_CHOSEN_LENGTH_MIN} characters or more, the first line of FILE; - for standard input.  "
        "[default: a random one is made and printed]",
    )(command)


@users.command(
    examples="""
    bus users create alice
    bus users create broker --root ./bus-data
    bus users create alice --password-file alice.txt --mechanism SCRAM-SHA-512
    """
)
@click.argument("name")
@_password_options
@_root_option
@address_option()
def create(name: str, password_file: Path | None, mechanisms: Sequence[str], root: str | None, address: str) -> None:
    """Create a user.

    Its password is made here and printed once, on standard output; it is stored nowhere. The first user of a cluster
    whose brokers ask every client to log in is created with --root.
    """
    with _open(root, address) as found:
        if name in found.describe_user_scram_credentials():
            raise Failure(f"expected a new name, found a user named {name!r}; a new password: bus users reset {name}")
        _set_password(found, name, password_file, mechanisms)
    echo(f"created user {name}", err=True)


@users.command(examples="bus users reset alice")
@click.argument("name")
@_password_options
@_root_option
@address_option()
def reset(name: str, password_file: Path | None, mechanisms: Sequence[str], root: str | None, address: str) -> None:
    """Give a user a new password. Clients that logged in with the earlier one are logged out within a second."""
    with _open(root, address) as found:
        kept = {info.mechanism for info in _find(found, name)} - set(mechanisms)
        _set_password(found, name, password_file, mechanisms, without=sorted(kept))
    echo(f"user {name} has a new password", err=True)


@users.command("list", examples="bus users list")
@listing_format_option()
@_root_option
@address_option()
def list_users(form: str | None, root: str | None, address: str) -> None:
    """List the users, and for which mechanisms they have a password."""
    with _open(root, address) as found:
        known = found.describe_user_scram_credentials()
    rows = [(name, info) for name in sorted(known) for info in known[name]]
    write_listing(_COLUMNS, rows, form)


@users.command(examples="bus users delete alice")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_root_option
@address_option()
def delete(names: Sequence[str], root: str | None, address: str) -> None:
    """Delete users. Clients that are logged in as one of them are logged out within a second."""
    from bus.client.values import UserScramCredentialDeletion

    with _open(root, address) as found:
        for name in names:
            deletions = [UserScramCredentialDeletion(name, info.mechanism) for info in _find(found, name)]
            found.alter_user_scram_credentials(deletions)
            echo(f"deleted user {name}")


def _find(found: _Users, name: str) -> Sequence[ScramCredentialInfo]:
    known = found.describe_user_scram_credentials()
    if name not in known:
        raise Failure(f"expected a user, found none named {name!r}; those there are: bus users list")
    return known[name]


def _set_password(
    found: _Users,
    name: str,
    password_file: Path | None,
    mechanisms: Sequence[str],
    *,
    without: Sequence[str] = (),
) -> None:
    """`without`: mechanisms whose password, another one, goes with it."""
    from bus.client.values import UserScramCredentialDeletion, UserScramCredentialUpsertion
    from bus.descriptions import ScramCredentialInfo

    if password_file is None:
        password, iterations = secrets.token_urlsafe(_SECRET_BYTES), ITERATIONS_MIN
    else:
        password, iterations = _read_password(password_file), ITERATIONS_MAX
    upsertions = [
        UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, iterations), password)
        for mechanism in dict.fromkeys(mechanisms)
    ]
    deletions = [UserScramCredentialDeletion(name, mechanism) for mechanism in without]
    found.alter_user_scram_credentials([*upsertions, *deletions])
    if password_file is None:
        echo(password)


def _read_password(path: Path) -> str:
    """The first line."""
    try:
        text = _read_standard_input() if str(path) == "-" else read_bounded_text(path)
    except FileFault as fault:
        raise Failure(f"{path}: {fault}") from None
    password = _END_OF_LINE.split(text, maxsplit=1)[0]
    if len(password) < _CHOSEN_LENGTH_MIN:
        raise Failure(f"{path}: expected a password of at least {_CHOSEN_LENGTH_MIN} characters in the first line")
    return password


def _read_standard_input() -> str:
    """Its first line."""
    try:
        with click.open_file("-", encoding="utf-8") as file:
            return str(file.readline())
    except UnicodeDecodeError:
        raise FileFault("expected UTF-8 text, found other bytes") from None


@contextmanager
def _open(root: str | None, address: str) -> Any:
    if root is None:
        with open_admin(address) as admin:
            yield admin
        return
    from bus.storage_delta.root import open_storage

    # Without a lock: a broker may run. Of two that change the log at once, one decides again (UserLedger).
    storage = open_storage(root, create=True, exclusive=False)
    try:
        yield _UsersOfRoot(storage)
    finally:
        storage.close()


class _UsersOfRoot:
    """The log of users without a broker, with the methods of `Admin`."""

    def __init__(self, storage: Any) -> None:
        from bus.platform.system_clock import SystemClock
        from bus.runtime.user_directory import UserLedger

        self._ledger = UserLedger(storage, SystemClock())

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> Mapping[str, Sequence[ScramCredentialInfo]]:
        from bus.descriptions import ScramCredentialInfo

        assert users is None, "all are described"
        return {
            name: [ScramCredentialInfo(mechanism, one.iterations) for mechanism, one in sorted(credentials.items())]
            for name, credentials in self._ledger.follow().by_name.items()
        }

    def alter_user_scram_credentials(self, alterations: Alterations) -> None:
        from bus.client.values import UserScramCredentialDeletion
        from bus.security.users import DeleteScram

        answers = self._ledger.alter(
            [
                DeleteScram(one.user, one.mechanism) if isinstance(one, UserScramCredentialDeletion) else _salted(one)
                for one in alterations
            ]
        )
        for refusal in answers.values():
            if isinstance(refusal, Refused):
                raise BusError(refusal.code, refusal.message)


def _salted(one: UserScramCredentialUpsertion) -> Any:
    from bus.security.users import SetScram

    mechanism, salt = SCRAM_MECHANISMS[one.credential.mechanism], secrets.token_bytes(_SECRET_BYTES)
    iterations = one.credential.iterations
    salted = salt_password(mechanism, one.password, salt, iterations)
    return SetScram(one.user, mechanism.name, iterations, salt, salted)
