"""How the place where a worker stands reads. Pure.

File and function names come from workers: they are shortened, and cannot steer a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lllaunch.console.wording import shown_path
from lllaunch.watchdog.stacks.frames import LIBRARY, WRAPPERS

if TYPE_CHECKING:
    from lllaunch.watchdog.stacks.frames import Frame, RankStack

_NAME = 80
_PATH = 100
_CODE = 80
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "R": "running"}


def printable(text: str, limit: int) -> str:
    """Returns a text with control characters written out, shortened in the middle.

    Args:
        text: any text.
        limit: how many characters at most.
    """
    if not text.isprintable():
        text = text.replace("\t", " ").encode("unicode_escape").decode("ascii")
    return shortened(text, limit)


def shortened(text: str, limit: int) -> str:
    """Returns a text of at most so many characters, without its middle if need be."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def _file(path: str, cwd: str) -> str:
    """Returns a source file as it is told: a library's from the library's name on."""
    library = LIBRARY.match(path)
    return printable(path[library.end() :] if library else shown_path(path, cwd), _PATH)


def _is_own(frame: Frame) -> bool:
    """Whether a frame is of the user's code, as far as its path tells."""
    return not frame.file.startswith("<") and LIBRARY.match(frame.file) is None


def frame_text(frame: Frame, cwd: str) -> str:
    """Returns ``train.py:40 in sync: all_reduce(x)``.

    Args:
        frame: a call; the code is shown where it is the user's.
        cwd: directory that paths below it are shown relative to.
    """
    text = f"{_file(frame.file, cwd)}:{frame.line} in {printable(frame.function, _NAME)}"
    code = printable(frame.code.strip(), _CODE) if _is_own(frame) else ""
    return f"{text}: {code}" if code else text


def call_text(stack: RankStack, cwd: str) -> str:
    """Returns what the user's code called and where: ``in all_reduce (train.py:40)``.

    Args:
        stack: where a worker stands.
        cwd: directory that paths below it are shown relative to.
    """
    own = next((at for at, frame in enumerate(stack.frames) if _is_own(frame)), 0)
    below = [frame for frame in stack.frames[:own] if not frame.file.endswith(WRAPPERS)]
    if not below:
        return place_text(stack, cwd)
    caller = stack.frames[own]
    called = printable(below[-1].function.rpartition(".")[2], _NAME)
    return f"in {called} ({_file(caller.file, cwd)}:{caller.line})"


def place_text(stack: RankStack, cwd: str) -> str:
    """Returns ``in wait (threading.py:320), called at train.py:40``.

    Without Python's frames, what the kernel says; an empty string if nothing is known.

    Args:
        stack: where a worker stands.
        cwd: directory that paths below it are shown relative to.
    """
    if not stack.frames:
        return _kernel_text(stack)
    innermost = stack.frames[0]
    where = f"{_file(innermost.file, cwd)}:{innermost.line}"
    text = f"in {printable(innermost.function, _NAME)} ({where})"
    caller = next((frame for frame in stack.frames if _is_own(frame)), None)
    if caller is None or caller is innermost:
        return text
    return f"{text}, called at {_file(caller.file, cwd)}:{caller.line}"


def _kernel_text(stack: RankStack) -> str:
    wchan = f" ({printable(stack.wchan, _NAME)})" if stack.wchan else ""
    if stack.state == "D":
        return f"in uninterruptible sleep{wchan}"
    if stack.state in _STATES:
        return _STATES[stack.state]
    return f"in the kernel{wchan}" if wchan else ""
