"""Does maintenance keep its promises? What a version may remove, and what has to be there of what was removed.

Guards three promises to readers: changes of data and rewritings are never in one version, so a reader that follows
changes passes over a rewriting and sees a removal as such; records go from the start of the log only, whole files, up
to a log start that never goes back; and every version that is kept can be read. Prints and mends nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import unquote

from bus.errors import count_of
from bus.storage_delta.verify.replay import LOG_START_APP, Action, AddedFile, ReplayedTable

Finding = tuple[str, str, str]  # promise, expected, found
_APART = "changes of data and rewritings are apart"
_LOG_START = "the log start is true"


def check_log_start(
    table: ReplayedTable, actions: Sequence[Action], removed: Sequence[AddedFile], *, high_watermark: int
) -> Iterator[Finding]:
    """Of a version behind `table` that removes `removed`."""
    told = next((body["version"] for body in _bodies(actions, "txn") if body.get("appId") == LOG_START_APP), None)
    if told is None:
        return
    before = table.txns.get(LOG_START_APP, 0)
    if not before <= told <= high_watermark:
        yield _LOG_START, f"{LOG_START_APP} from {before} to {high_watermark}", str(told)
    gone = {file.path for file in removed}
    for file in table.files.values():
        if file.path in gone and file.last_offset >= told:
            yield _LOG_START, f"{file.path} with offsets up to {file.last_offset} to stay", f"it removed below {told}"
        if file.path not in gone and file.last_offset < told:
            yield _LOG_START, f"{file.path} with offsets up to {file.last_offset} to go", f"it live below {told}"


def check_apart(actions: Sequence[Action]) -> Iterator[Finding]:
    """Of a version that the bus wrote."""
    adds, removes = ([bool(body.get("dataChange")) for body in _bodies(actions, kind)] for kind in ("add", "remove"))
    if any(adds) and removes:
        yield _APART, "no removal beside new records", f"{len(removes)}"
    if any(removes) and (adds or not all(removes)):
        yield (
            _APART,
            "nothing beside the removal of records",
            f"{count_of(len(adds), 'file')} added, {len(removes)} removed",
        )


def check_start(table: ReplayedTable) -> Iterator[tuple[str, Finding]]:
    """Whether the first live file, or the lack of any, fits the log start; with the path at fault, if there is one."""
    start = table.txns.get(LOG_START_APP, 0)
    first = table.files_by_offset[0] if table.files else None
    begins = table.high_watermark if first is None else first.base_offset
    # Another engine's file tells nothing of the records that key compaction took before its first.
    is_foreign_hole = first is not None and first.tag is None and begins <= table.compacted_to
    if begins > start and not is_foreign_hole and not table.is_lost(start, begins):
        path = "" if first is None else first.path
        yield path, ("offsets are dense", f"offset {start}, the log start", f"nothing below {begins}")


def check_kept(removed_in: Mapping[str, int], stored: Collection[str]) -> Iterator[tuple[str, int, Finding]]:
    """Data files that kept versions removed, each with its version, beside those that are there."""
    for path, version in sorted(removed_in.items()):
        if path not in stored:
            expected = f"a file that version {version - 1} has"
            yield path, version, ("kept versions can be read", expected, "none")


def check_named(removed: Collection[str], told: Collection[str], stored: Collection[str]) -> Iterator[Finding]:
    """What a checkpoint says was removed, beside a replay: what it leaves out passes for an orphan."""
    for path in sorted(set(removed) & set(stored) - set(told)):
        yield "checkpoints name the removed files that are there", f"a remove of {path}", "none"


def removed_paths(actions: Sequence[Action]) -> list[str]:
    return [unquote(str(body.get("path"))) for body in _bodies(actions, "remove")]


def _bodies(actions: Sequence[Action], kind: str) -> Iterator[Action]:
    yield from (action[kind] for action in actions if kind in action)
