"""Signals as a shell in the foreground leaves them."""

from __future__ import annotations

import signal


def heed_signals() -> None:
    """Give signals that were ignored when this process was started their usual dispositions.

    A job in the background of a script has SIGINT and SIGQUIT ignored, and one under nohup SIGHUP.
    lllaunch keeps what is ignored, so what is tried with signals would show nothing.
    """
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
