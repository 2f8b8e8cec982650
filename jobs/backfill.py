"""For spark-submit; the program is `bus.jobs.backfill`, also as `python -m bus.jobs.backfill`."""

import sys

from bus.jobs.backfill import main

if __name__ == "__main__":
    sys.exit(main())
