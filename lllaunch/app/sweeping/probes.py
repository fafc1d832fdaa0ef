"""Jobs that are composed before any is started: tried, or compared with those of a resumed sweep.

What is wrong with those that are tried is wrong with the sweep.

Composing them all would take as long as a short sweep. So those are chosen that are likely to
differ in what is checked: the first one, and one for each value that is swept of ``launch``, of
what that refers to, and of a config group. A job that only a value elsewhere makes wrong fails when
its turn comes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import structs
from omegaconf import OmegaConf

from lllaunch.app.aside import map_in_forks
from lllaunch.app.configs import job_name
from lllaunch.app.gate import asks_for_lock
from lllaunch.app.sweeping.jobs import labels_of, name_of
from lllaunch.config.plan import plan_hash
from lllaunch.config.read import CLUSTER
from lllaunch.errors import Diagnostic, ExitCode, LaunchError
from lllaunch.sweep.pool import Need, never_fits
from lllaunch.sweep.protocol import Answer, Prepared
from lllaunch.sweep.schedule import JobBroken

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

    from lllaunch.app.sweeping.jobs import SweepJobs
    from lllaunch.sweep.history import JobHistory
    from lllaunch.sweep.processes import SpawnerPool
    from lllaunch.sweep.resume import Compose

MOST_PROBES = 32
# Keys of the launch node whose values may be anything.
_HARMLESS = frozenset({"args", "env", "env_per_rank"})
_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select\s*:)?\s*([\w.-]+)\s*[,}]")
_SHOWN = 5
# So many jobs are worth another process.
_SHARE = 8


@dataclass(eq=False)
class SweepRefused(LaunchError):
    """Jobs of a sweep cannot run; nothing was started."""

    faults: Mapping[str, JobBroken]

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """What a run of the first of these jobs would end with."""
        return next(iter(self.faults.values())).exit_code

    @property
    def problems(self) -> tuple[Diagnostic, ...]:
        """What is wrong with these jobs and is known to stand in a file, each thing once."""
        every = (problem for fault in self.faults.values() for problem in fault.problems)
        return tuple(dict.fromkeys(every))

    def __str__(self) -> str:
        alike: dict[str, list[str]] = {}
        for name, fault in self.faults.items():
            alike.setdefault(fault.why, []).append(name)
        lines = ["nothing was started"]
        for why, names in alike.items():
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines.append(f"{', '.join(names[:_SHOWN])}{more}:")
            lines += [f"  {line}" for line in why.splitlines()]
        return "\n".join(lines)


def choose(
    jobs: Sequence[Sequence[str]], matters: Callable[[str], bool], *, all_of_them: bool = False
) -> list[int]:
    """Returns the indices of the jobs to try; pure.

    ``all_of_them``: whether every job is to be tried.
    """
    if all_of_them or not jobs:
        return [*range(len(jobs))]
    chosen, seen = [0], set(jobs[0])
    for index in range(1, len(jobs)):
        new = [text for text in jobs[index] if text not in seen]
        seen.update(new)
        if any(map(matters, new)):
            chosen.append(index)
            if len(chosen) == MOST_PROBES:
                break
    return chosen


def decides(loader: ConfigLoader, master: DictConfig | None = None) -> Callable[[str], bool]:
    """Return what tells whether an override may decide whether a job can run.

    That is one of ``launch``, of the cluster, of a config group, or, with ``master``, of what the
    launch node and the launcher's settings refer to.
    """
    referenced: set[str] = set()
    if master is not None:
        raw: Any = OmegaConf.to_container(master, resolve=False)
        launch = [item for key, item in (raw.get("launch") or {}).items() if key not in _HARMLESS]
        texts = repr([launch, raw["hydra"]["sweep"], raw["hydra"]["launcher"]])
        referenced.update(_REFERENCE.findall(texts))

    # to ask Hydra takes milliseconds, and a sweep has few keys
    @functools.cache
    def key_matters(key: str) -> bool:
        above, _, name = key.rpartition("/")
        if key.partition(".")[0] in {"launch", CLUSTER} or name in loader.list_groups(above):
            return True
        return any(
            f"{key}.".startswith(f"{path}.") or path.startswith(f"{key}.") for path in referenced
        )

    return lambda text: key_matters(text.partition("=")[0].lstrip("+~").partition("@")[0])


def probe(
    jobs: SweepJobs, overrides: Sequence[Sequence[str]], first: int, spawners: SpawnerPool
) -> None:
    """Compose some jobs in a process of their own; `SweepRefused` if they cannot run."""
    labels, size = labels_of(overrides), jobs.machine.everything
    room = Need(len(size.gpus), len(size.cpus))
    matters = decides(jobs.context.config_loader, jobs.master)
    # nothing starts of a sweep that is not the reviewed one
    locked = asks_for_lock(jobs.master)
    chosen = choose(overrides, matters, all_of_them=locked)

    def look(index: int) -> Answer:
        answer = jobs.prepare(overrides[index], labels[index], first + index, None)
        if isinstance(answer, JobBroken):
            return answer
        spec = answer.payload.spec
        # what a cluster has is not known here
        why = never_fits(answer.need, room) if spec.cluster is None else ""
        if why:
            return JobBroken(answer.number, int(ExitCode.CONFIG), why)
        return structs.replace(answer, payload=(plan_hash(spec) if locked else "", spec.cluster))

    # a process has its own imports to make: not for a few jobs
    processes = min(len(os.sched_getaffinity(0)), 1 + len(chosen) // _SHARE)
    with contextlib.closing(map_in_forks(look, chosen, processes)) as answers:
        found = dict(zip(chosen, answers, strict=True))
    faults = {
        name_of(labels[index]): each for index, each in found.items() if isinstance(each, JobBroken)
    }
    if faults:
        raise SweepRefused(faults)
    if locked:
        jobs.admitted = {
            job_name(overrides[index]): each.payload[0]
            for index, each in found.items()
            if isinstance(each, Prepared)
        }
    one = found.get(0)
    if isinstance(one, Prepared):
        jobs.cluster = one.payload[1]
        if one.warm is not None and jobs.cluster is None:
            spawners.start(one.warm)


def compared(
    jobs: SweepJobs,
    overrides: Sequence[Sequence[str]],
    labels: Sequence[Sequence[str]],
    sweep_dir: str,
) -> Compose:
    """Return what composes jobs that have finished, for comparison: as many at once as cores."""

    def look(job: tuple[int, JobHistory]) -> Answer:
        index, old = job
        directory = os.path.join(sweep_dir, old.directory)
        answer = jobs.prepare(overrides[index], labels[index], old.job, directory)
        if isinstance(answer, JobBroken):
            return answer
        return structs.replace(answer, payload=answer.payload.identity)

    def compose(
        finished: Sequence[tuple[int, JobHistory]],
    ) -> Generator[Mapping[str, Any], None, None]:
        processes = len(os.sched_getaffinity(0))
        with contextlib.closing(map_in_forks(look, finished, processes)) as answers:
            for answer in answers:
                if isinstance(answer, JobBroken):
                    raise SweepRefused({name_of(answer.overrides, answer.number): answer})
                yield answer.payload

    return compose
