import os
import signal
import time


def write_checkpoint() -> None:
    if os.environ["RANK"] == "3":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)


write_checkpoint()
