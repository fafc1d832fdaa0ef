"""Builds a `LaunchSpec` from the settings of a launch node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lllaunch.config import fields
from lllaunch.config.env import read_env, read_env_per_rank
from lllaunch.config.findings import Unfit
from lllaunch.config.gpus import PRETEND, count_gpus
from lllaunch.config.masks import Mask, check_mask, parse_mask, write_mask
from lllaunch.config.nproc import count_cpus, nproc_word, parse_nproc
from lllaunch.config.plan import default_run_id
from lllaunch.config.quantities import format_duration, parse_duration
from lllaunch.config.ranks import check_within, parse_ranks
from lllaunch.config.resources import read_resources
from lllaunch.config.restart import read_restart
from lllaunch.config.settings import Settings
from lllaunch.config.surroundings import Surroundings
from lllaunch.config.target import Call, Place, check_preload, read_call_of, why_empty
from lllaunch.config.tree import BROKEN, Tree, Withheld, leaves, reveal
from lllaunch.config.watchdog import read_watchdog
from lllaunch.macros import names_in
from lllaunch.multiprocessing.std import Std
from lllaunch.secret_names import is_secret
from lllaunch.spec import LaunchSpec
from lllaunch.units import write_range

_METHODS = ("forkserver", "spawn")
_METHOD_HINTS = {"fork": "use 'forkserver': 'fork' is for the Python API"}
_STREAMS = ("redirects", "tee")


@dataclass(frozen=True)
class _Variables:
    common: dict[str, Tree]
    per_rank: dict[range, dict[str, Tree]]


def build(settings: Settings, around: Surroundings) -> LaunchSpec:
    """Reads all settings.

    Args:
        settings: of the launch node; what is wrong goes to their findings.
        around: what the config is read in.

    Returns:
        The spec; of use only if nothing was found.
    """
    env = read_env(settings["env"], settings.key_of("env"), settings.findings)
    settings.decide_parts("env", env)
    nproc = _read_nproc(settings, env, around)
    variables = _Variables(env, _read_env_per_rank(settings, nproc))
    cwd = settings.scalar(
        "cwd",
        lambda v: fields.read_directory(v, around.runtime_cwd, around.output_dir),
        around.runtime_cwd,
    )
    place = _place(cwd, variables, nproc, around)
    call = _read_call(settings, place, around)
    preload = settings.each("preload", lambda v: check_preload(v, place.sys_path))
    more: dict[str, Any] = {
        **_read_names(settings, around),
        **_read_output(settings, nproc),
        **_read_ending(settings),
    }
    return LaunchSpec(
        entrypoint=call.entrypoint,
        args=tuple(reveal(list(call.args))),
        kwargs=reveal(dict(call.kwargs)),
        nproc=nproc or 1,
        cwd=cwd,
        preload=preload,
        env=reveal(env),
        env_per_rank={
            rank: reveal(own)
            for ranks, own in variables.per_rank.items()
            # where their number is not known, a range may be huge
            for rank in range(ranks.start, min(ranks.stop, nproc or 1))
        },
        secrets=_sources(env, *variables.per_rank.values()),
        hidden=_hidden(settings["args"]),
        output_dir=around.output_dir,
        runtime_cwd=around.runtime_cwd,
        redacted=settings.plan(),
        **more,
    )


def _read_nproc(settings: Settings, env: Mapping[str, Tree], around: Surroundings) -> int | None:
    name = "CUDA_VISIBLE_DEVICES"
    visible = reveal(env[name]) if name in env else around.environ.get(name)

    def gpus() -> int:
        return count_gpus(visible, around.nvml, pretended=around.environ.get(PRETEND))

    def read(value: object) -> int | None:
        if nproc_word(value) and not around.here:
            return None
        return parse_nproc(value, cpus=count_cpus, gpus=gpus)

    nproc = settings.scalar("nproc", read, None)
    if _left_to_machine(settings):
        # a plan is the same on all machines
        settings.decide("nproc", nproc_word(reveal(settings["nproc"])))
    return nproc


def _left_to_machine(settings: Settings) -> bool:
    """Whether the number of workers is another one on another machine."""
    return bool(nproc_word(reveal(settings["nproc"])))


def _read_env_per_rank(settings: Settings, nproc: int | None) -> dict[range, dict[str, Tree]]:
    name = "env_per_rank"
    per_rank = read_env_per_rank(settings[name], settings.key_of(name), nproc, settings.findings)
    settings.decide_parts(name, {_written(ranks): env for ranks, env in per_rank.items()})
    return per_rank


def _written(ranks: range) -> int | str:
    return ranks.start if len(ranks) == 1 else write_range(ranks)


def _sources(*envs: Mapping[str, Tree]) -> dict[str, str]:
    return {
        name: value.source
        for env in envs
        for name, value in env.items()
        if isinstance(value, Withheld)
    }


def _hidden(arguments: Tree) -> dict[str, str]:
    return {
        str(leaf.value): leaf.source
        for key, leaf in leaves(arguments, "")
        if isinstance(leaf, Withheld) and is_secret(str(leaf.value), key, leaf.source)
    }


def _place(cwd: str, variables: _Variables, nproc: int | None, around: Surroundings) -> Place:
    env = reveal(variables.common)
    common = {"PATH": os.defpath, **around.environ, **env}["PATH"]
    paths = {reveal(own.get("PATH", common)) for own in variables.per_rank.values()}
    if sum(len(ranks) for ranks in variables.per_rank) < (nproc or 1):
        paths.add(common)
    # Only what the config adds: the launcher's own PYTHONPATH is in its sys.path already.
    added = [os.path.join(cwd, entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep)]
    sys_path = (around.runtime_cwd, cwd, *added, *around.sys_path)
    return Place(
        runtime_cwd=around.runtime_cwd,
        sys_path=tuple(dict.fromkeys(sys_path)),
        search_paths=tuple(path for path in sorted(paths) if not names_in(path, bare=False)),
    )


def _read_call(settings: Settings, place: Place, around: Surroundings) -> Call:
    entrypoint, findings = settings["entrypoint"], settings.findings
    if not around.entrypoint_required:
        _refuse_entrypoint(settings)
        return Call()
    call = Call()
    if reveal(entrypoint) in (None, ""):
        unfit = why_empty(around.root, around.key, around.searched)
        findings.add(settings.key_of("entrypoint"), entrypoint, unfit)
    elif entrypoint is not BROKEN:
        call = read_call_of(entrypoint, settings["args"], place, around.key, findings)
    settings.decide("entrypoint", call.entrypoint.text or None)
    settings.decide_parts("args", call.written_args())
    return call


def _refuse_entrypoint(settings: Settings) -> None:
    for name in ("entrypoint", "args"):
        value = settings[name]
        if reveal(value) not in (None, "", [], {}):
            message = "is not used here: what the workers run is the decorated function"
            unfit = Unfit(message=message, hint="leave it out")
            settings.findings.add(settings.key_of(name), value, unfit)


def _read_names(settings: Settings, around: Surroundings) -> dict[str, Any]:
    def read_method(value: object) -> str:
        return fields.read_choice(value, _METHODS, _METHOD_HINTS)

    def read_log_dir(value: object) -> str:
        return fields.read_new_directory(value, around.runtime_cwd)

    run_id = default_run_id(around.output_dir)
    return {
        "role": settings.scalar("role", fields.read_line, ""),
        "start_method": settings.scalar("start_method", read_method, ""),
        "log_dir": settings.scalar("log_dir", read_log_dir, around.output_dir),
        "run_id": settings.scalar("run_id", fields.read_line, run_id),
        "virtual_local_rank": settings.scalar("virtual_local_rank", fields.read_flag, False),
        "locked": settings.scalar("locked", fields.read_locked, fields.UNLOCKED),
    }


def _read_output(settings: Settings, nproc: int | None) -> dict[str, Any]:
    masks = {name: _read_mask(settings, name, nproc) for name in _STREAMS}
    tee = masks["tee"].by_rank(nproc or 1)
    files = masks["redirects"].by_rank(nproc or 1)
    # What is shown is read from the file.
    redirects = {rank: Std(std | tee[rank]) for rank, std in files.items()}
    varies = _left_to_machine(settings)
    settings.decide("tee", masks["tee"].text if varies else write_mask(tee))
    settings.decide("redirects", masks["redirects"].text if varies else write_mask(redirects))
    return {
        "redirects": redirects,
        "tee": tee,
        "local_ranks_filter": _read_ranks_filter(settings, nproc),
        "duplicate_stdout_filters": settings.each("duplicate_stdout_filters", fields.read_text),
        "duplicate_stderr_filters": settings.each("duplicate_stderr_filters", fields.read_text),
        "log_line_prefix": settings.scalar("log_line_prefix", fields.read_prefix, None),
    }


def _read_mask(settings: Settings, name: str, nproc: int | None) -> Mask:
    tree, key, findings = settings[name], settings.key_of(name), settings.findings
    mask = parse_mask(tree, key, findings) or Mask()
    if nproc is not None:
        check_mask(mask, tree, key, nproc, findings)
    return mask


def _read_ranks_filter(settings: Settings, nproc: int | None) -> frozenset[int] | None:
    name = "local_ranks_filter"
    if settings[name] is None:
        return None

    def read(value: object) -> range:
        ranks = parse_ranks(value)
        if nproc is not None:
            check_within(ranks, nproc)
        return ranks

    parts = settings.each(name, read)
    settings.decide(name, [_written(part) for part in _joined(parts)])
    if nproc is None:
        return None  # the ranges have no bound that is known, and could be huge
    return frozenset(rank for part in parts for rank in part)


def _joined(ranges: Sequence[range]) -> list[range]:
    """Ranges in order, without overlaps and gaps of none."""
    found: list[range] = []
    for ranks in sorted(ranges, key=lambda each: each.start):
        if found and ranks.start <= found[-1].stop:
            last = found.pop()
            found.append(range(last.start, max(last.stop, ranks.stop)))
        else:
            found.append(ranks)
    return found


def _read_ending(settings: Settings) -> dict[str, Any]:
    return {
        "grace_period": settings.scalar("grace_period", parse_duration, 0.0, format_duration),
        "signals": settings.each("signals", fields.read_signal, lambda signum: signum.name),
        "watchdog": read_watchdog(settings),
        "max_restarts": settings.scalar("max_restarts", fields.read_count, 0),
        "restart": read_restart(settings),
        "resources": read_resources(settings),
    }
