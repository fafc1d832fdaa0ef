import ctypes
import os
import time


def native_kernel() -> None:
    ctypes.string_at(0)


def step() -> None:
    if os.environ["RANK"] == "1":
        native_kernel()
    time.sleep(1000)


step()
