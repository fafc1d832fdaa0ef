import ctypes
import os
import time


def decode_video() -> None:
    libc = ctypes.PyDLL(None)
    libc.sleep(1000)


if os.environ["RANK"] == "1":
    decode_video()
time.sleep(1000)
