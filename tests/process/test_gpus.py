"""On a machine with NVIDIA GPUs and a torch for them: what a real driver says, and what is said."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import launch, text_of

from lllaunch.linux.gpus import GpusUnknown, list_gpus

GPUS = 0
with contextlib.suppress(GpusUnknown):
    GPUS = len(list_gpus(None))
pytestmark = pytest.mark.skipif(not GPUS, reason="there is no NVIDIA GPU")

WORKER = """
import os, signal, sys, time
import torch

def count():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    print(torch.ones(8, device=device).sum().item(), flush=True)

def memory():
    kept = []
    while True:
        kept.append(torch.empty(4 << 30, dtype=torch.uint8, device="cuda"))

def ordinal():
    torch.cuda.set_device(torch.cuda.device_count())

def check():
    print(torch.nn.Embedding(4, 4).cuda()(torch.tensor([9]).cuda()).sum().item())

def nccl():
    torch.distributed.init_process_group("nccl")
    torch.distributed.all_reduce(torch.ones(1, device="cuda:0"))

def killed():
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free * 2 // 3, dtype=torch.uint8, device="cuda")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)

def endless():
    for _ in range(1000):
        torch.cuda._sleep(1 << 40)
    torch.cuda.synchronize()

def busy():
    x = torch.ones(4096, 4096, device="cuda")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        (x @ x).sum().item()

globals()[sys.argv[1]]()
"""


@pytest.fixture
def worker(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "worker.py").write_text(WORKER)
    return {"entrypoint": "worker.py", "grace_period": "2s"}


def test_each_gpu_has_a_worker_and_torch_may_be_preloaded(tmp_path, worker):
    run = launch(tmp_path, worker | {"args": ["count"], "nproc": "gpu", "preload": ["torch"]})
    assert run.code == 0, run.err
    assert [run.log(rank) for rank in range(GPUS)] == [b"8.0\n"] * GPUS


@pytest.mark.parametrize(
    ("what", "nproc", "said"),
    [
        ("memory", 1, "rank 0 (attempt 0) ran out of device memory: CUDA out of memory."),
        ("ordinal", 1, "There is no GPU with the number that it asked for"),
        ("check", 1, "often of an index: `srcIndex < srcSelectDimSize` (Indexing.cu)"),
        ("nccl", 2, "NCCL invalid usage: Duplicate GPU detected : rank"),
    ],
)
def test_what_fails_on_a_gpu_is_explained(tmp_path, worker, what, nproc, said):
    run = launch(tmp_path, worker | {"args": [what], "nproc": nproc})
    assert run.code == 3
    assert said in " ".join(run.err.split())


def test_a_restart_finds_the_memory_of_a_killed_worker_free(tmp_path, worker):
    run = launch(tmp_path, worker | {"args": ["killed"], "max_restarts": 1})
    assert run.code == 0, run.err
    assert "died of SIGKILL; restarting (1 of 1)" in run.err


def test_a_kernel_that_never_ends_is_a_hang(tmp_path, worker):
    watchdog = {"stall": "3s", "spin": "3s"}
    run = launch(tmp_path, worker | {"args": ["endless"], "watchdog": watchdog})
    assert run.code == 4
    assert "in endless: torch.cuda.synchronize()" in run.err
    assert "in synchronize" in text_of(run.run_dir / "attempt_0" / "0" / "stacks.txt")


def test_show_tells_what_gpus_did(tmp_path, worker):
    run = launch(tmp_path, worker | {"args": ["busy"], "samples": "1s"})
    assert run.code == 0, run.err
    command = [sys.executable, "-m", "lllaunch", "show", str(run.run_dir)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "GPU use" in shown
    assert "GPU memory" in shown


def test_jobs_of_a_sweep_have_a_gpu_each(tmp_path, worker):
    node = worker | {"args": ["count"]}
    run = launch(tmp_path, node, "-m", "+x=range(3)", "hydra.sweep.dir=sweep")
    assert run.code == 0, run.err
    assert "on GPU 0" in run.err
    assert run.out.count("8.0") == 3
