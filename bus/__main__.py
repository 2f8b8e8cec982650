"""The `bus` command, by that name and as `python -m bus`."""

import signal

# Ctrl-C ends the process at once, as SIGTERM does, until a command runs: there is nothing to clean up, and an exception
# in the middle of an import would print a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from bus.cli.main import main

if __name__ == "__main__":
    main()
