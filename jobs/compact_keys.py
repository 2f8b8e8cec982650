"""For spark-submit; the program is `bus.jobs.compact_keys`, also as `python -m bus.jobs.compact_keys`."""

import sys

from bus.jobs.compact_keys import main

if __name__ == "__main__":
    sys.exit(main())
