"""Sources of the settings of a client that a program does not give.

An argument of the program wins over the options of a command line, these over the environment (BUS_SECURITY_PROTOCOL,
BUS_SSL_CA_LOCATION and so on), that over the profile that was named, that over the default. Guards one promise: each
setting is taken from the first source that has it, and what belongs together comes from one source. A source that names
a file of trusted authorities, a certificate, a login or a protocol hides the other ways to name it of later sources.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.client.config.security import (
    CERTIFICATE_SETTINGS,
    FILE_SETTINGS,
    KEY_SETTINGS,
    SECRET_SETTINGS,
    SECURITY_SETTINGS,
    TRUSTED_SETTINGS,
    is_known_absence,
    reason_of_absence,
)
from bus.client.config.tokens import (
    ASSERTION_SETTINGS,
    ASSERTION_SOURCES,
    CLIENT_ID_SETTINGS,
    CLIENT_SECRET_SETTINGS,
    PLACE_SETTINGS,
    TEMPLATE_SETTINGS,
    is_token_setting,
)
from bus.client.config.typed_settings import AdminSettings, ConsumerSettings, ProducerSettings
from bus.client.config.values import conflict
from bus.errors import did_you_mean, near_names
from bus.model import SASL_PROTOCOLS, TLS_PROTOCOLS
from bus.platform.reentry import logger_of
from bus.security.scram import OAUTHBEARER
from bus.settings.files import flatten, read_toml
from bus.settings.keys import ConfigError

FILE_VARIABLE = "BUS_CONFIG_FILE"
_ADDRESSES = "bootstrap_servers"
_KNOWN = (_ADDRESSES, "enable_http_proxy", *SECURITY_SETTINGS)
# Each kind of client takes its own of these. A profile has no settings that only a program can give: objects, the place
# of the profiles, and the name of a producer, which would fence another producer of that name.
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
    """Profiles: how a client reaches its brokers, by name, in a file of the user.

    The file is TOML with a table for each profile, `[prod]`: `bootstrap.servers` and the settings of clients, by
    Kafka's or librdkafka's names. It is read for a profile that is named and never otherwise. Paths in it are
    relative to the folder that it is in. Guards one promise: a file that cannot be used is refused with its path,
    what was expected and what was found, and no value of it is in an error, a `repr` or the log.
    """

    name: str
    path: Path
    addresses: str  # separated by commas; empty: it names none
    settings: Mapping[str, Any] = field(repr=False)  # keyed by their Python names

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
    except (OSError, ValueError):  # the code that reads the path reports its fault
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
        is_kept = one != path and mode & stat.S_ISVTX  # in a folder such as /tmp nobody can remove another user's file
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


PROFILE_VARIABLE = "BUS_PROFILE"
ADDRESS_VARIABLE = "BUS_ADDRESS"
JARS_VARIABLE = "BUS_SPARK_JARS"
_VARIABLES_OF_COMMANDS = ("BUS_ROOT", "BUS_FORMAT")
_OTHER_WORDS_FOR_ADDRESS = ("BUS_BOOTSTRAP_SERVERS", "BUS_BOOTSTRAP_SERVER", "BUS_BROKERS", "BUS_BROKER", "BUS_SERVER")
_VARIABLES_ALIKE = 0.82
PROFILE_SETTINGS = ("profile", "config_file")

_TRUSTED = frozenset(TRUSTED_SETTINGS)
_OWN = frozenset({*CERTIFICATE_SETTINGS, *KEY_SETTINGS, "ssl_keystore_location"})
_KEY_PASSWORD = frozenset({"ssl_key_password", "ssl_key_password_file"})
_MECHANISM = frozenset({"sasl_mechanism", "sasl_mechanisms"})
_PASSWORD = frozenset({"sasl_password", "sasl_password_file", "sasl_jaas_config"})
_LOGIN = _PASSWORD | {"sasl_username"}
_SECRETS = frozenset({*CLIENT_SECRET_SETTINGS, "sasl_oauthbearer_client_secret_file"})
_CLIENT_SECRET = frozenset({*_SECRETS, *ASSERTION_SETTINGS, "sasl_jaas_config"})
_CLIENT = _CLIENT_SECRET | {*CLIENT_ID_SETTINGS, "sasl_oauthbearer_scope"}
_TOKEN_PLACE = _CLIENT | {*PLACE_SETTINGS}
# A setting -> those of later sources that it hides, beside its own. Another key has another password, another user too.
_HIDES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_TRUSTED, _TRUSTED),
    **dict.fromkeys(_OWN, _OWN | _KEY_PASSWORD),
    **dict.fromkeys(_KEY_PASSWORD, _KEY_PASSWORD),
    **dict.fromkeys(_MECHANISM, _MECHANISM),
    **dict.fromkeys(_PASSWORD, _PASSWORD),
    "sasl_username": _LOGIN,
    "sasl_jaas_config": _LOGIN | _CLIENT,
    **dict.fromkeys(_SECRETS | {*ASSERTION_SOURCES}, _CLIENT_SECRET),
    **dict.fromkeys(CLIENT_ID_SETTINGS, _CLIENT),
    **dict.fromkeys(PLACE_SETTINGS, _TOKEN_PLACE),
}

# Each names a file that holds nothing but a secret.
_SECRET_FILES = frozenset(name for name in SECURITY_SETTINGS if name.endswith("_file")) - {*TEMPLATE_SETTINGS}


@dataclass(frozen=True, slots=True)
class FoundSettings:
    """`origins`: where each is from, for messages."""

    values: Mapping[str, Any] = field(repr=False)
    origins: Mapping[str, str]

    def is_given(self, name: str) -> bool:
        """Return True if the program itself has given it."""
        return self.origins[name] == _PROGRAM

    def show_origin(self, name: str) -> str:
        """Text to follow the name; empty for one that the program gave."""
        origin = self.origins[name]
        return "" if origin == _PROGRAM else f" (from {origin})"

    def show_origins(self, message: str) -> str:
        """Text to follow an error: where the settings that it names are from; empty if the program gave them all."""
        named = [name for name in dict.fromkeys(_NAME.findall(message)) if name in self.values]
        if all(self.origins[name] == _PROGRAM for name in named):
            return ""
        return f" ({'; '.join(f'{name} is from {self.origins[name]}' for name in named)})"


_NAME = re.compile(r"[a-z]+(?:_[a-z]+)+")
_PROGRAM = "the arguments of the client"
_only_connections: ContextVar[bool] = ContextVar("bus-only-settings-of-connections", default=False)
_options: dict[str, str] = {}
_option_origins: dict[str, str] = {}
_profile_option: list[str] = []
_warned_variables: set[str] = set()


@contextmanager
def security_defaults(settings: Mapping[str, str], origin: str = "the command line") -> Iterator[None]:
    """Options of a command, for all clients of the process that are made meanwhile; later ones win over earlier ones.
    `origin`: where they are from, for messages."""
    before, origins_before = dict(_options), dict(_option_origins)
    _replace(_options, overlay(settings, before))
    _option_origins.update(dict.fromkeys(settings, origin))
    try:
        yield
    finally:
        _replace(_options, before)
        _replace(_option_origins, origins_before)


@contextmanager
def only_settings_of_connections() -> Iterator[None]:
    """Clients that this thread makes meanwhile are the bus's own: all but how they connect is given by their code."""
    before = _only_connections.set(True)
    try:
        yield
    finally:
        _only_connections.reset(before)


