"""``python -m lllaunch``."""

from __future__ import annotations

import sys

try:
    from lllaunch.cli import main
except KeyboardInterrupt:
    # nothing has begun yet; from here on the command line answers it
    sys.exit(130)


def end(code: int) -> None:
    """Ends this process without tearing down the interpreter, which takes longer than a short run.

    What others see of an end is done: atexit functions, and the flush of the standard streams. The
    spawner is gone and every file of the run is closed by now.

    ``code``: exit status.
    """
    import atexit  # noqa: PLC0415 - at the end only
    import contextlib  # noqa: PLC0415
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415

    from lllaunch.signal_source import ENDING  # noqa: PLC0415

    # what comes now ends it, too, and with the same status
    for signum in ENDING:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, lambda *_: os._exit(code))
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # its reader may be gone, or it was never there
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def run() -> None:
    """Entry of the command ``lllaunch``."""
    end(main())


if __name__ == "__main__":
    run()
