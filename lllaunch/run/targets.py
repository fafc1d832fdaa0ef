"""What each worker of a configured run executes, and with which variables of the user's. Pure."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

from lllaunch.errors import NotPicklable
from lllaunch.macros import substitute
from lllaunch.spawner.protocol import Function, Module, Program, Script, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lllaunch.spec import LaunchSpec


def target_of(spec: LaunchSpec, facts: Mapping[str, str]) -> Target:
    """Returns what one worker runs.

    Args:
        spec: the run.
        facts: what is known of the worker (`lllaunch.macros.WORKER_NAMES`); stands for the
            ``${worker:...}`` in its arguments.

    Raises:
        NotPicklable: an argument of a function cannot be sent to the worker.
    """
    entrypoint = spec.entrypoint
    args = substitute(spec.args, facts, bare=False)
    if entrypoint.form == "function":
        call = _pickled(args, dict(substitute(spec.kwargs, facts, bare=False)), facts)
        return Function(entrypoint.name, entrypoint.qualname, call)
    argv = tuple(str(arg) for arg in args)
    if entrypoint.form == "script":
        # As it was written, where that means the same file: it is the script's sys.argv[0].
        same = os.path.join(spec.cwd, entrypoint.text) == entrypoint.name
        return Script(entrypoint.text if same else entrypoint.name, argv)
    if entrypoint.form == "module":
        return Module(entrypoint.name, argv)
    return Program(entrypoint.name, argv)


def _pickled(
    args: tuple[object, ...], kwargs: Mapping[str, object], facts: Mapping[str, str]
) -> bytes:
    try:
        return pickle.dumps((args, kwargs), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickle raises whatever the object's own methods raise
        what = f"an argument of worker {facts.get('rank', '?')}"
        raise NotPicklable(what, f"{type(error).__name__}: {error}") from error


def env_of(spec: LaunchSpec, facts: Mapping[str, str]) -> dict[str, str]:
    """Returns the user's variables of one worker: ``env``, then those of its rank over them.

    Args:
        spec: the run.
        facts: what is known of the worker; ``local_rank`` chooses among ``env_per_rank``.
    """
    own = spec.env_per_rank.get(int(facts["local_rank"]), {})
    return dict(substitute({**spec.env, **own}, facts, bare=False))
