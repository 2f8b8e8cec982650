"""The program of all jobs: `spark-submit $(bus jobs path program) NAME ...`, and `python -m bus.jobs NAME ...`."""

from __future__ import annotations

import sys

from bus.cli.main import cli


def main(*job: str) -> None:
    """Run the job that the command line names, or `job`, as `bus jobs run` does, and end with its exit code."""
    cli(["jobs", "run", *job, *sys.argv[1:]], prog_name="bus")


if __name__ == "__main__":
    main()
