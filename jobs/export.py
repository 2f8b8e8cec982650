"""For spark-submit; the program is `bus.jobs.export`, also as `python -m bus.jobs.export`."""

import sys

from bus.jobs.export import main

if __name__ == "__main__":
    sys.exit(main())
