"""Names that may be meant: one wording, and none where nothing is near."""

from __future__ import annotations

from pathlib import Path

import pytest

import bus
from bus.client.config.clients import AdminConfig
from bus.client.config.parsing import parse_config
from bus.client.config.sources import load_profile
from bus.errors import BusError, did_you_mean, near_names

PACKAGE = Path(bus.__file__).parent


def test_name_that_is_written_alike_is_suggested_and_no_other() -> None:
    assert did_you_mean(near_names("linger.m", ["linger.ms", "acks"])) == "; did you mean linger.ms?"
    assert did_you_mean(["a", "b"]) == "; did you mean a or b?"
    assert did_you_mean(near_names("zzz", ["linger.ms", "acks"])) == ""


def test_setting_of_a_client_that_is_like_none_gets_no_suggestion(tmp_path: Path) -> None:
    with pytest.raises(BusError) as caught:
        parse_config(AdminConfig, {"qqq": 1})
    assert caught.value.message == "expected a known config, found 'qqq'"
    file = tmp_path / "config.toml"
    file.write_text("[prod]\nqqq = 1\n")
    with pytest.raises(BusError, match=r"or a setting of a client, found 'qqq'$"):
        load_profile("prod", file)


def test_names_are_compared_and_suggested_in_one_place() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "errors.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "difflib" in line or "; did you mean" in line or "nearest one is" in line
    ]
    assert not found, "ask near_names and did_you_mean of bus.errors"
