import atexit
import os
import time

MARK = "rank-1-failed"


def parse(line: str) -> int:
    return int(line)


def work() -> None:
    if os.environ["RANK"] == "1":
        atexit.register(time.sleep, 0.3)
        with open(MARK, "w"):
            pass
        parse("three")
    while not os.path.exists(MARK):
        time.sleep(0.01)
    if os.environ["RANK"] == "0":
        time.sleep(0.05)
        raise ConnectionError("Connection reset by peer")
    time.sleep(1000)


work()