def _replace(kept: dict[str, str], entries: Mapping[str, str]) -> None:
    kept.clear()
    kept.update(entries)


@contextmanager
def default_profile(name: str) -> Iterator[None]:
    """The profile of all clients of the process that are made meanwhile and name none."""
    _profile_option.append(name)
    try:
        yield
    finally:
        _profile_option.pop()


def with_defaults(given: Mapping[str, Any], others: Iterable[str] = ()) -> FoundSettings:
    """`given`, and what other sources have of the settings of a connection and of `others`, those of a kind of client.
    Raises `BusError` INVALID_CONFIG for a profile that cannot be used."""
    profile = chosen_profile(given)
    names = {*SECURITY_SETTINGS}
    if not _only_connections.get():
        names |= CLIENT_SETTINGS & {*others}
        _warn_of_variables()
    environment = {
        name: os.environ[variable] for name in sorted(names) if (variable := f"BUS_{name.upper()}") in os.environ
    }
    values: dict[str, Any] = {}
    if profile is not None:
        unwanted = CLIENT_SETTINGS - names
        values = {name: value for name, value in profile.settings.items() if name not in unwanted}
    origins = dict.fromkeys(values, f"the {profile}")
    origins |= {name: f"the environment, BUS_{name.upper()}" for name in environment}
    origins |= {**{name: _option_origins[name] for name in _options}, **dict.fromkeys(given, _PROGRAM)}
    for source in (environment, _options, given):
        values = overlay(source, values)
    for name in _SECRET_FILES & values.keys():
        if values[name] and isinstance(values[name], str):
            warn_of_readers(Path(values[name]).expanduser())
    return FoundSettings(values, origins)


