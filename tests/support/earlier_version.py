"""The version of the bus before this one, as a program: tests/golden/versions/README.md says what it is."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

TOP = Path(__file__).parents[2]
LEVEL = 4  # of bus.version, in a cluster that it has made
_ARCHIVE = TOP / "tests" / "golden" / "versions" / f"bus-version-{LEVEL}.tar.xz"


def unpack_version(folder: Path) -> Path:
    """The folder that has its package, below `folder`."""
    code = folder / f"bus-version-{LEVEL}"
    with tarfile.open(_ARCHIVE) as archive:
        archive.extractall(code, filter="data")
    return code


def environment_of_version(code: Path) -> dict[str, str]:
    """Variables of a process that runs in `code` as its current folder: `bus` is the package there, and `tests` that of
    the checkout."""
    return {**os.environ, "PYTHONPATH": f"{code}{os.pathsep}{TOP}"}
