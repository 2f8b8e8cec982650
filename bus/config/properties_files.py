"""Reads properties files of Java, as Kafka's tools and its file provider of variables have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def parse_properties(text: str) -> Mapping[str, str]:
    """`key=value`, or with a colon; the last one of a key counts. Lines that are neither are passed over."""
    found = {}
    for _, line in logical_lines(text.splitlines()):
        key, separator, value = _split(line)
        if separator:
            found[key.strip()] = value.strip()
    return found


def _split(line: str) -> tuple[str, str, str]:
    at = min((place for place in (line.find("="), line.find(":")) if place >= 0), default=-1)
    return (line, "", "") if at < 0 else (line[:at], line[at], line[at + 1 :])


def logical_lines(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Each with the number of its first line: without comments, and joined where a line ends with a backslash."""
    found: list[tuple[int, str]] = []
    is_continued = False
    for number, line in enumerate(map(str.strip, lines), start=1):
        if is_continued:
            first, before = found.pop()
            text = before + line
        elif line and not line.startswith(("#", "!")):
            first, text = number, line
        else:
            continue
        is_continued = text.endswith("\\")
        found.append((first, text.removesuffix("\\")))
    return found
