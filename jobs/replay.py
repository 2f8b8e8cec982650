"""For spark-submit; the program is `bus.jobs.replay`, also as `python -m bus.jobs.replay`."""

import sys

from bus.jobs.replay import main

if __name__ == "__main__":
    sys.exit(main())
