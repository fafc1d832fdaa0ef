"""Completion for bash: ``lllaunch +exp=<TAB>`` and ``python -m lllaunch +exp=<TAB>``.

Hydra's own completes overrides; it knows neither commands nor ``python -m``, and writes what it
cannot understand into the prompt.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence

from lllaunch.app.command_line import FLAGS, OWN_FLAGS, VERBS, WrongUsage, arranged

INSTALL = r"""_lllaunch_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" current="${COMP_WORDS[COMP_CWORD]}" reply
    local call=("$1")
    case "${1##*/}" in
    python*)
        if [ "${COMP_WORDS[1]} ${COMP_WORDS[2]}" != "-m lllaunch" ] || [ "$COMP_CWORD" -lt 3 ]; then
            COMPREPLY=()
            compopt +o nospace 2>/dev/null
            [ -n "$_lllaunch_former" ] && "$_lllaunch_former" "$@"
            return
        fi
        call+=(-m lllaunch)
        ;;
    esac
    # bash splits words at = and :, and replaces only what is behind the last of them
    case "$current" in [=:]) current="" ;; esac
    local word="${line##* }"
    local before="${word%"$current"}"
    COMPREPLY=()
    while IFS= read -r reply; do
        COMPREPLY+=("${reply#"$before"}")
    done < <(COMP_LINE="$line" "${call[@]}" -sc query=bash 2>/dev/null)
}
_lllaunch_rule=$(complete -p python 2>/dev/null | grep -v _lllaunch_complete)
_lllaunch_former=$(printf %s "$_lllaunch_rule" | sed -n 's/.* -F \([^ ]*\) .*/\1/p')
complete -o nospace -o default -F _lllaunch_complete lllaunch python python3
"""
"""What ``-sc install=bash`` prints, to be evaluated."""

UNINSTALL = """complete -r lllaunch python python3
eval "$_lllaunch_rule"
unset -f _lllaunch_complete
unset _lllaunch_rule _lllaunch_former
"""

_SCRIPTS = {"install=bash": INSTALL, "uninstall=bash": UNINSTALL}
# What a command takes that may be left out; it also takes the ids of batch jobs.
_LATEST = {
    verb: ["latest"]
    for verb in ("logs", "show", "stacks", "report", "rerun", "stop", "top", "wait")
}


def complete(words: Sequence[str], run: Callable[[list[str]], int]) -> int | None:
    """Do what ``-sc`` asks for.

    Args:
        words: of the command line.
        run: Hydra's app; called with a command line of its own.

    Returns:
        The exit code; None if that is left to Hydra: help, another shell.
    """
    others = [word for word in words if word not in {"-sc", "--shell-completion"}]
    if len(others) != 1:
        return None
    if others[0] in _SCRIPTS:
        sys.stdout.write(_SCRIPTS[others[0]])
        return 0
    if others[0] != "query=bash" or "COMP_LINE" not in os.environ:
        return None
    for choice in _choices(os.environ["COMP_LINE"], run):
        print(choice)
    return 0


def _choices(line: str, run: Callable[[list[str]], int]) -> list[str]:
    """Return what the last word of a line may become."""
    # without the program: lllaunch, or python -m lllaunch
    program = 1 if os.path.basename(line.split(" ", 1)[0]).startswith("lllaunch") else 3
    *words, last = line.split(" ")[program:] or [""]
    words = [word for word in words if word]
    verb = words.pop(0) if words and words[0] in VERBS else ""
    found = _LATEST.get(verb, []) if not words else []
    if not words and not verb:
        # a space follows, since it is whole
        found = [f"{name} " for name in VERBS]
    if last.startswith("-"):
        flags = {"": (*FLAGS, *OWN_FLAGS), "plan": (*FLAGS,), "rerun": OWN_FLAGS}.get(verb, ())
        found = [flag for flag in flags if flag.startswith("--")]
    elif verb in {"", "plan"}:
        # no experiment is chosen yet that could be overridden
        near = ["+exp=" if each == "exp=" else each for each in _overrides(words, last, run)]
        found = [*found, *near, *_without_default(last)]
    return sorted({choice for choice in found if choice.startswith(last)})


def _without_default(last: str) -> list[str]:
    """Return settings that are in no composed config unless somebody sets them."""
    node = "launch.watchdog."
    if not last.startswith(node):
        return []
    from lllaunch.config.watchdog import WATCHDOG_KEYS  # noqa: PLC0415 - of this node only

    return [f"{node}{key}=" for key in WATCHDOG_KEYS]


def _overrides(words: Sequence[str], last: str, run: Callable[[list[str]], int]) -> list[str]:
    """Return what Hydra would complete; nothing if the words before it make no sense."""
    try:
        before = arranged(words)
    except WrongUsage:
        return []
    os.environ["COMP_LINE"] = " ".join(["lllaunch", *before, last])
    printed = io.StringIO()
    silenced = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(silenced, 2)
    os.close(silenced)
    with contextlib.redirect_stdout(printed), contextlib.suppress(Exception, SystemExit):
        run(["-sc", "query=bash"])
    return printed.getvalue().split()
