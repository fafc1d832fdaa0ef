"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Give every signal the disposition that a shell in the foreground gives it.

    A job in the background of a script has SIGINT and SIGQUIT ignored, and one under nohup SIGHUP.
    lllaunch keeps what is ignored, so the tests of signals would wait in vain.
    """
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
