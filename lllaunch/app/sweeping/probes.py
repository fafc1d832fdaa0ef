"""Jobs that are tried before any is started: what is wrong with them is wrong with the sweep.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import OmegaConf

from lllaunch.app.gate import asks_for_lock
from lllaunch.app.naming import job_name
from lllaunch.app.sweeping.aside import aside_each
from lllaunch.app.sweeping.jobs import Labels
from lllaunch.config.plan import plan_hash
from lllaunch.errors import LaunchError
from lllaunch.exit_codes import ExitCode
from lllaunch.sweep.pool import Need, never_fits
from lllaunch.sweep.prepared import Broken

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

    from lllaunch.app.sweeping.jobs import SweepJobs
    from lllaunch.errors import Diagnostic
    from lllaunch.sweep.prepared import WarmKey
    from lllaunch.sweep.warmth import Warmth

MOST_PROBES = 32
# Keys of the launch node whose values may be anything.
_HARMLESS = frozenset({"args", "env", "env_per_rank"})
_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select\s*:)?\s*([\w.-]+)\s*[,}]")
_SHOWN = 5
# So many jobs are worth another process.
_SHARE = 8


class ProbeProblem(NamedTuple):
    """What is wrong with a job.

    Attributes:
        exit_code: of a run of it alone.
        why: for people.
        problems: what of that is known to stand in a file.
    """

    exit_code: int
    why: str
    problems: tuple[Diagnostic, ...] = ()


class _Look(NamedTuple):
    """What composing a job has shown: what is wrong with it, its spawner, the hash of its plan."""

    fault: ProbeProblem | None
    warm: WarmKey | None = None
    plan: str = ""


@dataclass(eq=False)
class SweepRefused(LaunchError):
    """Jobs of a sweep cannot run; nothing was started.

    Attributes:
        faults: what is wrong, by name of the job.
    """

    faults: Mapping[str, ProbeProblem]

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

    Args:
        jobs: the overrides of each.
        matters: whether the value of an override may decide whether a job can run.
        all_of_them: whether every job is to be tried.
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
    """Returns what tells whether an override may decide whether a job can run.

    Args:
        loader: knows the config groups.
        master: what the sweep was composed to: what its ``launch`` refers to matters, too.
    """
    referenced = frozenset() if master is None else references(master)
    # to ask Hydra takes milliseconds, and a sweep has few keys
    is_group = functools.cache(lambda key: _is_group(loader, key))

    def matters(override: str) -> bool:
        key = override.partition("=")[0].lstrip("+~").partition("@")[0]
        if key == "launch" or key.startswith("launch.") or is_group(key):
            return True
        return any(
            f"{key}.".startswith(f"{path}.") or path.startswith(f"{key}.") for path in referenced
        )

    return matters


def references(master: DictConfig) -> frozenset[str]:
    """Returns the keys that decide with the launch node whether a job can run, and where.

    Args:
        master: what the sweep was composed to.
    """
    raw: Any = OmegaConf.to_container(master, resolve=False)
    launch = {key: item for key, item in (raw.get("launch") or {}).items() if key not in _HARMLESS}
    found: set[str] = set()
    texts = [*_texts(launch), *_texts(raw["hydra"]["sweep"]), *_texts(raw["hydra"]["launcher"])]
    while texts:
        new = {path for text in texts for path in _REFERENCE.findall(text)} - found
        found |= new
        texts = [text for path in new for text in _texts(_below(raw, path))]
    return frozenset(found)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) and "${" in value else []


def _below(raw: Any, path: str) -> Any:
    for part in path.split("."):
        raw = raw.get(part) if isinstance(raw, dict) else None
    return raw


def _is_group(loader: ConfigLoader, key: str) -> bool:
    parent, _, name = key.rpartition("/")
    return name in loader.list_groups(parent)


def probe(jobs: SweepJobs, overrides: Sequence[Sequence[str]], first: int, warmth: Warmth) -> None:
    """Composes some jobs in a process of their own and looks whether they can run.

    Args:
        jobs: composes them.
        overrides: of all jobs.
        first: number of the first.
        warmth: begins to preload for the first job that was tried.

    Raises:
        SweepRefused: they cannot.
    """
    labels, size = Labels(overrides), jobs.machine.everything
    room = Need(len(size.gpus), len(size.cpus))
    composer = jobs.composer
    matters = decides(composer.context.config_loader, composer.master)
    # nothing starts of a sweep that is not the reviewed one
    locked = asks_for_lock(composer.master)
    chosen = choose(overrides, matters, all_of_them=locked)

    def look(index: int) -> _Look:
        answer = jobs.prepare(overrides[index], labels[index], first + index, None)
        if isinstance(answer, Broken):
            return _Look(ProbeProblem(answer.exit_code, answer.why, answer.problems))
        planned: Any = answer.payload
        why = never_fits(answer.need, room)
        fault = ProbeProblem(int(ExitCode.CONFIG), why) if why else None
        return _Look(fault, answer.warm, plan_hash(planned.spec) if locked else "")

    # a process has its own imports to make: not for a few jobs
    processes = min(len(os.sched_getaffinity(0)), 1 + len(chosen) // _SHARE)
    with contextlib.closing(aside_each(look, chosen, processes)) as answers:
        found = dict(zip(chosen, answers, strict=True))
    faults = {labels.name(index): each.fault for index, each in found.items() if each.fault}
    if faults:
        raise SweepRefused(faults)
    if locked:
        jobs.admitted = {job_name(overrides[index]): each.plan for index, each in found.items()}
    warm = found[0].warm if found else None
    if warm is not None:
        warmth.start(warm)
