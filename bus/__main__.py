"""`python -m bus` is the `bus` command."""

from bus.cli.main import main

main()
