"""Documents name files and headings that are there, long ones have a table of contents, and docstrings begin as they
should."""

from __future__ import annotations

import ast
import errno
import os
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from bus import Admin
from bus.errors import ErrorCode

ROOT = Path(__file__).parents[2]
CONTENTS = runpy.run_path(str(ROOT / "tools" / "contents.py"))
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_document_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.toml|\.proto|/))`", text))
    missing = [name for name in sorted(named) if not is_there(name)]
    assert not missing, f"{page.name} names what is not there: {missing}"


def is_there(name: str) -> bool:
    """Below the checkout or below bus/; a name without a folder anywhere in bus/, tests/ or conf/."""
    if (ROOT / name).exists() or (ROOT / "bus" / name).exists():
        return True
    parts = name.rstrip("/").split("/")
    return any(True for top in ("bus", "tests", "conf") for _ in (ROOT / top).rglob("/".join(parts)))


def anchors_of(text: str) -> set[str]:
    return {anchor for _, _, _, anchor in CONTENTS["headings"](text)}


def text_of(path: Path) -> str | None:
    """The text of a document, nothing of another file, None if there is no such file."""
    return (path.read_text("utf-8") if path.suffix == ".md" else "") if path.exists() else None


def links_without_target(page: Path, text: str) -> list[str]:
    """Links to a file, or to a heading of one, that is not there."""
    missing = []
    prose = re.sub(r"`[^`\n]*`(?!\]\()", "", CONTENTS["without_code"](text))
    for link in re.findall(r"\]\(((?![a-z]+:)[^)\s]+)\)", prose):
        name, _, anchor = link.partition("#")
        target = text_of(page.parent / name) if name else text
        if target is None or (anchor and anchor not in anchors_of(target)):
            missing.append(link)
    return missing


@pytest.mark.parametrize("page", CONTENTS["pages"](), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert not links_without_target(page, page.read_text("utf-8"))


def test_links_that_lead_nowhere_are_found() -> None:
    text = "# One `two`, three\n\n## Same\n## Same\n```sh\n# no heading\n[a](#code)\n```\n"
    text += "[a](#one-two-three) [b](#same-1) [c](#same-2) [d](#no-heading) [e](README.md#two-commands) [f](gone.md)"
    assert links_without_target(ROOT / "page.md", text) == ["#same-2", "#no-heading", "gone.md"]


@pytest.mark.parametrize("page", CONTENTS["pages"](), ids=lambda page: str(page.relative_to(ROOT)))
def test_long_page_begins_with_its_table_of_contents(page: Path) -> None:
    text = page.read_text("utf-8")
    assert CONTENTS["with_contents"](text) == text, "python tools/contents.py writes the tables of contents"


def test_pages_that_programs_name_are_there_with_their_headings() -> None:
    """Comments, messages and settings say where a user reads more: `docs/security.md#profiles`."""
    missing = []
    for path in (path for top in ("bus", "conf", "jobs", "tools") for path in (ROOT / top).rglob("*.*")):
        if path.suffix in (".py", ".toml", ".conf", ".proto"):
            for name, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", path.read_text("utf-8")):
                page = ROOT / name
                if not page.exists() or (anchor and anchor not in anchors_of(page.read_text("utf-8"))):
                    missing.append(f"{path.relative_to(ROOT)}: {name}#{anchor}")
    assert not missing


QUOTED = re.compile(r"`([^`]+)`")


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    """`…` stands for what differs from run to run. Names of errors count, and what the system says (ENOSPC)."""
    texts = [os.strerror(errno.ENOSPC), *ErrorCode.__members__]
    for path in (ROOT / "bus").rglob("*.py"):
        if "v1" not in path.parts:
            nodes = ast.walk(ast.parse(path.read_text("utf-8")))
            texts += (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    known = "\0".join(texts)
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    messages = [message for title in re.findall(r"^### (.*)", page, re.MULTILINE) for message in QUOTED.findall(title)]
    assert len(messages) > 20
    pieces = [piece.strip() for message in messages for piece in message.split("…")]
    assert not [piece for piece in pieces if piece not in known]


def test_every_method_of_the_administrators_client_has_a_row_in_its_page() -> None:
    """Each with the commands that do the same, if there are any."""
    methods = {name for name in dir(Admin) if name[0] != "_"}
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", (ROOT / "docs" / "admin.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(method for method, _ in rows) == sorted(methods)
    commands = set(re.findall(r"^## (.*)", (ROOT / "docs" / "cli.md").read_text("utf-8"), re.MULTILINE))
    named = [name.split(" --")[0] for _, cell in rows for name in QUOTED.findall(cell)]
    assert len(named) > 30
    assert not set(named) - commands


# A docstring begins with a verb, or with the noun that is its subject: with one of these, who reads it has to find out
# first what it is about.
OPENINGS = re.compile(r"(Of|As|By|For|In|Where|Whose|Whether|Which|Who|What|Until|With)\b")
# The number that begin with one all the same, by package of bus/ and folder of tests/. A figure only ever falls.
OPENINGS_MAX = {
    "tests/integration": 7,
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
    for path in (path for top in ("bus", "tests") for path in (ROOT / top).rglob("*.py")):
        folder = "/".join(path.relative_to(ROOT).parent.parts[:2])
        if "v1" not in path.parts:  # what protoc writes
            counts[folder] += sum(map(bool, map(OPENINGS.match, docstrings_of(path.read_text("utf-8")))))
    more = {
        name: (count, OPENINGS_MAX.get(name, 0)) for name, count in counts.items() if count > OPENINGS_MAX.get(name, 0)
    }
    assert not more, (
        f"found and allowed: {more}; begin the new docstrings with a verb (Return, Check, True if) or the noun that "
        "they are about, or lower a figure of OPENINGS_MAX when you have mended others"
    )
