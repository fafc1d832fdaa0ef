from __future__ import annotations

import os
from pathlib import Path

import pytest

from lllaunch.errors import OutputError
from lllaunch.multiprocessing import DefaultLogsSpecs
from lllaunch.spec import Std, to_map
from lllaunch.workers.log_files import destinations


def envs(nprocs: int, restart_count: int = 0, run_id: str = "run") -> dict[int, dict[str, str]]:
    return {
        rank: {"TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": str(restart_count)}
        for rank in range(nprocs)
    }


def test_layout_is_torchs(tmp_path: Path) -> None:
    workers = envs(2, restart_count=3)
    dest = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL).reify(workers)
    (run_dir,) = tmp_path.iterdir()
    assert run_dir.name.startswith("run_")
    rank_dir = run_dir / "attempt_3" / "1"
    assert dest.stdouts[1] == str(rank_dir / "stdout.log")
    assert dest.stderrs[1] == str(rank_dir / "stderr.log")
    assert dest.error_files[1] == str(rank_dir / "error.json")
    assert dest.filtered_stdout == str(run_dir / "attempt_3" / "filtered_stdout.log")
    assert dest.filtered_stderr == str(run_dir / "attempt_3" / "filtered_stderr.log")
    assert workers[1]["TORCHELASTIC_ERROR_FILE"] == dest.error_files[1]
    assert workers[1]["LLLAUNCH_RESULT_FILE"] == str(rank_dir / "return.json")
    assert rank_dir.is_dir()
    assert not list(rank_dir.iterdir()), "files are created when the workers start"


def test_an_attempt_that_is_there_is_kept_and_the_next_number_taken(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT)
    first = specs.reify(envs(1))
    Path(first.stdouts[0]).write_text("kept")
    second = specs.reify(envs(1))
    assert Path(second.stdouts[0]).parts[-3] == "attempt_1"
    assert Path(first.stdouts[0]).read_text() == "kept"
    assert specs.reify(envs(1, restart_count=1)).stdouts[0].split(os.sep)[-3] == "attempt_2"
    assert len(list(tmp_path.iterdir())) == 1, "all attempts share one directory"


def test_tee_implies_redirect_and_other_streams_stay_on_the_console() -> None:
    dest = destinations("/d", to_map({1: Std.OUT}, 2), to_map({1: Std.ERR}, 2))
    assert dest.stdouts == {0: "", 1: "/d/1/stdout.log"}
    assert dest.stderrs == {0: "", 1: "/d/1/stderr.log"}
    assert dest.tee_stderrs == {1: "/d/1/stderr.log"}
    assert dest.tee_stdouts == {}


def test_filtered_ranks_are_written_but_not_shown() -> None:
    dest = destinations("/d", to_map({1: Std.ERR}, 2), to_map(Std.OUT, 2), {0})
    assert dest.tee_stdouts == {0: "/d/0/stdout.log"}
    assert dest.stdouts[1] == "/d/1/stdout.log"
    assert dest.stderrs == {0: "", 1: "/d/1/stderr.log"}
    assert destinations("/d", to_map(Std.NONE, 1), {}, {5}).stdouts == {0: os.devnull}


def test_devnull_makes_nothing_and_empties_the_variables() -> None:
    workers = envs(1)
    dest = DefaultLogsSpecs(os.devnull, redirects=Std.ALL, tee=Std.ALL).reify(workers)
    assert dest.stdouts == {0: ""}
    assert dest.tee_stdouts == {0: os.devnull}
    assert dest.error_files == {0: os.devnull}
    assert workers[0]["TORCHELASTIC_ERROR_FILE"] == ""
    assert workers[0]["LLLAUNCH_RESULT_FILE"] == ""
    assert dest.filtered_stdout == os.devnull
    hidden = DefaultLogsSpecs(os.devnull, local_ranks_filter={1}).reify(envs(2))
    assert hidden.stdouts == {0: os.devnull, 1: ""}


def test_without_log_dir_a_private_temporary_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    specs = DefaultLogsSpecs()
    assert Path(specs.root_log_dir).parent == tmp_path
    assert Path(specs.root_log_dir).stat().st_mode & 0o777 == 0o700


def test_log_dir_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        DefaultLogsSpecs(str(tmp_path / "file"))
    with pytest.raises(OutputError) as caught:
        DefaultLogsSpecs(str(tmp_path / "file" / "logs"))
    assert caught.value.path == str(tmp_path / "file" / "logs")


def test_specs_compare_by_their_settings(tmp_path: Path) -> None:
    one = DefaultLogsSpecs(str(tmp_path), Std.OUT, {0: Std.ERR}, {0})
    assert one == DefaultLogsSpecs(str(tmp_path), Std.OUT, {0: Std.ERR}, {0})
    assert one != DefaultLogsSpecs(str(tmp_path), Std.OUT, {0: Std.ERR}, {1})
