"""NUMA binding, which is torch's: its options are made by torch, and so is what they do.

Whoever passes options has imported torch to make them; without options nothing here imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def wrap_command(command: tuple[str, ...], gpu: int, options: Any) -> tuple[str, ...]:
    """The command, bound to the NUMA node of a GPU by torch's rules; unchanged without options.

    Raises:
        RuntimeError: this torch cannot bind commands.
    """
    if options is None:
        return command
    bind = _torch_function("_maybe_wrap_command_args_with_numa_binding")
    return tuple(bind(command, gpu_index=gpu, numa_options=options))


def wrap_function(
    function: Callable[..., Any], args: tuple[Any, ...], gpu: int, options: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The call, bound to the NUMA node of a GPU when it runs; unchanged without options."""
    if options is None:
        return function, args
    return call_bound, (function, args, gpu, options)


def call_bound(function: Callable[..., Any], args: tuple[Any, ...], gpu: int, options: Any) -> Any:
    """In a worker: bind to the NUMA node of a GPU, then call."""
    bind = _torch_function("_maybe_wrap_with_numa_binding")
    return bind(function, gpu_index=gpu, numa_options=options)(*args)


def _torch_function(name: str) -> Callable[..., Any]:
    from torch.numa import binding  # noqa: PLC0415 - on request only: it imports torch

    found = getattr(binding, name, None)
    if found is None:
        raise RuntimeError(f"numa_options: this version of torch has no torch.numa.binding.{name}")
    return found  # type: ignore[no-any-return]
