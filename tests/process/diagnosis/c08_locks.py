import os
import threading
import time

cache_lock, queue_lock = threading.Lock(), threading.Lock()
both = threading.Barrier(2)


def producer() -> None:
    with cache_lock:
        both.wait()
        with queue_lock:
            pass


def consume() -> None:
    with queue_lock:
        both.wait()
        with cache_lock:
            pass


if os.environ["RANK"] == "1":
    threading.Thread(target=producer, name="producer").start()
    consume()
time.sleep(1000)
