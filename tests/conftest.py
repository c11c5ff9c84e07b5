"""Fixtures that any test may ask for by name, and the rules for generated examples."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.support.processes.brokers", "tests.support.processes.postgres")

# A busy machine must not fail a test: nothing here asserts how long an example takes.
settings.register_profile("semantic", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("semantic")


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start, also where the tests run in the background.

    A shell that starts a job with ``&`` has it ignore SIGINT, and children would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
