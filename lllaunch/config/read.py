"""The seam to OmegaConf: a node of a config becomes a tree, and what cannot be resolved a problem.

Every leaf is resolved on its own, so that one bad interpolation does not hide the others. While a
leaf is resolved, the resolver ``oc.env`` is watched: a value that came from the environment, by
whatever detour, is withheld from everything that is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lllaunch.config.fields import Findings
from lllaunch.config.secrets import (
    holds_env,
    safe_source,
    source_for,
    without_defaults,
)
from lllaunch.config.tree import BROKEN, Tree, Withheld
from lllaunch.errors import ConfigError, Diagnostic, Unfit
from lllaunch.hydra_compat import is_unset, resolvers

# Aliases (${a} beside ${a} beside ...) can make a small file expand without end.
MOST_LEAVES = 20_000
_DEEPEST = 50
_WHOLE_INTERPOLATION = re.compile(r"\$\{[^${}]*\}")


def register_resolvers() -> None:
    """Teaches OmegaConf ``${worker:NAME}``, which stands for itself until a worker is prepared.

    A resolver of that name that is somebody else's stays.
    """
    if not OmegaConf.has_resolver("worker"):
        OmegaConf.register_new_resolver(
            "worker", lambda *name: f"${{worker:{','.join(map(str, name))}}}"
        )
        _registered.append(resolvers()["worker"])


# What OmegaConf has made of it, each time.
_registered: list[Any] = []


def check_resolver() -> None:
    """Raise a `ConfigError` if ``${worker:NAME}`` is somebody else's resolver."""
    if resolvers()["worker"] not in _registered:
        text = "is a resolver of the app's own; lllaunch needs that name for its workers' facts"
        hint = "register it under another name"
        raise ConfigError((Diagnostic("worker-variable", "${worker:...}", "", text, hint),))


class _TooMuchError(Exception):
    """The config expands beyond all measure; said once, at the top."""


@contextmanager
def watching(*names: str) -> Iterator[list[str]]:
    """Notes each call of some of OmegaConf's resolvers, by whatever detour, with its first word."""
    # what was there, which may be the user's own, is put back
    table = resolvers()
    previous = {name: table[name] for name in names if name in table}
    calls: list[str] = []

    def watched(resolver: Any) -> Any:
        def call(config: Any, parent: Any, node: Any, args: Any, texts: Any) -> Any:
            calls.append(str(args[0]) if args else "")
            return resolver(config, parent, node, args, texts)

        return call

    table.update({name: watched(resolver) for name, resolver in previous.items()})
    try:
        yield calls
    finally:
        table.update(previous)


