"""Jobs as programs on a machine without PySpark: usage and exit codes, and never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bus

JOBS = sorted(file for file in (Path(__file__).parents[2] / "jobs").glob("*.py") if not file.name.startswith("_"))
# All in one process, which starts once: what each call printed, and how it ended.
RUN_ALL = """
import contextlib, io, json, runpy, sys
sys.modules["pyspark"] = sys.modules["py4j"] = None
found = []
package, calls = json.load(sys.stdin)
sys.path.append(package)
for program, arguments in calls:
    sys.argv = [program, *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(program, run_name="__main__")
            status = None
        except SystemExit as end:
            status = end.code
        except BaseException as error:
            status = repr(error)
    found.append([status, out.getvalue(), err.getvalue()])
json.dump(found, sys.stdout)
"""
ENOUGH = {  # arguments with which a job starts
    "backfill": ["orders", "--source", "x", "--name", "x"],
    "compact_files": ["orders"],
    "compact_keys": ["orders"],
    "export": ["orders", "--to", "x", "--checkpoint", "x"],
    "mirror_kafka": ["to-bus", "--kafka", "localhost:1", "--topics", "orders", "--checkpoint", "x"],
    "offset_report": ["orders"],
    "replay": ["orders", "copies", "--checkpoint", "x"],
    "streaming_aggregate": ["orders", "counts", "--checkpoint", "x"],
    "verify_log": ["orders"],
}
CALLS = {"help": ["--help"], "nothing": [], "unknown option": ["--nope"]}

Ended = tuple[int, str, str]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Ended]:
    calls = [(job.stem, name) for job in JOBS for name in (*CALLS, "enough")]
    arguments = [[str(job), CALLS.get(name, ENOUGH[job.stem])] for job in JOBS for name in (*CALLS, "enough")]
    # Isolated: the current folder is not on the path, as with the installed package.
    run = subprocess.run(
        [sys.executable, "-I", "-c", RUN_ALL],
        input=json.dumps([str(Path(bus.__file__).parents[1]), arguments]),
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        check=True,
    )
    return {call: (found[0], found[1], found[2]) for call, found in zip(calls, json.loads(run.stdout), strict=True)}


@pytest.mark.parametrize("job", [job.stem for job in JOBS])
def test_job_shows_its_usage_without_pyspark(job: str, ended: dict[tuple[str, str], Ended]) -> None:
    status, out, err = ended[job, "help"]
    assert (status, out.startswith(f"Usage: bus jobs run {job} "), err) == (0, True, "")
    for wrong in ("nothing", "unknown option"):
        status, out, err = ended[job, wrong]
        assert (status, out, err.startswith("error: ")) == (2, "", True)
        assert err.endswith(f"see: bus jobs run {job} --help\n")


@pytest.mark.parametrize("job", [job.stem for job in JOBS])
def test_job_names_the_extra_that_has_pyspark(job: str, ended: dict[tuple[str, str], Ended]) -> None:
    status, _, err = ended[job, "enough"]
    assert status == 1
    assert err.startswith("error: expected PySpark 4.2")
    assert err.count("\n") == 1
