"""For spark-submit; the program is `bus.jobs.verify_log`, also as `python -m bus.jobs.verify_log`."""

import sys

from bus.jobs.verify_log import main

if __name__ == "__main__":
    sys.exit(main())
