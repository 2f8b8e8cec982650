"""For spark-submit; the program is `bus.jobs.offset_report`, also as `python -m bus.jobs.offset_report`."""

import sys

from bus.jobs.offset_report import main

if __name__ == "__main__":
    sys.exit(main())
