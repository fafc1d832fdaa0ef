"""Dumps of faulthandler and py-spy, as several versions write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.watchdog.collector import as_dump, complaint
from lllaunch.watchdog.evidence import Frame
from lllaunch.watchdog.frames import MAX_FRAMES, main_frames, threads_of, users_part


def written(text: str) -> tuple[Frame, ...]:
    return main_frames(threads_of(text))


def spied(*threads: tuple[int, str | None, list[tuple[str, str, int]]]) -> tuple[Frame, ...]:
    """The main thread of what py-spy tells of process 5676: numbers, names, frames."""
    told = [
        {
            "pid": 5676,
            "os_thread_id": number,
            "thread_name": name,
            "frames": [
                {"name": function, "filename": file, "line": line, "is_entry": False}
                for function, file, line in frames
            ],
        }
        for number, name, frames in threads
    ]
    return main_frames(threads_of(as_dump(json.dumps(told).encode())))


# Python 3.10 to 3.12.
OLDER = """\
Thread 0x00007f29870a16c0 (most recent call first):
  File "/t/d.py", line 2 in deep
  File "/usr/lib/python3.10/threading.py", line 953 in run

Current thread 0x00007f29879b9b80 (most recent call first):
  File "/t/d.py", line 5 in main
  File "/t/d.py", line 6 in <module>
"""
# Python 3.13 and 3.14 name the threads.
NEWER = """\
Thread 0x00007ff8b7fbb6c0 [pin: memory] (most recent call first):
  Garbage-collecting
  File "/t/d.py", line 2 in deep

Current thread 0x00007ff8b8a41b80 [python] (most recent call first):
  File "/t/d.py", line 5 in main
"""


def test_the_main_thread_is_the_last_one() -> None:
    assert written(OLDER) == (
        Frame("/t/d.py", 5, "main"),
        Frame("/t/d.py", 6, "<module>"),
    )
    assert written(NEWER) == (Frame("/t/d.py", 5, "main"),)
    # more frames than are listed do not mean more threads
    text = OLDER.replace('  File "/usr', '  ...\n  File "/usr')
    assert written(text)[0].function == "main"
    bare = OLDER.partition('  File "/t/d.py", line 5')[0] + "  <no Python frame>\n"
    assert written(bare) == ()


def test_the_current_thread_counts_where_not_all_are_listed() -> None:
    other, current = OLDER.split("\n\n")
    assert written(f"{current}\n{other}\n\n...\n")[0].function == "main"
    assert written(f"{other}\n\n{other}\n\n...\n") == ()


def test_the_c_stack_of_newer_versions_is_not_a_thread() -> None:
    text = f"""{NEWER}
Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x48 [0x6a1c9e]
  <truncated rest of calls>
"""
    assert written(text) == (Frame("/t/d.py", 5, "main"),)


def test_escapes_and_unknown_lines() -> None:
    text = (
        "Current thread 0x1f (most recent call first):\n"
        '  File "/home/jos\\xe9/\\u4f60 "x", line 1 in y.py", line ??? in f\\x0a\n'
    )
    assert written(text) == (Frame('/home/josé/你 "x", line 1 in y.py', 0, "f\\x0a"),)


def test_pyspy() -> None:
    deep, inner = [("deep", "/t/h.py", 2)], [("inner", "/t/inner.py", 4)]
    main = [("main", "/t/a (b):c.py", 4), ("<module>", "/t/h.py", 5)]
    found = (Frame("/t/a (b):c.py", 4, "main"), Frame("/t/h.py", 5, "<module>"))
    assert spied((5679, "my (odd): thread", deep), (5676, "MainThread", main)) == found
    # In another PID namespace the numbers differ; the name is left.
    assert spied((7, "other", deep), (5, "MainThread", main), (9, None, deep)) == found
    # one that bears no name is the main one if it is the only one
    assert spied((1, None, inner)) == (Frame("/t/inner.py", 4, "inner"),)
    assert spied((1, None, inner), (2, None, inner)) == ()
    assert spied() == ()
    with pytest.raises(ValueError, match="malformed"):
        as_dump(b"Error: Permission Denied")


LINES = st.sampled_from([*OLDER.splitlines(), *NEWER.splitlines(), "  ..."])


@given(st.lists(LINES | st.text(max_size=8)).map("\n".join))
def test_garbage_hurts_nobody(text: str) -> None:
    frames = written(text)
    assert len(frames) <= MAX_FRAMES
    assert all(isinstance(frame, Frame) for frame in frames)


def test_what_pyspy_complains_of_fits_a_line() -> None:
    failed = "Error: Failed\n\nCaused by:\n    0: no\n\nStack backtrace:\n  0: x"
    assert complaint(failed, 1) == "Error: Failed Caused by: 0: no"
    assert complaint("", 2) == "exit status 2"
    assert complaint("", -9) == "it ended by SIGKILL"
    denied = "Permission Denied: Try running again with elevated permissions by going 'sudo !!'"
    assert complaint(denied, 1).startswith("permission denied")
    assert "sudo" not in complaint(denied, 1)


def test_the_frames_that_call_a_users_function_are_left_out() -> None:
    mine = [Frame("/home/me/app.py", 7, "step"), Frame("/home/me/app.py", 9, "main")]
    ours = [
        Frame("/x/lllaunch/app/own_worker.py", 84, "run_in_worker"),
        # the script that has called its app, in whose place the function runs
        Frame("/x/lllaunch/app/own_worker.py", 80, "call_in_worker"),
        Frame("/home/me/app.py", 20, "<module>"),
        Frame("/x/lllaunch/failure.py", 5, "wrapper"),
        Frame("/x/lllaunch/spawner/worker.py", 103, "_call"),
    ]
    assert users_part([*mine, *ours]) == tuple(mine)
    assert users_part([*mine, *ours[3:]]) == tuple(mine)
    assert users_part(ours) == tuple(ours)
