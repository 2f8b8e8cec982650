"""`make bench-peers`: what the benchmarks compare with, fetched once; `python -m benchmarks.peers`.

Kafka's jars, Spark's connector to it, and the packages of the extra `bench`, into the environment that runs this. Safe
to repeat: what is there is not fetched again. Tries everything, then says plainly what is missing, and fails if
anything is.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.kafka_jars import JARS, VERSION, PeerMissing, resolve_jars
from benchmarks.spark_jars import CONNECTOR, resolve_connector

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def install_extra() -> None:
    """Raises `PeerMissing`. By name, not as `.[bench]`: what is installed already then needs no network."""
    project: dict[str, Any] = tomllib.loads(_PROJECT.read_text())["project"]
    wanted = project["optional-dependencies"]["bench"]
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise PeerMissing(f"{', '.join(wanted)} could not be installed: {done.stderr.strip()[-500:]}")


def main() -> int:
    missing = []
    for fetch in (resolve_jars, resolve_connector, install_extra):
        try:
            fetch()
        except PeerMissing as error:
            missing.append(str(error))
    if not missing:
        confluent = importlib.metadata.version("confluent-kafka")
        sys.stdout.write(
            f"there: Kafka {VERSION} in {JARS}, Spark's connector in {CONNECTOR}, confluent-kafka {confluent}\n"
        )
    for reason in missing:
        sys.stderr.write(f"missing: {reason}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