class Reader:
    """Reads nodes of one config.

    Values that hold one of ``literals``, the secrets in the config, are withheld too. Below the
    keys in ``unset`` a variable that is not set is no problem: its text is withheld all the same.
    """

    def __init__(
        self, findings: Findings, literals: Sequence[str] = (), unset: Sequence[str] = ()
    ) -> None:
        self._findings = findings
        self._unset = tuple(unset)
        self._literals = tuple(literals)
        self._left = MOST_LEAVES
        self._open: list[int] = []

    def read(self, cfg: DictConfig, key: str) -> Tree:
        """Return the tree below a key; leaves that cannot be read are `BROKEN`, and a problem."""
        return self.read_items(cfg, "", [key]).get(key)

    def read_items(
        self, node: Mapping[Any, Any], key: str, names: Collection[str]
    ) -> dict[str, Tree]:
        """Return the trees below the keys in ``names`` that a node has.

        ``key`` is the node's own; empty for the config itself.
        """
        raw = _raw(node) if isinstance(node, DictConfig) else node
        return {
            name: self._read(node, name, raw[name], f"{key}.{name}" if key else name)
            for name in names
            if name in raw
        }

    def _read(self, node: Mapping[Any, Any], name: str, raw: Any, key: str) -> Tree:
        try:
            with watching("oc.env") as reads:
                if isinstance(node, DictConfig):
                    return self._item(node, name, raw, key, name, reads, "")
                if isinstance(raw, (DictConfig, ListConfig)):
                    return self._container(raw, key, name, reads, "")
                return raw
        except _TooMuchError:
            self._findings.add_about(
                key, f"it expands to more than {MOST_LEAVES} values", code="too-large"
            )
            return BROKEN

    def _item(
        self,
        parent: DictConfig | ListConfig,
        index: Any,
        raw: Any,
        key: str,
        name: Any,
        reads: list[str],
        source: str,
    ) -> Tree:
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError
        del reads[:]
        try:
            value = parent[index]
        except MissingMandatoryValue:
            self._findings.add(key, MISSING, Unfit("a value", code="missing"))
            return BROKEN
        except (OmegaConfBaseException, RecursionError) as error:
            if _is_unset(error, reads) and key.startswith(self._unset):
                return Withheld("", source or _source_of(raw, name, reads))
            text = without_defaults(safe_source(raw, name)) if isinstance(raw, str) else None
            self._note_failure(key, text, error, reads)
            return BROKEN
        if reads and not source:
            source = _source_of(raw, name, reads)
        if isinstance(value, (DictConfig, ListConfig)):
            return self._container(value, key, name, reads, source)
        if not source and holds_env(raw):
            source = safe_source(raw, name)
        if not source and isinstance(value, str) and self._holds_literal(value):
            written = isinstance(raw, str) and "${" in raw
            source = safe_source(raw, name) if written else source_for(str(name))
        return Withheld(value, source) if source else value

    def _container(
        self, node: DictConfig | ListConfig, key: str, name: Any, reads: list[str], source: str
    ) -> Tree:
        if id(node) in self._open or len(self._open) >= _DEEPEST:
            why = "it contains itself" if id(node) in self._open else "it is nested too deeply"
            self._findings.add_about(key, why, code="too-large")
            return BROKEN
        raw: Any = _raw(node)
        self._open.append(id(node))
        try:
            if isinstance(node, ListConfig):
                return [
                    self._item(node, index, raw[index], f"{key}[{index}]", name, reads, source)
                    for index in range(len(node))
                ]
            return {
                own: self._item(node, own, raw[own], f"{key}.{_said(own)}", own, reads, source)
                for own in raw
            }
        finally:
            self._open.pop()

    def _holds_literal(self, text: str) -> bool:
        return any(literal in text for literal in self._literals)

    def _note_failure(self, key: str, text: str | None, error: Exception, reads: list[str]) -> None:
        shown = Withheld(None, text) if text else None
        if isinstance(error, RecursionError):
            message = "cannot be resolved: its references form too long a chain"
        elif reads or self._holds_literal(str(error)):
            # The reason may quote what was read; only the one reason that cannot is told.
            why = "its value is withheld here"
            if _is_unset(error, reads):
                why = f"the variable {reads[-1]} is not set"
            message = f"cannot be resolved: {why}"
        else:
            first, *_ = str(error).splitlines() or [type(error).__name__]
            message = f"cannot be resolved: {first.strip()}"
        if shown is None:
            self._findings.add_about(key, message, code="interpolation")
        else:
            self._findings.add(key, shown, Unfit(message=message, code="interpolation"))


def _is_unset(error: Exception, reads: Sequence[str]) -> bool:
    """Whether a leaf cannot be resolved since a variable of the environment is not set."""
    return bool(reads) and is_unset(error, reads[-1])


def _said(name: Any) -> Any:
    # restart's ``on``, which YAML reads as true
    return "on" if name is True else name


def _raw(node: DictConfig | ListConfig) -> Any:
    return OmegaConf.to_container(node, resolve=False)


def _source_of(raw: Any, name: Any, reads: Sequence[str]) -> str:
    detour = isinstance(raw, str) and not holds_env(raw) and _WHOLE_INTERPOLATION.fullmatch(raw)
    if detour or not isinstance(raw, str):
        # ${params.token}: what it leads to says more than the detour.
        return f"${{oc.env:{reads[0]}}}"
    return safe_source(raw, name)
