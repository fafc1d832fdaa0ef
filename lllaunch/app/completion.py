"""Completion for bash, zsh and fish: ``lllaunch +exp=<TAB>``; in bash ``python -m lllaunch``, too.

Hydra's own completes overrides; it knows neither commands nor options of others nor ``python -m``,
and writes what it cannot understand into the prompt.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from lllaunch.app import torchrun
from lllaunch.app.command_line import FLAGS, VERBS, WrongUsage, read

_BASH = r"""_lllaunch_complete() {
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
_BASH_UNINSTALL = """complete -r lllaunch python python3
eval "$_lllaunch_rule"
unset -f _lllaunch_complete
unset _lllaunch_rule _lllaunch_former
"""

# A choice with a blank at its end is whole; of the others more is to come.
_ZSH = r"""_lllaunch_complete() {
    local line="${(j: :)words[1,CURRENT]}" added=1
    local -a found
    found=("${(@f)$(COMP_LINE="$line" "${words[1]}" -sc query=zsh 2>/dev/null)}")
    compadd -Q -- ${${(M)found:#* }% } && added=0
    compadd -Q -S '' -- ${found:#* } && added=0
    (( added )) && _files
}
(( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit; }
compdef _lllaunch_complete lllaunch
"""
_FISH = """function __lllaunch_complete
    set -lx COMP_LINE (commandline -cp | string collect)
    set -l found (lllaunch -sc query=fish 2>/dev/null | string trim -r)
    test (count $found) -gt 0 && printf '%s\\n' $found || __fish_complete_path (commandline -ct)
end
complete -c lllaunch -f -a '(__lllaunch_complete)'
"""
_SCRIPTS = {
    "install=bash": _BASH,
    "install=zsh": _ZSH,
    "install=fish": _FISH,
    "uninstall=bash": _BASH_UNINSTALL,
}
# What a command takes that may be left out; it also takes the ids of batch jobs.
_LATEST = ("logs", "show", "stacks", "report", "rerun", "stop", "top", "wait")
# Those that take what a run takes.
_OF_RUNS = ("", "plan", "init")


def complete(
    words: Sequence[str],
    run: Callable[[list[str]], int],
    flags_of: Callable[[str], Mapping[str, int | None]],
) -> int | None:
    """Do what ``-sc`` asks for; None for help, which is left to Hydra.

    ``run`` is Hydra's app, called with a command line of its own; ``flags_of`` returns the options
    of a command.
    """
    (asked,) = words if len(words) == 1 else ("",)
    if asked in _SCRIPTS:
        sys.stdout.write(_SCRIPTS[asked])
        return 0
    if not asked.startswith("query=") or "COMP_LINE" not in os.environ:
        return None
    for choice in choices(os.environ["COMP_LINE"], run, flags_of):
        print(choice)
    return 0


def choices(
    line: str,
    run: Callable[[list[str]], int],
    flags_of: Callable[[str], Mapping[str, int | None]],
) -> list[str]:
    """Return what the last word of a line may become; the others as for `complete`."""
    # without the program: lllaunch, or python -m lllaunch
    program = 1 if os.path.basename(line.split(" ", 1)[0]).startswith("lllaunch") else 3
    *words, last = line.split(" ")[program:] or [""]
    words = [word for word in words if word]
    verb = words.pop(0) if words and words[0] in VERBS else ""
    flags = flags_of(verb) if verb else FLAGS
    found = ["latest"] if verb in _LATEST and not words else []
    if not words and not verb:
        found = [f"{name} " for name in VERBS]
    if verb in _OF_RUNS:
        try:
            line_read = read(words, flags)
        except WrongUsage:
            return []
        if line_read.has_script:
            return []
        for path in glob.glob(f"{glob.escape(last)}*"):
            if os.path.isdir(path) or path.endswith(".py"):
                found.append(f"{path}{'/' if os.path.isdir(path) else ' '}")
        if not last.startswith("-"):
            # no experiment is chosen yet that could be overridden
            # what Hydra would complete
            os.environ["COMP_LINE"] = " ".join(["lllaunch", *line_read.words, last])
            printed = io.StringIO()
            silenced = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(silenced, 2)
            os.close(silenced)
            with contextlib.redirect_stdout(printed), contextlib.suppress(Exception, SystemExit):
                run(["-sc", "query=bash"])
            near = printed.getvalue().split()
            found += ["+exp=" if each == "exp=" else each for each in near]
            node = "launch.watchdog."
            if last.startswith(node):
                from lllaunch.config.watchdog import WATCHDOG_KEYS  # noqa: PLC0415 - of it only

                # they are in no composed config unless somebody sets them
                found += [f"{node}{key}=" for key in WATCHDOG_KEYS]
    if last.startswith("-"):
        found = [flag for flag in flags if flag.startswith("--")]
        if verb in _OF_RUNS:
            spelt = "_" if "_" in last else "-"
            found += [f"--{name.replace('-', spelt)}" for name in torchrun.OPTIONS]
    return sorted({choice for choice in found if choice.startswith(last)})
