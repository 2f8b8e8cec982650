"""For spark-submit; the program is `bus.jobs.compact_files`, also as `python -m bus.jobs.compact_files`."""

import sys

from bus.jobs.compact_files import main

if __name__ == "__main__":
    sys.exit(main())
