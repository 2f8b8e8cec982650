"""Documents for those who work on the code name files that are there, and docstrings begin as they should."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_document_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.toml|\.proto|/))`", text))
    links = {link.split("#")[0] for link in re.findall(r"\]\((?!https?:)([^)#][^)]*)\)", text)}
    missing = [name for name in sorted(named) if not is_there(name)]
    assert not missing, f"{page.name} names what is not there: {missing}"
    assert not [link for link in sorted(links) if not (page.parent / link).exists()]


def is_there(name: str) -> bool:
    """Below the checkout or below bus/; a name without a folder anywhere in bus/, tests/ or conf/."""
    if (ROOT / name).exists() or (ROOT / "bus" / name).exists():
        return True
    parts = name.rstrip("/").split("/")
    return any(True for top in ("bus", "tests", "conf") for _ in (ROOT / top).rglob("/".join(parts)))


# A docstring begins with a verb, or with the noun that is its subject: with one of these, who reads it has to find out
# first what it is about.
OPENINGS = re.compile(r"(Of|As|By|For|In|Where|Whose|Whether|Which|Who|What|Until|With)\b")
# So many begin with one all the same, in each package of bus/, and in its own modules ("."). A figure only ever falls.
OPENINGS_MAX = {
    ".": 49,
    "aio": 20,
    "auditing": 2,
    "authorization": 11,
    "broker_api": 65,
    "cli": 61,
    "client": 215,
    "client_quotas": 11,
    "cluster_metadata": 44,
    "config": 17,
    "consumer_groups": 35,
    "demo": 2,
    "grpc_api": 44,
    "jobs": 17,
    "json_views": 2,
    "oauth": 6,
    "partition_log": 25,
    "processing": 36,
    "records": 4,
    "runtime": 146,
    "spark": 64,
    "sql": 9,
    "storage_delta": 171,
    "tables": 16,
    "transactions": 38,
    "users": 10,
}


def docstrings_of(source: str) -> list[str]:
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, nodes))
    return [text for text in found if text]


def test_docstring_that_begins_with_no_subject_is_found() -> None:
    source = 'def f(): "What it is."\n\nclass C:\n    """Whatever: a class."""\n    async def g(): "Of a file."'
    assert [text for text in docstrings_of(source) if OPENINGS.match(text)] == ["What it is.", "Of a file."]


def test_no_more_docstrings_begin_with_neither_verb_nor_subject() -> None:
    counts: Counter[str] = Counter()
    for path in (ROOT / "bus").rglob("*.py"):
        package, *_ = path.relative_to(ROOT / "bus").parent.parts or (".",)
        if "v1" not in path.parts:  # what protoc writes
            counts[package] += sum(map(bool, map(OPENINGS.match, docstrings_of(path.read_text("utf-8")))))
    more = {
        name: (count, OPENINGS_MAX.get(name, 0)) for name, count in counts.items() if count > OPENINGS_MAX.get(name, 0)
    }
    assert not more, (
        f"found and allowed: {more}; begin the new docstrings with a verb (Return, Check, True if) or the noun that "
        "they are about, or lower a figure of OPENINGS_MAX when you have mended others"
    )
