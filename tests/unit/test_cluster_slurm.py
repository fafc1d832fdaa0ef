from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lllaunch.cluster import slurm
from lllaunch.cluster.slurm import (
    JobFacts,
    QueuedJob,
    SlurmFailed,
    SubmitFailed,
    batch_text,
    ending,
    is_full,
    is_mistake,
    parse_queue,
)
from lllaunch.errors import ConfigError, OutputError
from lllaunch.spec import Cluster, Requeue


def record(*fields: str) -> str:
    return "\x1f".join(fields) + "\x1e\n"


def test_jobs_of_a_queue_may_have_any_names() -> None:
    text = (
        record("7", "RUNNING", "None", "node[0-1]", "/a|b\nc d", "x\ty|z", "1700000000")
        + record("8_3", "PENDING", "ReqNodeNotAvail, UnavailableNodes:node1", "", "/w", "", "N/A")
        + record("9", "PENDING", "Priority", "(null)", "/w", "n", "N/A")
    )
    assert [*parse_queue(text)] == [
        QueuedJob("7", "RUNNING", "None", "node[0-1]", "/a|b\nc d", "x\ty|z", 1.7e9),
        QueuedJob("8_3", "PENDING", "ReqNodeNotAvail, UnavailableNodes:node1", "", "/w", ""),
        QueuedJob("9", "PENDING", "Priority", "", "/w", "n"),
    ]
    assert [*parse_queue("")] == []
    assert [*parse_queue("slurm: something else\n")] == []


def test_what_slurm_says_of_a_job(tool: Tool) -> None:
    def told(*columns: str) -> JobFacts | None:
        tool("squeue", f"echo '{''.join(each.ljust(200) for each in columns)}'")
        return slurm.job_facts("12")

    running = ("RUNNING", "None", "2", "1795405044", "N/A")
    assert told(*running) == JobFacts("RUNNING", "None", 2, 1795405044.0)
    waiting = told("PENDING", "ReqNodeNotAvail, May be reserved", "0", "N/A", "N/A")
    assert waiting == JobFacts("PENDING", "ReqNodeNotAvail, May be reserved")
    assert told(*running[:4], "1795401500") == JobFacts(
        "RUNNING", "None", 2, 1795405044.0, 1795401500.0
    )
    tool("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm.job_facts("12") is None


@pytest.mark.parametrize(
    ("facts", "count", "expected"),
    [
        ({}, 2, None),
        ({"state": "COMPLETING"}, 2, "cancelled"),
        ({"state": "COMPLETING"}, 1, "requeued"),
        ({"state": "PENDING", "reason": "BeginTime"}, 0, "requeued"),
        ({"state": "COMPLETING", "reason": "TimeLimit"}, 2, "timeout"),
        ({"state": "COMPLETING", "reason": "NodeDown"}, 2, "node_failure"),
        ({"state": "TIMEOUT"}, 2, "timeout"),
        ({"state": "CANCELLED"}, 2, "cancelled"),
        ({"state": "SOMETHING_NEW"}, 2, None),
        # time of grace, and without --requeue
        ({"preempt_time": 5.0}, 2, "preempted"),
        ({"state": "COMPLETING", "preempt_time": 5.0}, 2, "preempted"),
    ],
)
def test_why_a_job_is_ended(facts: dict[str, Any], count: int, expected: str | None) -> None:
    assert ending(JobFacts(**{"state": "RUNNING", "restarts": 2, **facts}), count) == expected


@pytest.mark.parametrize(
    ("said", "mistake"),
    [
        ("sbatch: error: invalid partition specified: gpux", True),
        ("sbatch: unrecognized option '--foo'", True),
        ("Batch job submission failed: Requested time limit is invalid (missing or ...)", True),
        ("Batch job submission failed: Invalid job credential", False),
        ("Batch job submission failed: Invalid user id", False),
        ("Unable to contact slurm controller (connect failure)", False),
        ("Batch job submission failed: Socket timed out on send/recv operation", False),
    ],
)
def test_who_is_wrong(said: str, mistake: bool) -> None:
    assert is_mistake(said) is mistake


# Batch files


def lines(cluster: Cluster, **given: Any) -> list[str]:
    usual = {"command": ["run"], "directory": "/d", "output": "/d/log", "name": "n"}
    return batch_text(cluster, **{**usual, **given}).splitlines()


OURS = [
    "#SBATCH --chdir=/d",
    "#SBATCH --job-name=n",
    "#SBATCH --nodes=1",
    "#SBATCH --ntasks-per-node=1",
    "#SBATCH --open-mode=append",
    "#SBATCH --output=/d/log",
    "#SBATCH --requeue",
    "#SBATCH --signal=USR2@90",
]
SRUN = "srun --unbuffered --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0"
# the end may be announced before lllaunch is there to take note of it
DEAF = """sh -c 'trap "" USR2; exec "$@"' sh"""


def test_what_is_left_to_the_site_is_not_asked_for() -> None:
    found = lines(Cluster())
    assert found == ["#!/bin/bash", "", *OURS, "", f"exec {SRUN} {DEAF} run"]


SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"partition": "gpu", "account": "a b"}, ["partition=gpu", "account='a b'"]),
    ({"timeout_min": 90}, ["time=90"]),
    ({"mem_gb": 0.5}, ["mem=512MB"]),
    ({"mem_gb": "16G"}, ["mem=16G"]),
    ({"gres": "gpu:a100:8"}, ["gres=gpu:a100:8"]),
    ({"constraint": "a&b", "exclude": "n[1-2]"}, ["constraint='a&b'", "exclude='n[1-2]'"]),
    ({"exclusive": True}, ["exclusive"]),
    ({"exclusive": False, "comment": None}, []),
    # what only submitit's executor knows
    ({"max_num_timeout": 3, "array_parallelism": 5, "tasks_per_node": 1}, []),
    ({"stderr_to_stdout": True, "use_srun": False, "submitit_folder": "/x"}, []),
    (
        {"additional_parameters": {"hint": "a b", "no_kill": True, "x11": None}},
        ["hint='a b'", "no-kill"],
    ),
    # the same option by another name
    ({"mem_gb": 4, "additional_parameters": {"mem": "9G"}}, ["mem=9G"]),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "expected"), SETTINGS)
