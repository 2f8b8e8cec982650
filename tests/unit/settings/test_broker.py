"""Settings get in right or not at all, and whoever gave a wrong one is told which and why."""

from __future__ import annotations

import re
from dataclasses import Field, fields
from pathlib import Path

import pytest

from bus.addresses import Address
from bus.settings.broker import BROKER_CONFIGS, BrokerConfig, describe_broker_config
from bus.settings.keys import NO_EFFECT_YET, AnyOf, Between, ConfigError, ConfigType, ConfigValue, Key, OneOf, Typed
from bus.settings.listeners import read_address
from bus.settings.loading import literal_secrets, load_broker_config
from bus.settings.topic import TOPIC_CONFIGS, TopicConfig

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

CONF = Path(__file__).parents[3] / "conf"
SOURCES = [path.read_text() for path in (CONF.parent / "bus").rglob("*.py")]

RATE = Key("rate", Typed(ConfigType.DOUBLE), 1.0, "How often.")
COUNT = Key("count", Typed(ConfigType.INT, Between(0)), 1, "How many.")
SIZE = Key("size", Typed(ConfigType.LONG), 1, "How large.")
RATIO = Key("ratio", Typed(ConfigType.DOUBLE, Between(0, 1)), 0.5, "Which part.")
FLAG = Key("flag", Typed(ConfigType.BOOLEAN), False, "Whether.")
CODEC = Key("codec", Typed(ConfigType.STRING, OneOf(("none", "gzip"))), "none", "Which codec.")
POLICY = Key("policy", Typed(ConfigType.LIST, AnyOf(("delete", "compact"))), ("delete",), "Which policies.")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        (COUNT, " 7 ", 7),
        (COUNT, "+7", 7),
        (COUNT, "2147483647", 2**31 - 1),
        (SIZE, "-9223372036854775808", -(2**63)),
        (RATIO, "1", 1.0),
        (RATIO, ".25", 0.25),
        (RATIO, "5e-1", 0.5),
        (FLAG, "TRUE", True),
        (FLAG, "false", False),
        (CODEC, "gzip", "gzip"),
        (POLICY, "delete , compact", ("delete", "compact")),
        (POLICY, "", ()),
    ],
)
def test_text_is_parsed_as_the_type_and_survives_formatting(key: Key, text: str, value: ConfigValue) -> None:
    parsed = key.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)
    assert key.parse(key.format(parsed)) == value


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (COUNT, "-1", "int ([0,...])"),
        (COUNT, "2147483648", "int ([0,...])"),
        (COUNT, "1_000", "int ([0,...])"),
        (COUNT, "\u0663", "int ([0,...])"),
        (COUNT, "1.0", "int ([0,...])"),
        (COUNT, "", "int ([0,...])"),
        (SIZE, "9223372036854775808", "long"),
        (SIZE, "9" * 5000, "long"),
        (RATIO, "1.1", "double ([0,...,1])"),
        (RATIO, "nan", "double ([0,...,1])"),
        (RATE, "1e999", "double"),
        (FLAG, "yes", "boolean (one of true, false)"),
        (CODEC, "rar", "string (one of none, gzip)"),
        (POLICY, "delete,delete", "list (any of delete, compact)"),
        (POLICY, "delete,", "list (any of delete, compact)"),
    ],
)
def test_wrong_text_is_refused_with_what_was_expected_and_found(key: Key, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        key.parse(text)
    assert str(refusal.value) == f"{key.name}: expected {expected}, found {text!r}"


@pytest.mark.parametrize(
    ("key", "value"),
    [(COUNT, "7"), (COUNT, True), (COUNT, 7.0), (FLAG, 1), (CODEC, 1), (POLICY, "delete"), (POLICY, [1]), (RATIO, "1")],
)
def test_typed_value_of_another_type_is_refused(key: Key, value: object) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{key.name}: expected {key.type.value}")):
        key.check(value)


def test_typed_value_of_the_type_is_taken() -> None:
    assert COUNT.check(7) == 7
    assert RATIO.check(1) == 1.0
    assert POLICY.check(["compact"]) == ("compact",)


def test_key_without_effect_says_so_wherever_it_is_described() -> None:
    idle = Key("idle", Typed(ConfigType.INT), 1, "Nothing.", is_in_effect=False)
    assert idle.description == f"Nothing. {NO_EFFECT_YET}"
    assert COUNT.description == "How many."


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9094", Address("127.0.0.1", 9094)),
        ("broker:0", Address("broker", 0)),
        ("[::1]:9094", Address("::1", 9094)),
    ],
)
def test_address_is_read_and_written_alike(text: str, address: Address) -> None:
    assert read_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":9094", "host:65536", "host:-1", "::1:9094", "[]:1", "host:\uff19"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected an "):
        read_address(text)


