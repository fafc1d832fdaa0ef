"""How stacks.txt reads. Pure."""

from __future__ import annotations

from lllaunch.watchdog.stacks.kernel import Look

_SPAWNER = "lllaunch.spawner.server"
_RULE = "=" * 72


def heading(text: str) -> str:
    """The beginning of what is written at one finding: why and when."""
    return f"{_RULE}\n{text.rstrip()}\n{_RULE}\n"


def section(look: Look, role: str, stacks: str, notes: tuple[str, ...] = ()) -> str:
    """What is known of one process.

    Args:
        look: what the kernel tells.
        role: what it is: the worker, or something below it.
        stacks: what faulthandler or py-spy wrote, or an empty string.
        notes: more lines, about how the stacks were got or why there are none.
    """
    # A fork of the spawner's has its command line, which says nothing of what it runs.
    command = "forked by the launcher's spawner" if _SPAWNER in look.command else look.command
    lines = [f"{role}: process {look.pid} (parent {look.ppid}): {command}"]
    lines += [f"  {line}" for line in look.status]
    lines.append(f"  waits in the kernel in: {look.wchan or '-'}")
    if look.stack:
        lines.append("  kernel stack:")
        lines += [f"    {line}" for line in look.stack]
    else:
        lines.append(f"  kernel stack: {look.no_stack}")
    if look.threads:
        lines.append("  its other threads (count, state, kernel function, name):")
        lines += [f"    {line}" for line in look.threads]
    lines += [f"  {note}" for note in notes]
    text = "\n".join(lines) + "\n"
    if stacks.strip():
        # As it was written, so that other programs can read it.
        text += f"\n{stacks.strip()}\n"
    return f"\n{text}"
