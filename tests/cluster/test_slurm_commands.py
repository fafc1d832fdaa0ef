"""What `lllaunch.cluster.slurm` says to a real Slurm, and what comes of it."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.launching import text_of, until

from cluster.slurm import Slurm
from lllaunch.cluster import slurm as commands
from lllaunch.cluster.slurm import QueuedJob, SlurmFailed, SlurmMissing, SubmitFailed
from lllaunch.spec import Cluster, Requeue

# Each of its steps has a bound of its own, and the first test brings the cluster up.
pytestmark = pytest.mark.timeout(400)

NO_REQUEUE = Requeue(0, 0, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / 'it\'s 50% "done" ü'
    path.mkdir()
    return path


def batch(folder: Path, *command: str, array: tuple[int, int] | None = None, **given: Any) -> str:
    settings = {"mem_gb": 0.1, **given.pop("settings", {})}
    return commands.batch_text(
        Cluster(settings, **given),
        command=command,
        directory=str(folder),
        output=str(folder / ("out-%a" if array else "out")),
        name="a name",
        array=array,
    )


def submit(folder: Path, *command: str, **given: Any) -> str:
    return commands.submit(batch(folder, *command, **given), str(folder / "job.sh"))


def test_a_job_runs_once_on_each_node_with_what_was_asked_for(slurm: Slurm, folder: Path) -> None:
    show = (
        "echo $SLURM_NODEID of $SLURM_NTASKS, $SLURM_CPUS_PER_TASK, $CUDA_VISIBLE_DEVICES, "
        "$SUBMITIT_EXECUTOR, $GIVEN, $1, $PWD; echo error >&2"
    )
    settings = {"cpus_per_task": 3, "gpus_per_node": 2, "timeout_min": 5, "setup": ["GIVEN=yes"]}
    settings["setup"].append("export GIVEN")  # type: ignore[attr-defined]
    words = ("bash", "-c", show, "bash", "a 'b' $c")
    job = submit(folder, *words, nodes=2, settings=settings)
    assert slurm.until_over(job) == "COMPLETED"
    lines = sorted((folder / "out").read_text().splitlines())
    assert lines == [
        *(f"{node} of 2, 3, 0,1, , yes, a 'b' $c, {folder}" for node in range(2)),
        *("error", "error"),
    ]
    assert (folder / "job.sh").stat().st_mode & 0o777 == 0o700


def test_the_queue_knows_a_job_by_its_directory(slurm: Slurm, folder: Path) -> None:
    assert commands.queued() == {}
    job = submit(folder, "sleep", "60", nodes=2)
    slurm.until_state(job, "RUNNING")
    found = commands.queued()
    nodes = found[job].nodes
    assert found == {job: QueuedJob(job, "RUNNING", "None", nodes, str(folder), "a name")}
    assert len(commands.node_names(nodes)) == 2
    assert commands.queued([job]) == found
    # one that nobody knows, alone and beside another
    assert commands.queued(["4"]) == {}
    assert commands.queued(["4", job]) == found
    commands.cancel([job])
    assert slurm.until_over(job) == "CANCELLED"
    assert commands.queued([job]) == {}
    commands.cancel([job, "4"])


def test_what_slurm_knows_of_a_job(slurm: Slurm, folder: Path) -> None:
    began = time.time()
    job = submit(folder, "sleep", "60", settings={"timeout_min": 7}, requeue=NO_REQUEUE)
    slurm.until_state(job, "RUNNING")
    facts = commands.job_facts(job)
    assert facts is not None
    assert facts.end_time is not None
    assert began - 2 < facts.end_time - 420 < time.time() + 2
    told = (facts.id, facts.state, facts.reason, facts.restarts, facts.directory)
    assert told == (job, "RUNNING", "None", 0, str(folder))
    assert (facts.name, facts.preempt_time) == ("a name", None)
    assert commands.ending(facts, 0) is None
    assert commands.job_facts("4") is None
    assert commands.job_facts("4_1") is None
    with pytest.raises(SlurmFailed, match="Requested operation is presently disabled"):
        commands.requeue(job)
    with pytest.raises(SlurmFailed, match="Invalid job id"):
        commands.requeue("4")


def test_an_array_has_so_many_tasks_and_so_many_at_a_time(slurm: Slurm, folder: Path) -> None:
    wait = f"until [ -e {shlex.quote(str(folder / 'go'))} ]; do sleep 0.1; done"
    show = f"{wait}; echo $SLURM_ARRAY_TASK_ID"
    job = submit(folder, "bash", "-c", show, array=(4, 2))
    ids = [f"{job}_{task}" for task in range(4)]

    def states() -> list[str]:
        found = commands.queued([job])
        return [found[each].state if each in found else "" for each in ids]

    until(lambda: states().count("RUNNING") == 2, "two tasks", 90.0)
    assert states() == ["RUNNING", "RUNNING", "PENDING", "PENDING"]
    # each is found by its own id, though the last has the id of the array, too
    facts = [commands.job_facts(each) for each in ids]
    assert [each.state for each in facts if each] == states()
    assert [each.id for each in facts[:2] if each] == ids[:2]
    assert sorted(commands.queued([ids[1], ids[3]])) == [ids[1], ids[3]]
    commands.cancel([job], pending_only=True)
    until(lambda: states()[2:] == ["", ""], "the end of those that wait", 90.0)
    assert states()[:2] == ["RUNNING", "RUNNING"]
    (folder / "go").touch()
    until(lambda: states() == [""] * 4, "the end", 90.0)
    assert [text_of(folder / f"out-{task}") for task in range(4)] == ["0\n", "1\n", "", ""]


def test_a_task_of_an_array_goes_back_into_the_queue_alone(slurm: Slurm, folder: Path) -> None:
    show = "echo started $SLURM_RESTART_COUNT; [ -n '$SLURM_RESTART_COUNT' ]; sleep 60"
    job = submit(folder, "bash", "-c", show, array=(2, 2))
    until(lambda: text_of(folder / "out-0") and text_of(folder / "out-1"), "both tasks", 90.0)
    commands.requeue(f"{job}_1")
    facts = commands.job_facts(f"{job}_1")
    assert facts is not None
    # its processes may be gone by then
    assert facts.state in {"COMPLETING", "PENDING"}
    assert (facts.restarts, commands.ending(facts, 0)) == (1, "requeued")
    other = commands.job_facts(f"{job}_0")
    assert other is not None
    assert (other.state, other.restarts, commands.ending(other, 0)) == ("RUNNING", 0, None)
    until(lambda: "started 1" in text_of(folder / "out-1"), "its second start", 90.0)
    assert "started 1" not in text_of(folder / "out-0")


# Writes each signal that it gets, and what Slurm then says, into a file; ends where it has to.
NOTICES = """
import os, signal, sys, time
sys.path[:0] = [{project!r}]
from lllaunch.cluster import slurm
count = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
job = os.environ["SLURM_JOB_ID"]
def notice(number, frame):
    if number == signal.SIGTERM:
        facts = slurm.job_facts(job)
        ending = slurm.ending(facts, count)
        print(signal.Signals(number).name, ending, facts, flush=True)
        if ending in ("cancelled", "requeued"):
            os._exit(0)
    else:
        print(signal.Signals(number).name, flush=True)
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, notice)
print("started", count, flush=True)
for _ in range(1200):
    time.sleep(0.1)