def test_no_file_and_no_overrides_give_the_defaults() -> None:
    assert load_broker_config() == BrokerConfig()


def test_every_default_is_itself_a_valid_value() -> None:
    for key in BROKER_CONFIGS.values():
        assert key.check(key.default) == key.default
        assert key.parse(key.format(key.default)) == key.default


def test_every_setting_has_a_key() -> None:
    names = {name.replace(".", "_") for name in BROKER_CONFIGS}
    assert names | {"listener_overrides"} == set(BrokerConfig.__dataclass_fields__)


MIB = 1024 * 1024


def test_no_key_is_another_key_with_more_behind_a_dot() -> None:
    """TOML does not allow `a.b = 1` beside `a.b.c = 2`: a value cannot be a table."""
    for keys in (BROKER_CONFIGS, TOPIC_CONFIGS):
        assert not [(key, other) for key in keys for other in keys if other.startswith(f"{key}.")]


def test_file_sets_what_it_names_by_dotted_keys_quoted_names_or_tables(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('num.partitions = 4\n"broker.id" = 7\n[log.cache]\nbytes = 0\n')
    assert load_broker_config(path) == BrokerConfig(num_partitions=4, broker_id=7, log_cache_bytes=0)


def test_override_wins_over_the_file_and_may_be_text_or_typed(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("num.partitions = 4\nbroker.id = 7\n")
    config = load_broker_config(path, {"num.partitions": "8", "log.cache.bytes": 0})
    assert config == BrokerConfig(num_partitions=8, broker_id=7, log_cache_bytes=0)


def test_bounds_that_no_setting_names_are_lowered_to_fit_into_the_memory_of_the_broker() -> None:
    memory = 512 * MIB
    config = load_broker_config(None, {"memory.max.bytes": memory, "log.cache.bytes": 100 * MIB})
    of_requests = config.queued_max_request_bytes
    of_caches = config.log_cache_bytes + config.transaction_staged_cache_bytes
    assert config.log_cache_bytes == 100 * MIB, "it was given"
    assert of_requests >= config.queued_max_bytes >= 64 * MIB
    assert 2.25 * of_requests + of_caches < memory - 100 * MIB
    assert config.fetch_max_bytes >= config.socket_request_max_bytes


def test_much_memory_raises_no_bound() -> None:
    assert load_broker_config(None, {"memory.max.bytes": 2**40}) == BrokerConfig(memory_max_bytes=2**40)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("memory.max.bytes = 1024", "memory.max.bytes: expected long (0 or [402653184,...]), found 1024"),
        ("num.partition = 4", "unknown configuration key 'num.partition'; did you mean num.partitions?"),
        ("num_partitions = 4", "unknown configuration key 'num_partitions'; did you mean num.partitions?"),
        ("zzz = 4", "unknown configuration key 'zzz'"),
        ('num.partitions = "4"', "num.partitions: expected int ([1,...,10000]), found '4'"),
        ("num.partitions = 0", "num.partitions: expected int ([1,...,10000]), found 0"),
        ('listen = "nowhere"', "listen: expected string (HOST:PORT, a port from 0 to 65535), found 'nowhere'"),
        ('root = ""', "root: expected string (a non-empty string), found ''"),
        ('broker.id = 1\n"broker.id" = 2', "expected broker.id once, found it twice"),
    ],
)
def test_wrong_setting_in_a_file_is_named_with_the_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as refusal:
        load_broker_config(path)
    assert str(refusal.value) == f"{path}: {message}"


def test_file_that_is_no_toml_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("broker.id = 1\nlisten = \n")
    with pytest.raises(ConfigError, match=r"broker\.toml: expected TOML, found: .*line 2"):
        load_broker_config(path)


def test_file_that_cannot_be_read_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: expected a readable file, found: No such file"):
        load_broker_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="expected a readable file, found: Is a directory"):
        load_broker_config(tmp_path)


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(b"a\xff")
    with pytest.raises(ConfigError, match="expected UTF-8 text, found other bytes at position 1"):
        load_broker_config(path)


def test_override_of_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("did you mean broker.id?")):
        load_broker_config(None, {"broker_id": "1"})


