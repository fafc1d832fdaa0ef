"""Failures that nobody had listed: `failures.py NAME` is what each of four workers runs.

The line that a report should name ends with `# here: NAME`; benchmarks/diagnosis.py says what else.
"""

import asyncio
import ctypes
import datetime as dt
import fcntl
import json
import mmap
import multiprocessing
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ["RANK"])
ONE = torch.ones(1)
LONG = 1000.0  # seconds


def join(seconds: float = 600) -> None:
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=seconds))


def wait_for_ever() -> None:
    time.sleep(LONG)


def burn(seconds: float = LONG) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


# Collectives


def timeout() -> None:
    join(3)
    dist.all_reduce(ONE)
    if RANK == 2:
        time.sleep(LONG)  # here: timeout
    dist.all_reduce(ONE)


def straggler() -> None:
    join()
    for _ in range(12):
        time.sleep(1 if RANK == 1 else 0.1)  # here: straggler
        dist.all_reduce(ONE)


def subgroup() -> None:
    join()
    group = dist.new_group([1, 2, 3])
    if RANK in {1, 3}:
        dist.all_reduce(ONE, group=group)
    dist.all_reduce(ONE)  # here: subgroup


def dtype() -> None:
    join()
    dist.all_reduce(ONE)
    kind = torch.float64 if RANK == 2 else torch.float32
    dist.all_reduce(torch.ones(4, dtype=kind))  # here: dtype


def broadcast() -> None:
    join()
    group = dist.new_group([1, 2, 3])
    if RANK == 2:
        time.sleep(LONG)  # here: broadcast
    if RANK:
        dist.broadcast(ONE, 1, group=group)
    dist.barrier()


def one_more() -> None:
    join()
    for _ in range(6 if RANK == 3 else 5):
        dist.all_reduce(ONE)  # here: one_more


def other_kind() -> None:
    join()
    dist.all_reduce(ONE)
    if RANK == 1:
        dist.broadcast(torch.ones(8), 1)  # here: other_kind
    else:
        dist.all_reduce(torch.ones(8))
    dist.barrier()


def receive() -> None:
    join()
    if RANK == 0:
        dist.recv(ONE, 3)  # here: receive
    dist.barrier()


def monitored() -> None:
    join()
    if RANK == 2:
        time.sleep(LONG)  # here: monitored
    dist.monitored_barrier(timeout=dt.timedelta(seconds=3))


def finally_gathers() -> None:
    join()
    try:
        dist.all_reduce(ONE)
        if RANK == 1:
            raise ValueError("label 11 of 10 classes")  # here: finally_gathers
        dist.all_reduce(ONE)
    finally:
        dist.all_gather([torch.ones(1) for _ in range(4)], ONE)


def save_on_rank_0() -> None:
    join()
    if RANK == 0:
        raise OSError(28, "No space left on device", "/scratch/last.pt")  # here: save_on_rank_0
    dist.barrier()


# Resources


def cpu_limit() -> None:
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
        burn()  # here: cpu_limit
    wait_for_ever()


def cpu_signal() -> None:
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_CPU, (2, 60))
        burn()  # here: cpu_signal
    wait_for_ever()


def file_size() -> None:
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        with open("checkpoint", "wb", 0) as file:
            while True:
                file.write(bytes(1 << 19))  # here: file_size
    wait_for_ever()


def descriptors() -> None:
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        kept = []
        while True:
            kept.append(socket.socket())  # here: descriptors
    wait_for_ever()


def address_space() -> None:
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        bytearray(16 << 30)  # here: address_space
    wait_for_ever()


def full_disk() -> None:
    if RANK == 1:
        torch.save(torch.ones(4 << 20), "small/last.pt")  # here: full_disk
    wait_for_ever()


def truncated() -> None:
    if RANK == 1:
        with open("shard", "wb+") as file:
            file.truncate(1 << 16)
            pages = mmap.mmap(file.fileno(), 1 << 16)
            file.truncate(0)
            pages[1 << 15]  # here: truncated
    wait_for_ever()


# Threads and children


