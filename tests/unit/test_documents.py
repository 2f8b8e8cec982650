"""Documents for those who work on the code name files that are there."""

from __future__ import annotations

import re
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
