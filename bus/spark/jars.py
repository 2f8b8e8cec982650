"""Delta's jars for Spark: which ones, where they are kept, how they get there.

Guards one promise: after one set-up, no Spark session needs the network. Only the jars that Spark does not bundle
itself are fetched, through Spark's own resolver, so proxies and mirrors are configured as for any Spark program.
Never mixes versions: the folder must hold the jars of the installed delta-spark, built for the installed pyspark.

`python -m bus.spark.jars [FOLDER]` fills the folder; it does nothing if the jars are there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bus.client_texts import text_for
from bus.extras import extra_missing

FOLDER_VARIABLE = "BUS_SPARK_JARS"

# The modules that Delta adds to Spark; everything else in its dependency tree is an older copy of what Spark bundles.
_MODULES = (
    "delta-kernel-api",
    "delta-kernel-defaults",
    "delta-kernel-unitycatalog",
    "delta-spark",
    "delta-storage",
    "unitycatalog-client",
    "unitycatalog-hadoop",
)
_BUNDLED_WITH_SPARK = "com.*:*,org.*:*,javax.*:*,jakarta.*:*,commons-*:*,io.airlift:*"
_SCALA = "2.13"


class JarsMissing(RuntimeError):
    """The folder lacks jars of the installed versions; the message says which, where, and how to get them."""


def delta_coordinate() -> str:
    """The Maven coordinate of the installed delta-spark for the installed pyspark. Raises `ExtraMissing`."""
    try:
        spark = ".".join(version("pyspark").split(".")[:2])
        return f"io.delta:delta-spark_{spark}_{_SCALA}:{version('delta-spark')}"
    except PackageNotFoundError as error:  # PySpark alone may be that of a cluster
        raise (extra_missing(error) or error) from None


def jars_folder() -> Path | None:
    """`$BUS_SPARK_JARS`, else `.jars` of the checkout that this module is in, else None."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    checkout = Path(__file__).resolve().parents[2]
    return checkout / ".jars" if (checkout / "pyproject.toml").is_file() else None


def check_jars(folder: Path) -> list[Path]:
    """The jars to put on Spark's class path, sorted. Raises `JarsMissing`."""
    jars = sorted(folder.glob("*.jar"))
    found = {_module_name(jar): jar for jar in jars}
    missing = [module for module in _MODULES if module not in found]
    if missing:
        raise JarsMissing(
            f"expected Delta's jars for Spark in {folder}, {', '.join(missing)} not found: run `make setup`, or "
            f"`python -m bus.spark.jars {folder}`"
        )
    _, artifact, delta_version = delta_coordinate().split(":")
    expected = f"{artifact}-{delta_version}.jar"
    if not found["delta-spark"].name.endswith(expected):
        raise JarsMissing(
            f"expected {expected} in {folder}, found {found['delta-spark'].name}: remove that folder and run "
            f"`python -m bus.spark.jars {folder}`"
        )
    return [found[module] for module in _MODULES]


def resolve_jars(folder: Path) -> list[Path]:
    """Fetch the jars into `folder` unless they are there. An interruption leaves `folder` as it was."""
    try:
        return check_jars(folder)
    except JarsMissing:
        pass
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as scratch:
        _run_ivy(Path(scratch) / "ivy")
        complete = Path(scratch) / "jars"
        complete.mkdir()
        for jar in (Path(scratch) / "ivy" / "jars").glob("*.jar"):
            if _module_name(jar) in _MODULES:
                shutil.copyfile(jar, complete / jar.name)
        check_jars(complete)
        if folder.exists():
            shutil.rmtree(folder)
        complete.rename(folder)
    return check_jars(folder)


def _run_ivy(ivy_folder: Path) -> None:
    """Start and stop a Spark session that needs the jars; Spark's resolver leaves them in `ivy_folder`/jars."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        from pyspark.sql import SparkSession

        builder = (
            SparkSession.builder.master("local[1]")
            .appName("bus-set-up")
            .config("spark.jars.packages", delta_coordinate())
            .config("spark.jars.excludes", _BUNDLED_WITH_SPARK)
            .config("spark.jars.ivy", str(ivy_folder))
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
        builder.getOrCreate().stop()


def _module_name(jar: Path) -> str:
    """`io.delta_delta-spark_4.2_2.13-4.4.0.jar` -> `delta-spark`."""
    artifact = re.sub(r"-\d[\w.]*\.jar$", "", jar.name).split("_", 1)[-1]
    return artifact.split("_", 1)[0]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bus.spark.jars", description="Fetch Delta's jars, and list them.")
    parser.add_argument("folder", nargs="?", type=Path, help=f"where they are kept; else ${FOLDER_VARIABLE}")
    folder = parser.parse_args(arguments).folder or jars_folder()
    if folder is None:
        parser.error(f"expected a folder as argument or in ${FOLDER_VARIABLE}, found neither")
    for jar in resolve_jars(folder.absolute()):
        sys.stdout.write(f"{text_for(sys.stdout, str(jar))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
