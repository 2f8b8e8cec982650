"""Keeps a version of the bus as a program, which the version after it is tested with: tests/golden/versions.

python tools/freeze_version.py COMMIT     before a change of formats, of calls between brokers or of bus.version

Writes bus-version-<level>.tar.xz, with the level of bus.version at which a new cluster of that commit begins. The same
commit gives the same bytes.
"""

from __future__ import annotations

import lzma
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parent.parent
VERSIONS = TOP / "tests" / "golden" / "versions"
_CONTENT = ("bus", "pyproject.toml")
_RECORDS = "bus/cluster_metadata/cluster_records.py"


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=TOP, check=True, stdout=subprocess.PIPE).stdout


def main(commit: str) -> None:
    records = git("show", f"{commit}:{_RECORDS}").decode()
    found = re.search(r"^LEVEL_MIN, LEVEL_MAX = \d+, (\d+)$", records, re.MULTILINE)
    if found is None:
        sys.exit(f"{commit}: expected a line of LEVEL_MIN, LEVEL_MAX in {_RECORDS}, found none")
    path = VERSIONS / f"bus-version-{found[1]}.tar.xz"
    archive = git("archive", "--format=tar", commit, *_CONTENT)
    path.write_bytes(lzma.compress(archive, preset=9 | lzma.PRESET_EXTREME))
    print(f"{path.relative_to(TOP)}: {path.stat().st_size:,} bytes of {commit}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
