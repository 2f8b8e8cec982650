"""Profiles: how a client reaches its brokers, by name, in a file of the user.

The file is TOML with a table for each profile, `[prod]`: `bootstrap.servers` and the settings of clients, by
Kafka's or librdkafka's names. It is read for a profile that is named and never otherwise. Paths in it are relative to
the folder that it is in. Guards one promise: a file that cannot be used is refused with its path, what was expected and
what was found, and no value of it is in an error, a `repr` or the log.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.client.config.absent_settings import is_known_absence, reason_of_absence
from bus.client.config.security import FILE_SETTINGS, SECRET_SETTINGS, SECURITY_SETTINGS
from bus.client.config.typed_settings import AdminSettings, ConsumerSettings, ProducerSettings
from bus.client.config.values import conflict
from bus.config.keys import ConfigError
from bus.config.toml_files import flatten, read_toml
from bus.errors import did_you_mean, near_names
from bus.reentry import logger_of

FILE_VARIABLE = "BUS_CONFIG_FILE"
_ADDRESSES = "bootstrap_servers"
_KNOWN = (_ADDRESSES, "enable_http_proxy", *SECURITY_SETTINGS)
# Of a kind of client each, which takes its own. Objects that no text names, where profiles are, and the name of one
# producer, by which another one of that name is fenced, are a program's.
CLIENT_SETTINGS = frozenset(
    name
    for kind in (ProducerSettings, ConsumerSettings, AdminSettings)
    for name in kind.__annotations__
    if name not in {"profile", "config_file", "sasl_oauth_token_provider", "name"}
) - {*_KNOWN}
_OTHERS_MAY_READ = stat.S_IRGRP | stat.S_IROTH
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH

_log = logger_of(__name__)
_warned: set[tuple[Path, str]] = set()


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    path: Path
    addresses: str  # with commas between; empty: it names none
    settings: Mapping[str, Any] = field(repr=False)  # by their Python names

    def __str__(self) -> str:
        return f"profile {self.name} in {self.path}"


def default_path(environment: Mapping[str, str]) -> Path:
    """The file of BUS_CONFIG_FILE; else bus/config.toml in the folder of the user's settings."""
    named = environment.get(FILE_VARIABLE)
    if named:
        return Path(named).expanduser()
    folder = environment.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path("~/.config").expanduser()) / "bus" / "config.toml"


def load_profile(name: str, path: Path) -> Profile:
    """Raises `BusError` INVALID_CONFIG. Warns of a file with secrets that others may read, and of any that
    they may write."""
    where = f"profile {name} in {path}"
    try:
        table = _table(read_toml(path), name, path)
    except ConfigError as error:
        raise conflict(str(error)) from None
    settings: dict[str, Any] = {}
    for key, value in _flat(where, table).items():
        setting = key.replace(".", "_")
        _check(where, setting, key, value)
        if setting in settings:
            raise conflict(f"{where}: expected {key} once, found it with dots and with underscores")
        settings[setting] = value
    if SECRET_SETTINGS & settings.keys():
        warn_of_readers(path)
    _warn_of_writers(path)
    addresses = settings.pop(_ADDRESSES, "")
    addresses = addresses if isinstance(addresses, str) else ",".join(addresses)
    return Profile(name, path, addresses, {one: _placed(one, value, path) for one, value in settings.items()})


def warn_of_readers(path: Path) -> None:
    """Once per file and process, if others than its owner may read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except (OSError, ValueError):  # what is no path is found out by whoever reads it
        return
    if os.name == "posix" and mode & _OTHERS_MAY_READ and (path, "read") not in _warned:
        _warned.add((path, "read"))
        _log.warning("%s holds secrets and can be read by other users (mode %04o): run chmod 600 on it", path, mode)


def _warn_of_writers(path: Path) -> None:
    """Once per file and process, if others than its owner may change it, or put another one in its place."""
    try:
        modes = [(one, stat.S_IMODE(one.stat().st_mode)) for one in (path, path.absolute().parent)]
    except OSError:
        return
    for one, mode in modes:
        is_kept = one != path and mode & stat.S_ISVTX  # of a folder as /tmp nobody takes away what is another's
        if os.name == "posix" and mode & _OTHERS_MAY_WRITE and not is_kept and (one, "written") not in _warned:
            _warned.add((one, "written"))
            _log.warning(
                "%s can be changed by other users (mode %04o), who then choose the brokers and what is shown to them: "
                "run chmod go-w %s",
                one,
                mode,
                one,
            )


def _table(document: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    outside = [key for key, value in document.items() if not isinstance(value, dict)]
    if outside:
        raise ConfigError(f"{path}: expected a table for each profile, as [prod], found {outside[0]!r} outside of any")
    table = document.get(name)
    if not isinstance(table, dict):
        known = ", ".join(sorted(document)) or "none, as the file is empty"
        raise ConfigError(f"{path}: expected one of its profiles, {known}, found {name!r}")
    return table


def _flat(where: str, table: Mapping[str, Any]) -> Mapping[str, object]:
    try:
        return flatten(table)
    except ConfigError as error:
        raise conflict(f"{where}: {error}") from None


def _check(where: str, setting: str, key: str, value: object) -> None:
    if is_known_absence(setting):
        raise conflict(f"{where}: {key}: {reason_of_absence(setting)}")
    if setting in CLIENT_SETTINGS:
        if isinstance(value, (str, bool, int)) or _is_list_of_texts(value):
            return
        raise conflict(
            f"{where}: {key}: expected a text, a truth value, an integer or a list of texts, found another type: "
            f"{type(value).__name__}"
        )
    if setting not in _KNOWN:
        meant = did_you_mean(repr(near.replace("_", ".")) for near in near_names(setting, (*_KNOWN, *CLIENT_SETTINGS)))
        raise conflict(f"{where}: expected bootstrap.servers or a setting of a client, found {key!r}{meant}")
    is_addresses = setting == _ADDRESSES
    # Whether a truth value is one of the setting's is seen where the setting is checked.
    if isinstance(value, str) or (_is_list_of_texts(value) if is_addresses else isinstance(value, bool)):
        return
    expected = "a text, or a list of texts" if is_addresses else "a text or a truth value"
    raise conflict(f"{where}: {key}: expected {expected}, found another type: {type(value).__name__}")


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _placed(setting: str, value: Any, path: Path) -> Any:
    """Files are named as seen from the folder of the profile's file, wherever a program runs."""
    if setting not in FILE_SETTINGS or not value:
        return value
    return str(path.parent / Path(value).expanduser())
