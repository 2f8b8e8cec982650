"""What holds for every test: nothing fails because the machine is busy, or because of how the tests were started.

Hypothesis takes an example that took long, or that was long in the making, for a fault of the test. Its examples follow
from the test's code, so that a run of the tests has the same outcome as the one before; `--hypothesis-profile=explore`
draws others, and more. Each test has a timeout of its own. A shell that starts the tests in the background has them,
and the programs that they start, ignore Ctrl-C, which some of these are tested for.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("any-machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("any-machine"), derandomize=False, max_examples=1_000)
settings.load_profile("any-machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
