"""Clients have no plain lock and no plain logger, under or in which a user's code could hang, and which would show
what others have chosen as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

BUS = Path(__file__).parents[3] / "bus"
FILES = [
    *sorted(path for part in ("client", "aio", "processing", "security/oauth") for path in (BUS / part).rglob("*.py")),
    BUS / "security" / "key_material.py",
    *sorted((BUS / "spark").rglob("*.py")),
]
# A plain one waits for its own thread: a signal handler or a finalizer that comes back hangs.
PLAIN_LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Event"}
# That of run() and run_listeners() is a program's own, which is documented as such.
EVENTS_OF_PROGRAMS = {"processing/run.py", "processing/consumer.py", "processing/listeners.py"}

GUARDED = {
    "threading": PLAIN_LOCKS,
    "_thread": {"allocate_lock", "allocate", "LockType", "lock", "RLock"},
    "logging": {"getLogger"},
}


def calls(source: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    for node in ast.walk(source):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            yield node.func.value.id, node.func.attr, node


def hidden_imports(source: ast.AST) -> Iterator[str]:
    """Imports after which `calls` would not find a plain lock, thread or logger behind the name of its module."""
    for node in ast.walk(source):
        if isinstance(node, ast.ImportFrom) and node.module in GUARDED:
            is_hiding = any(alias.name in {*GUARDED[node.module], "Thread", "*"} for alias in node.names)
        elif isinstance(node, ast.Import):
            is_hiding = any(alias.name in GUARDED and alias.asname not in (None, alias.name) for alias in node.names)
        else:
            continue
        if is_hiding:
            yield f"line {node.lineno}: expected the module under its own name, found {ast.unparse(node)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(BUS)))
def test_no_lock_is_plain_no_line_is_logged_by_itself_and_each_thread_has_a_name_of_ours(path: Path) -> None:
    source = ast.parse(path.read_text())
    assert list(hidden_imports(source)) == []
    for module, name, call in calls(source):
        if module == "threading" and name == "Thread":
            names = [ast.unparse(keyword.value).strip("f'\"") for keyword in call.keywords if keyword.arg == "name"]
            assert names, f"line {call.lineno}: expected a thread with a name"
            assert names[0].startswith(("bus-", "self._name", "name")), f"line {call.lineno}: found {names[0]}"
        if module == "threading" and name == "Event" and str(path.relative_to(BUS)) in EVENTS_OF_PROGRAMS:
            continue
        is_plain = name in GUARDED.get(module, ())
        assert not is_plain, f"line {call.lineno}: expected that of bus.platform.reentry, found {module}.{name}"


@pytest.mark.parametrize(
    "line",
    [
        *(f"from threading import {name}" for name in sorted(PLAIN_LOCKS)),
        "from threading import current_thread, Lock as L",
        "from threading import Thread",
        "from threading import *",
        "import threading as t",
        "from logging import getLogger",
        "import logging as log",
        "from _thread import allocate_lock",
        "import _thread as t",
    ],
)
def test_import_that_would_hide_a_plain_lock_thread_or_logger_is_found(line: str) -> None:
    assert len(list(hidden_imports(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line", ["import threading, _thread", "from threading import get_ident", "from logging import WARNING"]
)
def test_import_that_hides_nothing_is_allowed(line: str) -> None:
    assert list(hidden_imports(ast.parse(line))) == []
