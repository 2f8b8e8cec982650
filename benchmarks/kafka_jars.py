"""Kafka's jars: from Maven Central once, into a folder that git ignores.

Guards one promise: what is in the folder is complete. The jars are gathered beside it and put in place in one step, so
a fetch that was interrupted leaves nothing that could pass for a Kafka.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_HERE = Path(__file__).parent
JARS = _HERE / ".kafka"
VERSION = "4.1.0"

_JAVA = "a Java 17 with its compiler (for example openjdk-17-jdk-headless)"


class PeerMissing(Exception):
    """Kafka cannot run here; the message says what is missing."""


def resolve_jars() -> None:
    """Fetch the jars if they are not there. Raises `PeerMissing`."""
    check_java()
    if (JARS / f"kafka-tools-{VERSION}.jar").exists():
        return
    if shutil.which("mvn") is None:
        raise PeerMissing("no `mvn` on the path: install Maven once (for example maven), it fetches Kafka's jars")
    gathered = JARS.with_name(JARS.name + ".part")
    shutil.rmtree(gathered, ignore_errors=True)
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={gathered.absolute()}"]
    fetched = subprocess.run(["mvn", "-q", "-B", "-f", _HERE / "pom.xml", *copy], capture_output=True, text=True)
    if fetched.returncode != 0:
        raise PeerMissing(f"Kafka's jars could not be fetched: {(fetched.stdout + fetched.stderr).strip()[-500:]}")
    shutil.rmtree(JARS, ignore_errors=True)
    gathered.rename(JARS)


def check_java() -> None:
    """Raises `PeerMissing`. The compiler runs the programs that measure latencies."""
    if shutil.which("java") is None:
        raise PeerMissing(f"no `java` on the path: install {_JAVA}")
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True).stdout
    if "jdk.compiler" not in modules:
        raise PeerMissing(f"the `java` on the path has no compiler: install {_JAVA}")
