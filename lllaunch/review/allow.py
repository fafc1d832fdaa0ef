"""Holds a run against the allowlist of its project.

Judged is what things resolve to: the file behind a link, the module that defines a function, the
program on PATH. What cannot be told without importing it, or is an interpolation, is allowed only
by a pattern that is the very same text.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from lllaunch.config.locate import locate_main
from lllaunch.config.secrets import holds_env
from lllaunch.config.tree import shorten, show, value_at
from lllaunch.errors import Problem
from lllaunch.review.objects import Objects
from lllaunch.review.patterns import Forms, fits, fits_any, is_within
from lllaunch.review.places import POLICY_FILE, POLICY_VARIABLE
from lllaunch.review.policy import Policy
from lllaunch.review.targets import Asked, asked_for, made_by_hydra
from lllaunch.spec import Entrypoint, LaunchSpec

# These make nothing load or run anything: how much, on what, and what is said of it.
HARMLESS_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("OMP_PROC_BIND", "OMP_PLACES", "TOKENIZERS_PARALLELISM"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
    *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "GLOO_SOCKET_IFNAME"),
    *("TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES"),
    *("PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"),
    *("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "WANDB_MODE"),
)
_ENV_SET = "hydra.job.env_set"
# of the two classes that Hydra always makes
_OWN_TARGETS = {
    ("hydra", "launcher", "_target_"): (
        "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
        "hydra_plugins.lllaunch_launcher.launcher.LllaunchLauncher",
    ),
    ("hydra", "sweeper", "_target_"): (
        "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
        "hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper",
    ),
}


NO_POLICY = Problem(
    POLICY_FILE,
    "",
    "is not there, and a locked run needs it: it lists what may run",
    f"write it, or name another file in {POLICY_VARIABLE}; to allow a script and a preload:\n"
    "    allow:\n      entrypoints: [train.py]\n      preload: [torch]",
)
"""What is wrong with a locked run where no policy is."""


def variables_set(env_set: object) -> dict[str, Any]:
    """Return what ``hydra.job.env_set`` sets, without ``env_copy``, which workers have anyway.

    Args:
        env_set: as plain data, unresolved.
    """
    if not isinstance(env_set, Mapping):
        return {}
    copied = {name: f"${{oc.env:{name}}}" for name in env_set}
    return {name: value for name, value in env_set.items() if value != copied[name]}


def check(
    spec: LaunchSpec,
    config: Mapping[Any, Any],
    policy: Policy | None,
    root: str,
    *,
    locked: bool = False,
    environ: Mapping[str, str] | None = None,
    sys_path: Iterable[str] | None = None,
) -> list[Problem]:
    """Tells what of a run its project does not allow.

    Args:
        spec: the run.
        config: the whole composed config, Hydra's node included: plain data, unresolved.
        policy: of the project; None if it has none, which allows everything unless ``locked``.
        root: top of the working tree.
        locked: whether the run must be a reviewed one.
        environ: of the launcher, for PATH; None for the real one.
        sys_path: of the launcher; None for the real one.

    Returns:
        A problem for each value that is not allowed; with exit code 5 they belong into a
        `lllaunch.review.refused.PlanRefused`.
    """
    if policy is None:
        return [NO_POLICY] if locked else []
    environ = os.environ if environ is None else environ
    sys_path = sys.path if sys_path is None else sys_path
    # as workers have it: their own directory first
    judge = _Judge(policy, root, environ, (spec.cwd, spec.runtime_cwd, *sys_path))
    judge.entrypoint(spec)
    judge.directories(spec)
    judge.preload(spec)
    judge.variables(_variables(spec))
    judge.config(config)
    return judge.problems


def check_config(config: Mapping[Any, Any], policy: Policy, root: str) -> list[Problem]:
    """Tells what of a config its project does not allow, before Hydra makes anything of it.

    Args:
        config: whole, Hydra's node included: plain data, unresolved.
        policy: of the project.
        root: top of the working tree.
    """
    judge = _Judge(policy, root, os.environ, (os.getcwd(), *sys.path))
    judge.config(config)
    for key, path in made_by_hydra(config):
        judge.directory(key, path, hidden=False)
    return judge.problems


def check_searchpath(entries: Iterable[object], policy: Policy, root: str) -> list[Problem]:
    """Tells which entries of ``hydra.searchpath`` a project does not allow.

    Hydra imports packages that it looks in, so they are judged before anything is composed.
    """
    return check_config({"hydra": {"searchpath": list(entries)}}, policy, root)


def _variables(spec: LaunchSpec) -> dict[str, Any]:
    """Variables of workers, by the key of the node that sets them."""
    launch = spec.redacted
    per_rank = launch.get("env_per_rank", spec.env_per_rank)
    per_rank = per_rank if isinstance(per_rank, Mapping) else {}
    return {
        "launch.env": launch.get("env", spec.env),
        **{f"launch.env_per_rank.{ranks}": env for ranks, env in per_rank.items()},
    }


class _Judge:
    def __init__(
        self,
        policy: Policy,
        root: str,
        environ: Mapping[str, str],
        sys_path: Iterable[str],
    ) -> None:
        self.problems: list[Problem] = []
        self._policy = policy
        self._root = os.path.realpath(root)
        self._environ = environ
        self._path = tuple(dict.fromkeys(sys_path))
        self._objects = Objects(self._path)

    def entrypoint(self, spec: LaunchSpec) -> None:
        entry = spec.entrypoint
        name = "programs" if entry.form == "program" else "entrypoints"
        patterns = getattr(self._policy, name)
        refused = [each for each in self._forms(entry) if not fits_any(patterns, each)]
        if not refused:
            return
        first = refused[0]
        wanted = next(iter(first.names), first.file) or first.exact
        if holds_env(entry.text):
            message, wanted = _not_in(name), ""
        elif wanted == first.exact and any(fits(pattern, wanted) for pattern in patterns):
            message = f"cannot be told without importing it, {_only_by(name)}"
        else:
            same = wanted == " ".join(entry.text.split())
            message = _not_in(name) if same else f"is {shorten(wanted)!r}, which {_not_in(name)}"
        self._refuse("launch.entrypoint", repr(shorten(entry.text)), message, name, wanted)

    def _forms(self, entry: Entrypoint) -> list[Forms]:
        if entry.form == "program":
            return [self._program(entry.name)]
        if entry.form == "script":
            return [Forms(file=self._place(entry.name))]
        if entry.form == "module":
            file = locate_main(entry.name, self._path).file
            place = self._place(file) if file else ""
            return [Forms((f"-m {entry.name}", entry.name), place)]
        if entry.name == "__main__":
            return [Forms((entry.text,))]  # of the script that the user started
        exact = f"{entry.name}:{entry.qualname}"
        told = self._objects.function(entry.name, entry.qualname) if entry.name else ()
        found = [Forms((f"{t.module}:{t.qualname}",), self._place(t.file), exact) for t in told]
        return found or [Forms(exact=exact)]

    def _program(self, name: str) -> Forms:
        if "/" in name:
            return Forms(file=self._place(name))
        found = shutil.which(name, path=self._environ.get("PATH") or os.defpath)
        return Forms((name,), os.path.abspath(found) if found else "")

    def directories(self, spec: LaunchSpec) -> None:
        named = {"hydra.runtime.output_dir": spec.output_dir}
        if spec.log_dir != spec.output_dir:
            named["launch.log_dir"] = spec.log_dir
        if spec.cwd != spec.output_dir:
            named["launch.cwd"] = spec.cwd
        for key, path in named.items():
            # of a directory that the environment names, the name is not shown
            hidden = holds_env(spec.redacted.get(key.partition(".")[2]))
            self.directory(key, path, hidden=hidden)

    def directory(self, key: str, path: str, *, hidden: bool) -> None:
        place = self._place(path) if path else ""
        if not place.startswith("/") or is_within(place, self._policy.paths):
            return
        shown, wanted = ("", "") if hidden else (repr(path), place)
        message = f"is outside of the tree and {_not_in('paths')}"
        self._refuse(key, shown, message, "paths", wanted)

    def preload(self, spec: LaunchSpec) -> None:
        written = spec.redacted.get("preload")
        hidden = any(map(holds_env, written if isinstance(written, list) else [written]))
        for module in spec.preload:
            ours = module.startswith("lllaunch.")
            if not ours and not any(fits(each, module) for each in self._policy.preload):
                shown, wanted = ("", "") if hidden else (repr(module), module)
                self._refuse("launch.preload", shown, _not_in("preload"), "preload", wanted)

    def config(self, config: Mapping[Any, Any]) -> None:
        env_set = value_at(config, _ENV_SET.split("."))
        self.variables({_ENV_SET: env_set if isinstance(env_set, str) else variables_set(env_set)})
        for asked in asked_for(config):
            self.asked(asked)

    def variables(self, nodes: Mapping[str, Any]) -> None:
        for key, env in nodes.items():
            if isinstance(env, str):
                told = "comes from elsewhere in the config, so nothing tells which variables it has"
                self.problems.append(Problem(key, show(env), told, "write them out"))
            for name in map(str, env if isinstance(env, Mapping) else ()):
                allowed = (*HARMLESS_VARIABLES, *self._policy.env)
                if not any(fnmatchcase(name, each) for each in allowed):
                    self._refuse(f"{key}.{name}", "", _not_in("env"), "env", name)

    def asked(self, asked: Asked) -> None:
        value, name = asked.value, asked.lists[0]
        if not isinstance(value, str):
            problem = Problem(asked.key, show(value), "", expected="text, which can be judged")
            self.problems.append(problem)
            return
        patterns = [each for name in asked.lists for each in getattr(self._policy, name)]
        if value in _OWN_TARGETS.get(asked.path, ()) or value in patterns:
            return
        told = self._resolved(name, value) if asked.clear else ()
        refused = [each for each in told if not any(fits(pattern, each) for pattern in patterns)]
        if told and not refused:
            return
        wanted = refused[0] if refused else value
        if not told and not any(fits(pattern, value) for pattern in patterns):
            message = _not_in(name)
        elif not asked.clear:
            message = f"is an interpolation, which may come to anything, {_only_by(name)}"
        elif not told:
            message = f"cannot be told without importing it, {_only_by(name)}"
        else:
            message = _not_in(name) if wanted == value else f"is {wanted!r}, which {_not_in(name)}"
        self._refuse(asked.key, show(value), message, name, wanted)

    def _resolved(self, name: str, value: str) -> tuple[str, ...]:
        """What a text names, every way that it may be read; nothing if that cannot be told."""
        if name == "searchpath":
            scheme, separator, path = value.rpartition("://")
            return (f"{scheme}{separator}{os.path.normpath(path)}",)
        return tuple(f"{t.module}.{t.qualname}" for t in self._objects.dotted(value))

    def _place(self, path: str) -> str:
        """A path with its links resolved: relative if it is in the tree, else absolute."""
        real = os.path.realpath(path)
        inside = os.path.commonpath((real, self._root)) == self._root
        return os.path.relpath(real, self._root) if inside else real

    def _refuse(self, key: str, value: str, message: str, name: str, wanted: str) -> None:
        path = self._policy.path
        hint = f"to allow it, add {wanted!r} to allow.{name} in {path}" if wanted else ""
        self.problems.append(Problem(shorten(key), value, shorten(message), shorten(hint)))


def _not_in(name: str) -> str:
    return f"is not in allow.{name}"


def _only_by(name: str) -> str:
    return f"so only the same text in allow.{name} would do"
