"""What Hydra is told of a job of a sweep: looked up when it is asked for, so that it costs nothing.

A sweep of ten thousand jobs keeps neither configs nor return values: the first are composed again,
the second read from result.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime, JobStatus
from omegaconf import OmegaConf

from lllaunch.app.ending import JobEnded, QuietReturn
from lllaunch.app.returned import load
from lllaunch.errors import OutputError
from lllaunch.run.outcome import ReturnValue
from lllaunch.sweep.results import RESULT

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.app.sweeping.composing import JobConfig


class SweptJob(QuietReturn):
    """What became of a job of a sweep.

    Args:
        overrides: of the job, as Hydra lists them.
        directory: where its result.json is; empty if it never ran.
        failure: why there is no return value; None if the job succeeded.
        compose: composes the job again.
    """

    def __init__(
        self,
        overrides: Sequence[str],
        directory: str,
        failure: JobEnded | None,
        compose: Callable[[], JobConfig],
    ) -> None:
        self.overrides = list(overrides)
        self.status = JobStatus.COMPLETED if failure is None else JobStatus.FAILED
        self.task_name = JobRuntime.instance().get("name")
        self._directory = directory
        self._failure = failure
        self._compose = compose

    @property
    def cfg(self) -> DictConfig:  # type: ignore[override]
        """The job's config, composed again."""
        return self._again().own()

    @property
    def hydra_cfg(self) -> DictConfig:  # type: ignore[override]
        """Hydra's config of the job, composed again."""
        found: DictConfig = OmegaConf.masked_copy(self._again().whole, "hydra")
        return found

    @property
    def working_dir(self) -> str:  # type: ignore[override]
        """Where the job worked: its output directory with ``hydra.job.chdir``."""
        return self._again().where.cwd

    @property
    def _return_value(self) -> Any:
        """What rank 0 returned, or the exception that says why there is nothing."""
        return self._failure if self._failure is not None else load(returned(self._directory))

    def _again(self) -> JobConfig:
        before = HydraConfig.instance().cfg
        try:
            return self._compose()
        finally:
            HydraConfig.instance().cfg = before

    def __repr__(self) -> str:
        return f"SweptJob(overrides={self.overrides}, status={self.status.name})"


def returned(directory: str) -> ReturnValue | None:
    """What rank 0 of a run returned, as its result.json has it; None if that is nothing.

    Raises:
        OutputError: result.json cannot be read.
    """
    path = os.path.join(directory, RESULT)
    try:
        with open(path, "rb") as file:
            values = json.loads(file.read())["return_values"]
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    except (ValueError, KeyError) as error:
        raise OutputError(path, "is not the result of a run") from error
    first = values.get("0")
    if first is None:
        return None
    text = json.dumps(first["value"]) if "value" in first else None
    where = os.path.join(directory, first.get("path") or "")
    return ReturnValue(where, first.get("size", 0), first.get("type", ""), text)