def test_settings_are_options(settings: dict[str, Any], expected: list[str]) -> None:
    found = [line for line in lines(Cluster(settings)) if line.startswith("#SBATCH")]
    assert found == sorted(found)
    assert {*found} == {*OURS, *(f"#SBATCH --{each}" for each in expected)}
    assert len(found) == len(OURS) + len(expected)


def test_nothing_that_is_relied_on_can_be_asked_for_otherwise() -> None:
    files = dict.fromkeys(("output", "error", "chdir"), "/x")
    others = {"nodes": 9, "requeue": True, "no_requeue": True, "array": "0-3", "ntasks_per_node": 8}
    further = {**files, **others, "open-mode": "truncate", "signal": "B:USR1@3"}
    found = lines(Cluster({"additional_parameters": further}))
    assert found == lines(Cluster())


def test_a_job_that_is_never_taken_back_says_so() -> None:
    def said(requeue: Requeue, **given: Any) -> list[str]:
        return [each for each in lines(Cluster(requeue=requeue), **given) if "requeue" in each]

    assert said(Requeue(0, 0, 1)) == ["#SBATCH --requeue"]
    assert said(Requeue(0, 0, 0)) == ["#SBATCH --no-requeue"]
    # one that is tried again when it fails is taken back, too
    assert said(Requeue(0, 0, 0), retries=True) == ["#SBATCH --requeue"]


def test_an_announcement_does_not_end_what_has_not_begun() -> None:
    *_, last = lines(Cluster(), command=["sh", "-c", "kill -USR2 $$; echo $1", "sh", "a b"])
    words = shlex.split(last)
    task = words[words.index("--wait=0") + 1 :]
    done = subprocess.run(task, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "a b\n"


def test_nodes_delay_name_and_array() -> None:
    cluster = Cluster({"name": "given"}, nodes=4, signal_delay_s=300)
    found = lines(cluster, output="/d 50%/log-%a", directory="/d 50%", array=(12, 5))
    assert {
        "#SBATCH --nodes=4",
        "#SBATCH --signal=USR2@300",
        "#SBATCH --job-name=given",
        "#SBATCH --array=0-11%5",
        "#SBATCH --chdir='/d 50%'",
        "#SBATCH --output='/d 50%%/log-%a'",
    } < {*found}
    assert "submitit" not in "\n".join(found).lower()


def test_the_command_is_quoted_and_srun_gets_its_arguments() -> None:
    settings = {"cpus_per_task": 8, "srun_args": ["--mpi=none", "-vv x"]}
    *_, last = lines(Cluster(settings), command=["/a b/python", "-c", "print('$x')", "ü"])
    assert last == (
        "exec srun --unbuffered --ntasks-per-node=1 --cpus-per-task=8 --kill-on-bad-exit=0 "
        f"--wait=0 --mpi=none '-vv x' {DEAF} '/a b/python' -c 'print('\"'\"'$x'\"'\"')' 'ü'"
    )


def test_setup_comes_before_and_teardown_after() -> None:
    settings = {"setup": ["module load cuda", "export A=b"], "teardown": "rm -rf $TMP"}
    found = lines(Cluster({**settings, "setup_strict": False}))
    assert found[2 + len(OURS) :] == [
        *("", "module load cuda", "export A=b", ""),
        *("trap : TERM", f"{SRUN} {DEAF} run", "status=$?", "", "rm -rf $TMP", "exit $status"),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"directory": "/a\nb"},
            "the run's directory: '/a\\nb' cannot be an option of sbatch, as --chdir would be",
        ),
        ({"name": "a\nb"}, "cluster.job_name: "),
    ],
)
def test_what_cannot_be_written_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lines(Cluster(), **given)
    assert str(caught.value).startswith(said)
    assert [each.code for each in caught.value.problems] == ["cluster"]


