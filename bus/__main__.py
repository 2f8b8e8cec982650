"""`python -m bus` is the `bus` command, and `bus` is this."""

import signal

# Until a command runs there is nothing to end in order: while modules are loaded Ctrl-C ends the process as SIGTERM
# does, instead of being an exception in their midst, with its traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from bus.cli.main import main

if __name__ == "__main__":
    main()