@pytest.mark.parametrize("listen", ["0.0.0.0:9094", "[::]:9094"])
def test_serving_on_all_interfaces_needs_an_address_for_clients(listen: str) -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines without authentication"):
        load_broker_config(None, {"listen": listen})
    with pytest.raises(ConfigError, match="expected advertise to name an address that clients can connect to"):
        load_broker_config(None, {"listen": listen, "allow.insecure.listeners": "true"})
    with pytest.raises(ConfigError, match="advertise is"):
        load_broker_config(None, {"advertise": listen})
    meant = {"listen": listen, "advertise": "bus.example:9094", "allow.insecure.listeners": "true"}
    [listener] = load_broker_config(None, meant).serving_listeners
    assert listener.advertised == Address("bus.example", 9094)


def test_shortest_session_above_the_longest_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("group.min.session.timeout.ms of at most")):
        load_broker_config(None, {"group.min.session.timeout.ms": "7000", "group.max.session.timeout.ms": "6999"})


def test_heartbeats_that_are_not_sent_within_a_session_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=re.escape("broker.heartbeat.interval.ms below broker.session.timeout.ms, 500")
    ):
        load_broker_config(None, {"broker.session.timeout.ms": "500"})


def test_clients_are_told_the_port_that_was_bound_if_none_was_chosen() -> None:
    for advertise, told in (("", Address("127.0.0.1", 40001)), ("nat:80", Address("nat", 80))):
        [listener] = BrokerConfig(listen="127.0.0.1:0", advertise=advertise).serving_listeners
        assert listener.advertised.at_port(40001) == told


def test_description_shows_value_default_and_whether_it_was_set() -> None:
    entries = {entry.name: entry for entry in describe_broker_config(BrokerConfig(num_partitions=4))}
    assert entries.keys() == BROKER_CONFIGS.keys()
    changed = entries["num.partitions"]
    assert (changed.value, changed.default_value, changed.is_default) == ("4", "1", False)
    assert (changed.type, changed.valid_values, changed.is_read_only) == ("int", "[1,...,10000]", True)
    assert entries["broker.id"].is_default


def test_documentation_of_every_key_is_one_line() -> None:
    for key in BROKER_CONFIGS.values():
        assert key.documentation.endswith(".")
        assert "\n" not in key.documentation
        assert key.is_in_effect


def test_shipped_broker_file_holds_every_key_with_its_default_and_a_comment() -> None:
    path = CONF / "broker.toml"
    assert load_broker_config(path) == BrokerConfig()
    lines = path.read_text().splitlines()
    places = {line.split(" = ")[0]: number for number, line in enumerate(lines) if re.match(r"[a-z.]+ = ", line)}
    assert places.keys() == BROKER_CONFIGS.keys()
    assert [name for name, number in places.items() if not lines[number - 1].startswith("# ")] == []


def test_shipped_logging_file_has_the_agreed_form() -> None:
    settings = tomllib.loads((CONF / "logging.toml").read_text())["logging"]
    assert settings["format"] in ("text", "json")
    assert settings["level"] == "INFO"
    assert all(name.startswith("bus.") for name in settings["levels"])


def test_compaction_lags_that_contradict_each_other_stop_the_start() -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": 6, "log.cleaner.max.compaction.lag.ms": 5}
    with pytest.raises(ConfigError, match=r"of at most log\.cleaner\.max\.compaction\.lag\.ms, 5, found 6"):
        load_broker_config(None, lags)
    assert load_broker_config(None, {**lags, "log.cleaner.max.compaction.lag.ms": 6}).log_cleaner_threads == 1


@pytest.mark.parametrize(
    "field",
    [one for one in (*fields(BrokerConfig), *fields(TopicConfig)) if "key" in one.metadata],
    ids=lambda field: field.name,
)
def test_every_key_has_an_effect_or_says_that_it_has_none(field: Field[object]) -> None:
    key: Key = field.metadata["key"]
    if key.is_in_effect and field.metadata["stands_for"] is None:
        read = re.compile(rf"[.]{field.name}\b")
        assert any(read.search(source) for source in SOURCES), f"{key.name}: expected code that reads it"


def test_secrets_that_are_given_as_they_are_are_told_from_variables() -> None:
    given = [
        ("ssl.key.password", "hush"),
        ("listener.name.clients.ssl.keystore.key", "-----BEGIN"),
        ("sasl.jaas.config", "${file:/etc/bus/login:line}"),
        ("ssl.keystore.location", "/etc/bus/key.pem"),
        ("num.partitions", "4"),
        ("ssl.keystore.key", ""),
    ]
    assert literal_secrets(given) == ["ssl.key.password", "listener.name.clients.ssl.keystore.key"]