def _warn_of_variables() -> None:
    """Once per variable and process. Commands do it themselves, on standard error."""
    for name, warning in warnings_of_variables(os.environ).items():
        if name not in _warned_variables:
            _warned_variables.add(name)
            _log.warning("%s", warning)


def warnings_of_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Warn of each variable that looks like one of the bus and is none, with the one that was probably meant. All else
    that begins with BUS_ is let be: in Kubernetes a service of that name has such variables."""
    known = {PROFILE_VARIABLE, ADDRESS_VARIABLE, FILE_VARIABLE, JARS_VARIABLE, *_VARIABLES_OF_COMMANDS}
    known |= {f"BUS_{name.upper()}" for name in (*SECURITY_SETTINGS, *CLIENT_SETTINGS)}
    found = {}
    for name in sorted(environment):
        if not name.startswith("BUS_") or name in known or name.startswith("BUS_SERVICE_"):
            continue
        near = near_names(name, known, likeness_min=_VARIABLES_ALIKE)
        meant = [ADDRESS_VARIABLE] if name in _OTHER_WORDS_FOR_ADDRESS else near
        if meant or name.startswith(("BUS_SASL_", "BUS_SSL_", "BUS_SECURITY_")):
            found[name] = f"{name} has no effect, there is no such variable{did_you_mean(meant)}"
    return found


def chosen_profile(given: Mapping[str, Any]) -> Profile | None:
    """Return the profile named by the argument `profile`, the option of the command or BUS_PROFILE; None if none is
    named, or an empty one. Raises `BusError` INVALID_CONFIG."""
    name, path = given.get("profile"), given.get("config_file")
    if name is None:
        name = _profile_option[-1] if _profile_option else os.environ.get(PROFILE_VARIABLE)
    for setting, value in (("profile", name), ("config_file", path)):
        if value is not None and not isinstance(value, (str, Path)):
            raise conflict(f"{setting}: expected a text, found {type(value).__name__}")
    if not name:
        if path:
            raise conflict("config_file: expected a profile of it beside it, found none")
        return None
    return load_profile(str(name), Path(path).expanduser() if path else default_path(os.environ))


def default_addresses(given: Mapping[str, Any]) -> str | None:
    """Return the addresses for a client that is given none: BUS_ADDRESS, or else those of its profile, separated by
    commas. Raises `BusError` INVALID_CONFIG."""
    named = os.environ.get(ADDRESS_VARIABLE)
    if named:
        return named
    profile = chosen_profile(given)
    return profile.addresses or None if profile is not None else None


def overlay(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `upper`, and those of `lower` that they do not hide."""
    hidden = {other for name in upper for other in _HIDES.get(name, ())}
    protocol = str(upper.get("security_protocol", "")).upper()
    if protocol and protocol not in TLS_PROTOCOLS:
        hidden |= {name for name in lower if name.startswith("ssl_")}
    if protocol and protocol not in SASL_PROTOCOLS:
        hidden |= {name for name in lower if name.startswith("sasl_") or is_token_setting(name)}
    mechanism = str(upper.get("sasl_mechanism") or upper.get("sasl_mechanisms") or "").upper()
    if mechanism == OAUTHBEARER:
        hidden |= _LOGIN - {"sasl_jaas_config"}
    elif mechanism:
        hidden |= {name for name in lower if is_token_setting(name)}
    return {**{name: value for name, value in lower.items() if name not in hidden}, **upper}
