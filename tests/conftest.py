"""What holds for every test: nothing fails because the machine is busy.

Hypothesis takes an example that took long, or that was long in the making, for a fault of the test. Each test has a
timeout of its own.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")