# Commands that are none of Slurm's

Tool = Callable[[str, str], None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Makes a command that says something."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "PAUSES", (0.0, 0.0))

    def make(name: str, script: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


@pytest.mark.parametrize("teardown", [[], ["echo end"]])
def test_a_setup_line_that_fails_ends_the_job_unless_it_may(
    tool: Tool, teardown: list[str]
) -> None:
    tool("srun", "echo ran; exit 3")

    def runs(**settings: Any) -> tuple[int, str, str]:
        text = "\n".join(lines(Cluster({**settings, "teardown": teardown})))
        done = subprocess.run(
            ["bash"], input=text, capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout, done.stderr

    after = "".join(f"{line.removeprefix('echo ')}\n" for line in teardown)
    setup = ["module() { (exit 5); }", "module load cuda", "echo went on"]
    code, out, err = runs(setup=setup)
    assert (code, out) == (5, "")
    assert "lllaunch: cluster.setup ended the job with exit code 5; cluster.setup_strict=" in err
    assert runs(setup=setup, setup_strict=False) == (3, f"went on\nran\n{after}", "")
    assert runs(setup=["set -u", "false || true"]) == (3, f"ran\n{after}", "")


def test_only_its_user_may_read_a_batch_file_also_one_that_was_there(
    tool: Tool, tmp_path: Path
) -> None:
    tool("sbatch", "echo 7")
    path = tmp_path / "job.sh"
    path.write_text("of another submission, and longer")
    path.chmod(0o644)
    assert slurm.submit("text", str(path)) == "7"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("text", 0o700)


def test_submitting_is_tried_once(tool: Tool, tmp_path: Path) -> None:
    count = tmp_path / "count"
    path = str(tmp_path / "job.sh")

    def said(text: str, status: int = 1) -> SubmitFailed:
        tool("sbatch", f"echo x >>{count}\n{text}\nexit {status}")
        with pytest.raises(SubmitFailed) as caught:
            slurm.submit("text", path)
        assert count.read_text() == "x\n"
        count.unlink()
        return caught.value

    failed = "echo 'sbatch: error: Batch job submission failed: {}' >&2"
    busy = said(failed.format("Socket timed out"))
    assert (busy.exit_code, busy.unsure) == (1, True)
    assert str(busy).endswith("Socket timed out; the job may have been accepted nevertheless")
    away = said(failed.format("Unable to contact slurm controller (connect failure)"))
    assert (away.exit_code, away.unsure) == (1, False)
    two = said("echo 'sbatch: error: invalid partition specified: x' >&2\n" + failed.format("y"))
    assert str(two) == (
        f"`sbatch --parsable {path}`: sbatch: error: invalid partition specified: x; "
        "Batch job submission failed: y"
    )
    assert two.exit_code == 2
    assert said("echo hello", 0).unsure
    assert said("true", 3).said == "exit status 3"
    # only what is known to be a refusal is one
    assert said(failed.format("Message receive failure")).unsure
    assert not said(failed.format("Job violates accounting/QOS policy (job submit limit)")).unsure
    sleeps = "echo 'sbatch: error: Slurm job queue full, sleeping and retrying.' >&2\n"
    assert said(sleeps + failed.format("Socket timed out on send/recv operation")).unsure
    full_at_last = said(sleeps + failed.format("Slurm temporarily unable to accept job"))
    assert (full_at_last.unsure, is_full(full_at_last.said)) == (False, True)
    # Ctrl-C is for the launcher alone
    assert int(said("cut -d' ' -f6 /proc/$$/stat >&2").said) != os.getsid(0)


def test_a_job_of_another_cluster_has_its_id_before_the_name(tool: Tool, tmp_path: Path) -> None:
    tool("sbatch", "echo '123;other'")
    assert slurm.submit("text", str(tmp_path / "job.sh")) == "123"
    with pytest.raises(OutputError, match="No such file"):
        slurm.submit("text", str(tmp_path / "none" / "job.sh"))


def test_what_gives_no_answer_is_left(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "TIMEOUT", 0.2)
    for name in ("sbatch", "squeue"):
        tool(name, "exec sleep 60")
    with pytest.raises(SubmitFailed, match=r"no answer within 0\.2 s; the job may have been"):
        slurm.submit("text", str(tmp_path / "job.sh"))
    assert slurm.test_only("text") is None
    with pytest.raises(SlurmFailed, match=r"`squeue`: no answer within 0\.2 s"):
        slurm.queued()


def test_one_job_that_is_over_excuses_no_other(tool: Tool) -> None:
    over = "scancel: error: Kill job error on job id 1: Job/step already completing or completed"
    denied = "scancel: error: Kill job error on job id 2: Access/permission denied"
    tool("scancel", f"echo '{over}' >&2; exit 1")
    slurm.cancel(["1"])
    tool("scancel", f"echo '{over}' >&2; echo '{denied}' >&2; exit 1")
    with pytest.raises(SlurmFailed) as caught:
        slurm.cancel(["1", "2"])
    assert caught.value.said == denied


def test_questions_are_asked_again_while_the_controller_is_busy(tool: Tool, tmp_path: Path) -> None:
    count = tmp_path / "count"
    busy = f"echo x >>{count}; echo 'error: Socket timed out on send/recv operation' >&2; exit 1"
    for name in ("squeue", "scontrol", "scancel"):
        tool(name, busy)

    def calls(call: Callable[[], object], said: str = "Socket timed out") -> int:
        with pytest.raises(SlurmFailed, match=said):
            call()
        number = len(count.read_text().split())
        count.unlink()
        return number

    assert calls(slurm.queued) == 3
    assert calls(lambda: slurm.job_facts("1")) == 3
    assert calls(slurm.max_array_size) == 3
    assert calls(lambda: slurm.cancel(["1"])) == 3
    # what came through must not be done twice
    assert calls(lambda: slurm.cancel(["1"], signal="TERM")) == 1
    assert calls(lambda: slurm.requeue("1")) == 1
    tool("scontrol", f"echo x >>{count}; echo 'Unable to contact slurm controller' >&2; exit 1")
    assert calls(lambda: slurm.requeue("1"), "Unable to contact") == 3


def test_what_a_refusal_may_be_about_is_named(tool: Tool) -> None:
    tool("sbatch", "echo 'Requested node configuration is not available' >&2; exit 1")
    text = "#SBATCH --comment=x\n#SBATCH --gpus-per-node=99\n#SBATCH --partition=main\n"
    told = slurm.test_only(text)
    assert told is not None
    assert told.endswith("hint: no node has what cluster.gpus_per_node, cluster.partition ask for")


def test_limits_are_the_sites_or_slurms_own(tool: Tool) -> None:
    tool("scontrol", "printf 'Configuration data as of X\\nMaxArraySize            = 5\\n'")
    assert slurm.max_array_size() == 5
    tool("scontrol", "echo 'MaxArraySize = none'")
    assert slurm.max_array_size() == 1001


def test_nothing_of_a_job_around_gets_into_the_next(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool("sbatch", f"env >{tmp_path}/env; echo 1")
    kept = {"SLURM_CONF": "/etc/x", "SBATCH_ACCOUNT": "a", "SLURM_MPI_TYPE": "pmix"}
    for name, value in {**kept, "SBATCH_PARTITION": "p", "SBATCH_TIMELIMIT": "3"}.items():
        monkeypatch.setenv(name, value)
    text = "#!/bin/bash\n#SBATCH --partition=q\n#SBATCH --time=9\n"

    def found() -> set[str]:
        slurm.submit(text, str(tmp_path / "job.sh"))
        lines = (tmp_path / "env").read_text().splitlines()
        return {line for line in lines if line.startswith(("SLURM_", "SBATCH_", "SRUN_"))}

    assert found() == {f"{name}={value}" for name, value in kept.items()}
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SRUN_CPUS_PER_TASK", "5")
    assert found() == {"SLURM_CONF=/etc/x", "SBATCH_ACCOUNT=a"}
