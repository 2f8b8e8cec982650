"""The session that bus.spark starts, and the file that its settings come from."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import bus.spark
from bus.spark.jars import JarsMissing, check_jars, delta_coordinate
from bus.spark.sessions import read_defaults

CHECKOUT = Path(__file__).parents[2]


def test_the_session_has_every_setting_of_the_file_that_was_not_overridden(spark: SparkSession) -> None:
    defaults = read_defaults(CHECKOUT / "conf" / "spark-defaults.conf")
    assert "spark.sql.shuffle.partitions" in defaults
    for name, value in defaults.items():
        expected = "2" if name == "spark.sql.shuffle.partitions" else value
        assert spark.conf.get(name) == expected, name


def test_every_setting_of_the_file_has_a_comment() -> None:
    lines = (CHECKOUT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    for before, line in itertools.pairwise(lines):
        if line.startswith("spark."):
            assert before.startswith("#"), line


def test_the_installed_settings_are_those_of_the_file() -> None:
    assert read_defaults() == read_defaults(CHECKOUT / "conf" / "spark-defaults.conf")


def test_the_driver_is_bound_to_loopback_and_workers_run_this_python(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_jars_come_from_a_folder_and_not_from_the_network(spark: SparkSession) -> None:
    assert spark.conf.get("spark.jars.packages", "") == ""
    assert "delta-spark" in (spark.conf.get("spark.jars", "") or "")


def test_a_session_that_is_active_already_is_returned(spark: SparkSession) -> None:
    assert bus.spark.session() is spark


def test_a_folder_that_lacks_jars_says_which_and_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(JarsMissing, match=r"delta-storage.*not found: run `make setup`"):
        check_jars(tmp_path)


def test_jars_of_another_version_are_refused(tmp_path: Path) -> None:
    for jar in check_jars(CHECKOUT / ".jars"):
        (tmp_path / jar.name.replace("4.4.0", "4.3.1")).touch()
    artifact = delta_coordinate().split(":")[1]
    with pytest.raises(JarsMissing, match=rf"expected {artifact}-4\.4\.0\.jar.*found .*4\.3\.1\.jar"):
        check_jars(tmp_path)


@pytest.mark.usefixtures("spark")
def test_workers_find_the_source_in_a_checkout() -> None:
    assert str(CHECKOUT) in os.environ["PYTHONPATH"].split(os.pathsep)
