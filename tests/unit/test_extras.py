"""The package alone is a client: what an extra brings is asked for by the extra's name."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bus.extras import _EXTRAS, ExtraMissing, extra_missing
from bus.settings.files import read_toml

ROOT = Path(__file__).parents[2]
# Runs without what the extras bring, and says so of each thing that needs more than it should.
CLIENT = '''
import sys
LACKING = set(sys.argv[2:])

class Without:
    """A finder of modules and distributions that does not find what the extras bring."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *arguments):
        is_there = name.partition(".")[0] not in LACKING
        return self.finder.find_spec(name, *arguments) if is_there else None

    def find_distributions(self, context):
        found = getattr(self.finder, "find_distributions", lambda _: ())(context)
        return [one for one in found if one.name not in LACKING]

sys.meta_path[:] = map(Without, sys.meta_path)
import importlib, pkgutil
import bus, bus.aio, bus.processing, bus.client, bus.cli, bus.tables
for name in bus.__all__:
    getattr(bus, name)
for package in (bus.aio, bus.processing, bus.client, bus.tables):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
from click.testing import CliRunner
from bus.cli.main import cli
from bus.cli import main

def run(*arguments):
    outcome = CliRunner().invoke(cli, arguments)
    print(" ".join(arguments), "->", outcome.exit_code, outcome.output.strip().splitlines()[-1])

for name in main._COMMANDS:
    cli.get_command(None, name)
print("commands", len(main._COMMANDS))
run("log", "describe", "orders", "--root", "/nonexistent/root")
run("sql", "SELECT 1")
run("sql", "SELECT 1", "--engine", "spark")
run("serve", "--root", sys.argv[1])
run("cluster", "up", "--root", sys.argv[1])
import bus.demo.__main__
sys.stderr = sys.stdout
print("demo ->", bus.demo.__main__.main([]))
for use in ("bus.sql.connect", "bus.spark.session", "bus.spark.delta_coordinate"):
    try:
        module, _, name = use.rpartition(".")
        getattr(importlib.import_module("bus.spark.jars" if "delta" in name else module), name)()
    except (ImportError, RuntimeError) as error:
        print(use, type(error).__name__, error)
'''


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("client") / "root"
    ended = subprocess.run(
        [sys.executable, "-c", CLIENT, root, *_EXTRAS, "deltalake"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not root.exists()
    return ended.stdout.splitlines()


def test_sdk_and_every_command_load_with_the_package_alone(printed: list[str]) -> None:
    assert printed[0].startswith("commands ")


def test_a_command_that_reads_tables_without_an_engine_needs_no_extra(printed: list[str]) -> None:
    assert "pip install" not in printed[1]
    assert "/nonexistent/root" in printed[1]


@pytest.mark.parametrize(
    ("begins", "extra"),
    [
        ("sql SELECT 1 -> 1 ", "sql"),
        ("sql SELECT 1 --engine spark -> 1 ", "sql"),
        ("serve --root", "broker"),
        ("cluster up", "broker"),
        ("The demo failed:", "broker"),
        ("bus.sql.connect ExtraMissing", "sql"),
        ("bus.spark.session SparkUnavailable", "spark"),
        ("bus.spark.delta_coordinate ExtraMissing", "spark"),
    ],
)
def test_what_an_extra_brings_is_asked_for_by_its_name(printed: list[str], begins: str, extra: str) -> None:
    [line] = [line for line in printed[2:] if line.startswith(begins)]
    assert f"pip install 'delta-bus[{extra}]'" in line


def test_extras_of_the_package_are_those_that_errors_name() -> None:
    extras = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    of_distribution = {"grpcio-health-checking": "grpc_health", "grpcio-reflection": "grpc_reflection"}
    for extra in ("broker", "sql", "spark", "demo"):
        names = {line.partition(">=")[0].partition("==")[0] for line in extras[extra]}
        names -= {"delta-bus[broker,sql,spark]", "grpcio"}  # a bound of what the base has
        assert {of_distribution.get(name, name) for name in names} == {
            module for module, its_extra in _EXTRAS.items() if its_extra == extra
        } - {"delta"}


def test_page_of_the_package_in_an_index_links_to_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, str] = {}
    monkeypatch.setitem(sys.modules, "setuptools", SimpleNamespace(setup=lambda **given: settings.update(given)))
    runpy.run_path(str(ROOT / "setup.py"))
    page = settings["long_description"]
    targets = re.findall(r"\]\(([^)]*)\)", page)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "a guide (docs/cluster.md)" in page
    assert "\ndocs/producer.md, docs/consumer.md" in page


def test_a_module_of_no_extra_is_not_explained() -> None:
    assert extra_missing(ModuleNotFoundError("No module named 'x'", name="x")) is None
    found = extra_missing(ModuleNotFoundError("No module named 'duckdb.x'", name="duckdb.x"))
    assert isinstance(found, ExtraMissing)
    assert extra_missing(found) is found