"""


def notices(folder: Path) -> tuple[str, ...]:
    project = str(Path(__file__).parents[2])
    return (sys.executable, "-c", NOTICES.format(project=project))


def noticed(folder: Path, what: str) -> None:
    until(lambda: what in text_of(folder / "out"), f"{what!r} in out", 90.0)


def test_a_job_knows_that_somebody_has_cancelled_it(slurm: Slurm, folder: Path) -> None:
    job = submit(folder, *notices(folder))
    noticed(folder, "started 0")
    # which cancels nothing
    commands.cancel([job], signal="TERM")
    noticed(folder, "SIGTERM None")
    commands.cancel([job])
    noticed(folder, "SIGTERM cancelled")
    assert slurm.until_over(job) == "CANCELLED"


def test_a_job_knows_that_it_was_put_back(slurm: Slurm, folder: Path) -> None:
    job = submit(folder, *notices(folder))
    noticed(folder, "started 0")
    commands.requeue(job)
    noticed(folder, "SIGTERM requeued")
    with pytest.raises(SlurmFailed, match="Job is pending execution"):
        commands.requeue(job)
    noticed(folder, "started 1")
    commands.cancel([job])


@pytest.mark.parametrize("grace", [0, 20])
def test_a_job_knows_that_another_takes_its_place(slurm: Slurm, folder: Path, grace: int) -> None:
    slurm.partition("main", GraceTime=grace)
    job = submit(folder, *notices(folder), settings={"exclusive": True, "nodelist": "node1"})
    noticed(folder, "started 0")
    slurm.sbatch("-p", "high", "-w", "node1", "--exclusive", "-o/dev/null", "--wrap=sleep 1")
    # without a time of grace it is back in the queue before it is signalled, or at that moment
    noticed(folder, "SIGTERM preempted" if grace else "SIGTERM requeued")
    if grace:
        # there are more jobs than this is about
        facts = commands.job_facts(job)
        assert facts is not None
        assert facts.end_time is not None
        assert facts.preempt_time is not None
        assert 18 <= facts.end_time - facts.preempt_time <= 22
        commands.requeue(job)
    noticed(folder, "started 1")


def test_a_task_that_fails_leaves_the_others_alone(slurm: Slurm, folder: Path) -> None:
    show = "[ $SLURM_NODEID = 1 ] && exit 7; sleep 3; echo still here"
    job = submit(folder, "bash", "-c", show, nodes=2)
    assert slurm.until_over(job) == "FAILED"
    assert "still here" in text_of(folder / "out")
    assert slurm.facts(job)["ExitCode"] == "7:0"


def test_what_comes_after_a_command_comes_whatever_became_of_it(slurm: Slurm, folder: Path) -> None:
    settings = {"teardown": ["echo after $status"]}
    job = submit(folder, "bash", "-c", "exit 5", settings=settings)
    assert slurm.until_over(job) == "FAILED"
    assert "after 5" in text_of(folder / "out")
    assert slurm.facts(job)["ExitCode"] == "5:0"
    show = "trap 'exit 6' TERM; echo started; for i in {1..600}; do sleep 0.1; done"
    job = submit(folder, "bash", "-c", show, settings=settings)
    noticed(folder, "started")
    commands.cancel([job])
    noticed(folder, "after ")


WRONG: dict[str, dict[str, Any]] = {
    "invalid partition specified: gpux": {"partition": "gpux"},
    "Requested node configuration is not available": {"gres": "gpu:99"},
    "Memory specification can not be satisfied": {"mem": "99T"},
    "Invalid feature specification": {"constraint": "nope"},
    "Invalid node name specified": {"nodelist": "nodeX"},
    "unrecognized option '--nope": {"additional_parameters": {"nope": 1}},
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_said_in_one_line(slurm: Slurm, folder: Path, said: str) -> None:
    text = batch(folder, "true", settings={"mem_gb": None, **WRONG[said]})
    with pytest.raises(SubmitFailed) as caught:
        commands.submit(text, str(folder / "job.sh"))
    error = caught.value
    assert (error.exit_code, error.unsure) == (2, False)
    assert said in error.said
    assert "\n" not in str(error)
    assert str(error).startswith("`sbatch --parsable ")
    tested = commands.test_only(text)
    assert tested is not None
    # it does not always say which
    assert said in tested or "Requested node configuration" in tested
    assert commands.queued() == {}


def test_what_is_right_can_be_tried_without_submitting(slurm: Slurm, folder: Path) -> None:
    assert commands.test_only(batch(folder, "true", nodes=2)) is None
    assert commands.test_only(batch(folder, "true", array=(3, 1))) is None
    assert commands.queued() == {}


def test_what_the_environment_asks_for_counts_less_than_the_config(
    slurm: Slurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "gpux")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "77")
    monkeypatch.setenv("SQUEUE_PARTITION", "high")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    settings = {"partition": "main", "timeout_min": 9}
    job = submit(folder, "sleep", "60", settings=settings)
    assert [*commands.queued()] == [job]
    facts = slurm.facts(job)
    assert (facts["Partition"], facts["TimeLimit"]) == ("main", "00:09:00")
    # nobody else has anything to say of it
    job = submit(folder, "sleep", "60", settings={"partition": "main"})
    assert slurm.facts(job)["TimeLimit"] == "01:17:00"


def test_limits_are_those_of_the_site(slurm: Slurm, folder: Path) -> None:
    assert commands.limits().max_array_size == 1001
    slurm.configure(MaxArraySize=5)
    assert commands.limits().max_array_size == 5
    job = submit(folder, "true", array=(5, 5))
    with pytest.raises(SubmitFailed, match="Invalid job array specification"):
        submit(folder, "true", array=(6, 5))
    commands.cancel([job])


def test_a_controller_that_does_not_answer_is_asked_again(
    slurm: Slurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = folder / "count"
    tool = folder / "squeue"
    tool.write_text(
        f"#!/bin/sh\necho x >>{shlex.quote(str(count))}\n"
        f'[ $(wc -l <{shlex.quote(str(count))}) -gt 2 ] && exec {slurm.tools}/squeue "$@"\n'
        "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(commands, "PAUSES", (0.01, 0.01))
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert commands.queued() == {}
    assert count.read_text() == "x\n" * 3


def test_a_node_without_power_ends_the_job_on_the_others(slurm: Slurm, folder: Path) -> None:
    settings = {"nodelist": "node2,node3"}
    submit(folder, *notices(folder), nodes=2, settings=settings, requeue=NO_REQUEUE)
    until(lambda: text_of(folder / "out").count("started 0") == 2, "both tasks", 90.0)
    slurm.cut_power(3)
    noticed(folder, "SIGTERM node")


def test_where_there_is_no_slurm_nothing_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not commands.available()
    with pytest.raises(SlurmMissing, match="there is no sbatch on PATH"):
        commands.expect_available()
    with pytest.raises(SlurmMissing, match="there is no squeue on PATH"):
        commands.queued()
