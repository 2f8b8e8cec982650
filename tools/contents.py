"""Tables of contents of the pages that are longer than a reader sees at once.

python tools/contents.py    writes them, below the introduction of each page
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINES_MIN = 200
_BEGIN, _END = "<!-- contents: tools/contents.py -->", "<!-- end of contents -->"
_TABLE = re.compile(rf"{_BEGIN}\n.*?{_END}\n\n", re.DOTALL)
_FENCE = re.compile(r"^ *(`{3,})[^`\n]*\n.*?^ *\1`*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def pages() -> list[Path]:
    """All documents of the checkout, those of earlier versions apart."""
    earlier = ROOT / "tests" / "golden" / "versions" / "README.md"
    folders = (ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md"), (ROOT / "benchmarks").glob("*.md"))
    return sorted([earlier, *(page for found in folders for page in found)])


def without_code(text: str) -> str:
    """The page with its blocks of code blanked, at the same offsets."""
    return _FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)


def headings(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Offset, level, title and anchor of each heading. The anchor is the one that GitHub makes."""
    seen: Counter[str] = Counter()
    for found in re.finditer(r"^(#+) (.+?) *$", without_code(text), re.MULTILINE):
        title = _LINK.sub(r"\1", found[2])
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        seen[anchor] += 1
        number = seen[anchor] - 1
        yield found.start(), len(found[1]), title, f"{anchor}-{number}" if number else anchor


def with_contents(text: str) -> str:
    """The page with its table of contents before the second heading, if it is long enough to have one."""
    text = _TABLE.sub("", text)
    below = [heading for heading in headings(text) if heading[1] > 1]
    if len(text.splitlines()) <= LINES_MIN or len(below) < 3:
        return text
    place = below[0][0]
    return f"{text[:place]}{_BEGIN}\n{_listed(below)}{_END}\n\n{text[place:]}"


def _listed(below: list[tuple[int, int, str, str]]) -> str:
    """A line for each heading, those below another one indented; commands of one group (`## bus topics create`) share
    a line."""
    lines: dict[str, str] = {}
    for place, level, title, anchor in below:
        command = re.fullmatch(r"bus (\w+) (.+)", title)
        if not command:
            lines[str(place)] = f"{'  ' * (level - 2)}- [{title}](#{anchor})"
        elif (group := f"bus {command[1]}") in lines:
            lines[group] += f", [{command[2]}](#{anchor})"
        else:
            lines[group] = f"- {group}: [{command[2]}](#{anchor})"
    return "".join(f"{line}\n" for line in lines.values())


def main() -> None:
    for page in pages():
        text = page.read_text("utf-8")
        if (written := with_contents(text)) != text:
            page.write_text(written, "utf-8")


if __name__ == "__main__":
    main()
