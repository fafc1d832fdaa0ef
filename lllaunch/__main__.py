"""The command line: ``python -m lllaunch`` and ``lllaunch``."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys

try:
    from lllaunch.app.command_line import (
        HIDDEN_VERBS,
        OWN_FLAGS,
        VERBS,
        WrongUsage,
        choices,
        help_text,
        only_asks,
        prestarted,
        program,
        read,
    )
    from lllaunch.errors import ExitCode, for_signal
    from lllaunch.signal_source import ENDING
    from lllaunch.verbs import verb
except KeyboardInterrupt:
    # nothing has begun yet; from here on the command line answers it
    sys.exit(130)

_MOST_NAMES = 30
_SHORT = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_USAGE = """\
usage: {0} [OPTION ...] [KEY=VALUE ...] SCRIPT [ARGUMENT ...]   run a script
       {0} +exp=NAME [KEY=VALUE ...]            run conf/exp/NAME.yaml
       {0} -m +exp=NAME KEY=VALUE,VALUE ...     sweep over values
       {0} {{{1}}} ...
       {0} --help                               all commands, options and settings
"""


def main() -> int:
    """Run ``python -m lllaunch`` on ``sys.argv`` and return its exit code."""
    try:
        return _main(sys.argv[1:])
    except OSError as error:
        # so short that nothing can be imported either, which would say it better
        if error.errno not in _SHORT:
            raise
        print(f"lllaunch: cannot start: {error.strerror}", file=sys.stderr)
        return ExitCode.ERROR


def _main(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words:
        sys.stderr.write(_USAGE.format(program(), ",".join(VERBS)))
        try:
            names = sorted(name[:-5] for name in os.listdir("conf/exp") if name.endswith(".yaml"))
        except OSError:
            names = []
        if names:
            more = ", ..." if len(names) > _MOST_NAMES else ""
            sys.stderr.write(f"\nin conf/exp: {', '.join(names[:_MOST_NAMES])}{more}\n")
        return ExitCode.CONFIG
    if words[0] in {*VERBS, *HIDDEN_VERBS}:
        return _perform(words[0], words[1:])
    try:
        line = read(words)
        for show, *flags in ((_show_help, "--help", "-h"), (_show_version, "--version", "-V")):
            if line.asks(*flags):
                return show()
        if line.asks("-sc", "--shell-completion") and "COMP_LINE" in os.environ:
            return _complete()
        return _run(line.words, quiet=line.asks(*OWN_FLAGS))
    except WrongUsage as wrong:
        print(f"lllaunch: {wrong}", file=sys.stderr)
        return ExitCode.CONFIG


def _run(words: list[str], *, quiet: bool = False) -> int:
    """Run the Hydra app."""
    sys.argv[1:] = words
    if only_asks(words):
        end_quietly_without_reader()
    # imports and composing make next to no garbage, and looking for it takes a twentieth of their
    # time; the app enables collection again before it runs anything
    gc.disable()
    try:
        with prestarted(words) as spawner:
            # imports Hydra, while the spawner's interpreter starts
            from lllaunch.app.app import Jobs, run  # noqa: PLC0415

            return run(Jobs(spawner, quiet=quiet))
    except KeyboardInterrupt:
        return for_signal(signal.SIGINT)


def _perform(name: str, argv: list[str]) -> int:
    if name not in {"rerun", "job"}:
        end_quietly_without_reader()
    try:
        return verb(name)(argv)
    except KeyboardInterrupt:
        return for_signal(signal.SIGINT)


def _complete() -> int:
    # the shell would write it into the prompt
    with open(os.devnull, "wb") as silenced:
        os.dup2(silenced.fileno(), 2)
    print("\n".join(choices(os.environ["COMP_LINE"], _run)))
    return ExitCode.SUCCESS


def _show_help() -> int:
    end_quietly_without_reader()
    print(_USAGE.format(program(), ",".join(VERBS)) + help_text(), end="")
    return ExitCode.SUCCESS


def _show_version() -> int:
    # 20 ms that are rarely needed
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    python = ".".join(map(str, sys.version_info[:3]))
    found = f"torch {torch}, Hydra {version('hydra-core')}, Python {python}"
    print(f"lllaunch {version('lllaunch')} ({found})")
    return ExitCode.SUCCESS


def end_quietly_without_reader() -> None:
    """End this process with success when nobody reads on what it shows, as in ``... | head``.

    Not for what runs something: a run does not end for want of a reader.
    """
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGPIPE, lambda *_: os._exit(ExitCode.SUCCESS))


def end(code: int) -> None:
    """Ends this process without tearing down the interpreter, which takes longer than a short run.

    What others see of an end is done: atexit functions, and the flush of the standard streams. The
    spawner is gone and every file of the run is closed by now.

    ``code``: exit status.
    """
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