def square(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def pool() -> None:
    if RANK == 1:
        with multiprocessing.Pool(2) as workers:
            workers.map(square, range(8), 1)  # here: pool


def thread_lives() -> None:
    if RANK == 1:
        threading.Thread(target=wait_for_ever, name="uploader").start()
        raise ValueError("label 11 of 10 classes")  # here: thread_lives
    wait_for_ever()


def abort() -> None:
    def decode() -> None:
        time.sleep(1)
        os.abort()  # here: abort

    if RANK == 1:
        threading.Thread(target=decode, name="decoder").start()
    wait_for_ever()


def future() -> None:
    def load(shard: int) -> int:
        return [0, 1, 2][shard]  # here: future

    if RANK == 1:
        with ThreadPoolExecutor() as threads:
            list(threads.map(load, range(4)))
    wait_for_ever()


class Samples(Dataset):
    """64 numbers, the tenth of which cannot be read."""

    def __init__(self, fail: Callable[[], object]) -> None:
        self.fail = fail

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if index == 9:
            self.fail()
        return index


def read_null() -> None:
    ctypes.string_at(0)  # here: loader_segfault


def divide() -> None:
    raise ValueError("image 9 has no pixels")  # here: loader_raises


def loader_segfault() -> None:
    if RANK == 1:
        for _ in DataLoader(Samples(read_null), num_workers=2):
            pass
    wait_for_ever()


def loader_raises() -> None:
    if RANK == 1:
        for _ in DataLoader(Samples(divide), num_workers=2):
            pass
    wait_for_ever()


def loader_pickles() -> None:
    if RANK == 1:
        samples = Samples(lambda: None)
        batches = DataLoader(samples, num_workers=1, multiprocessing_context="spawn")
        next(iter(batches))  # here: loader_pickles
    wait_for_ever()


def child_fails() -> None:
    if RANK == 1:
        command = ["sh", "-c", "echo no such tokenizer >&2; exit 4"]
        subprocess.run(command, check=True)  # here: child_fails
    wait_for_ever()


def file_lock() -> None:
    with open("cache.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # here: file_lock
        wait_for_ever()


# Exceptions and exits


def deep(number: int) -> int:
    return deeper(number + 1)  # here: recursion


def deeper(number: int) -> int:
    return deep(number + 1)


def recursion() -> None:
    if RANK == 1:
        deep(0)
    wait_for_ever()


def exits_0() -> None:
    join()
    dist.all_reduce(ONE)
    if RANK == 1:
        sys.exit(0)  # here: exits_0
    dist.all_reduce(ONE)


def exits_hard() -> None:
    if RANK == 2:
        os._exit(7)  # here: exits_hard
    wait_for_ever()


def exits_with_text() -> None:
    if RANK == 2:
        sys.exit("the tokenizer has 32000 words, the model 50257")  # here: exits_with_text
    wait_for_ever()


def chained() -> None:
    if RANK == 1:
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("the index of shard 7 is broken") from error  # here: chained
    wait_for_ever()


def group() -> None:
    if RANK == 1:
        raise ExceptionGroup("2 uploads failed", [OSError("a"), TimeoutError("b")])  # here: group
    wait_for_ever()


def anomaly() -> None:
    if RANK == 1:
        torch.autograd.set_detect_anomaly(True)
        wrong = torch.sqrt(torch.full((1,), -1.0, requires_grad=True))  # here: anomaly
        wrong.sum().backward()
    wait_for_ever()


def no_cuda() -> None:
    if RANK == 1:
        torch.cuda.set_device(0)  # here: no_cuda
    wait_for_ever()


def address() -> None:
    os.environ["MASTER_ADDR"] = "trainer-0.invalid"
    join(8)  # here: address


def missing_file() -> None:
    Path("data/train.json").read_text()  # here: missing_file


def not_a_number() -> None:
    from lllaunch import progress  # noqa: PLC0415 - not under torchrun

    for step in range(60):
        wrong = RANK == 1 and step >= 12
        progress(step, 60, loss=float("nan") if wrong else 1.0)  # here: not_a_number
        time.sleep(0.1)


# Signals


def terminated() -> None:
    if RANK == 2:
        Path("ready").write_text(str(os.getpid()))
    wait_for_ever()  # here: terminated


def ignores() -> None:
    if RANK == 3:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)
    if RANK == 1:
        raise ValueError("label 11 of 10 classes")  # here: ignores
    wait_for_ever()


# At work


def compiles() -> None:
    join()
    if RANK == 1:
        # a second of native code at a time
        code = torch.ones(1500, 1500)
        end = time.monotonic() + 12
        while time.monotonic() < end:
            code @ code  # here: compiles
    dist.all_reduce(ONE)


def downloads() -> None:
    join()
    if RANK == 1:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()

        def send() -> None:
            for _ in range(120):
                time.sleep(0.1)
                theirs.send(bytes(1 << 16))
            theirs.close()

        threading.Thread(target=send, daemon=True).start()
        while ours.recv(1 << 20):  # here: downloads
            pass
    dist.all_reduce(ONE)


# Made up when all of those above were settled


def uneven() -> None:
    join()
    for _ in range(5 if RANK == 3 else 6):
        dist.all_reduce(ONE)
    dist.barrier()  # here: uneven


def loader_hangs() -> None:
    def load() -> None:
        time.sleep(LONG)  # here: loader_hangs

    join()
    if RANK == 1:
        for _ in DataLoader(Samples(load), num_workers=2):
            pass
    dist.all_reduce(ONE)


def order() -> None:
    join()
    dist.all_reduce(ONE)
    if RANK == 2:
        dist.all_gather([torch.ones(1) for _ in range(4)], ONE)  # here: order
    dist.all_reduce(ONE)
    if RANK != 2:
        dist.all_gather([torch.ones(1) for _ in range(4)], ONE)


def thread_dies() -> None:
    shards: queue.Queue[int] = queue.Queue()

    def read() -> None:
        raise ValueError("shard 7 is empty")  # here: thread_dies

    join()
    if RANK == 1:
        threading.Thread(target=read, name="reader").start()
        shards.get()
    dist.all_reduce(ONE)


async def fetch() -> None:
    await asyncio.get_running_loop().create_future()  # here: awaits


def awaits() -> None:
    join()
    if RANK == 1:
        asyncio.run(fetch())
    dist.all_reduce(ONE)


def killed_by_child() -> None:
    if RANK == 2:
        subprocess.run(["sh", "-c", "kill -9 $PPID"], check=False)  # here: killed_by_child
    wait_for_ever()


def native_recursion() -> None:
    if RANK == 1:
        sys.setrecursionlimit(10**8)
        nested: list[object] = []
        for _ in range(10**6):
            nested = [nested]
        repr(nested)  # here: native_recursion
    wait_for_ever()


def world_size() -> None:
    dist.init_process_group("gloo", world_size=5, rank=RANK)  # here: world_size


def fifo() -> None:
    join()
    if RANK == 1:
        os.mkfifo("shards")
        open("shards").close()  # here: fifo
    dist.all_reduce(ONE)


def alarm() -> None:
    if RANK == 1:
        signal.alarm(1)
    wait_for_ever()  # here: alarm


if __name__ == "__main__":
    globals()[sys.argv[1]]()
