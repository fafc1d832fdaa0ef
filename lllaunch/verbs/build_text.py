"""The commit and the versions that something was built from, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def commit_text(build: Mapping[str, Any]) -> str:
    """Returns the commit, and whether the tree was changed.

    Args:
        build: as `lllaunch.run.build.build_facts` returns it.
    """
    commit, branch, problem = (build.get(key) for key in ("commit", "branch", "git_problem"))
    if not commit:
        return f"not known: {problem}" if problem else ""
    text = f"{commit}" + (f" ({branch})" if branch else "")
    if build.get("dirty"):
        counts = [(build.get("changed"), "changed"), (build.get("untracked"), "untracked")]
        told = ", ".join(f"{number} {what}" for number, what in counts if number)
        text += f", with changes ({told})" if told else ", with changes"
    return f"{text}; {problem}" if problem else text


def versions_text(build: Mapping[str, Any]) -> str:
    """Returns the versions of packages and of Python.

    Args:
        build: as for `commit_text`.
    """
    versions = build.get("versions")
    told = versions.items() if isinstance(versions, Mapping) else ()
    python = f"{build.get('implementation', '')} {build.get('python', '')}".strip()
    return ", ".join(filter(None, (*(f"{k} {v}" for k, v in told), python)))
