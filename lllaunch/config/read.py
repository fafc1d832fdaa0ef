"""The seam to OmegaConf: a node of a config becomes a tree, and what cannot be resolved a problem.

Every leaf is resolved on its own, so that one bad interpolation does not hide the others. While a
leaf is resolved, the resolver ``oc.env`` is watched: a value that came from the environment, by
whatever detour, is withheld from everything that is written.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lllaunch.config.fields import Findings
from lllaunch.config.interpolation import interpolations
from lllaunch.config.secrets import (
    holds_env,
    literals,
    mentions_env,
    not_secret,
    safe_source,
    without_defaults,
)
from lllaunch.config.tree import BROKEN, DEEPEST, MOST_VALUES, Tree, Withheld, parts_of, value_at
from lllaunch.errors import ConfigError, Diagnostic, Unfit
from lllaunch.omegaconf_compat import is_unset, resolvers
from lllaunch.secret_names import is_secret_name, source_for


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


class _At(NamedTuple):
    """Where a value stands: its dotted key, its name, and what to write in place of a secret."""

    key: str
    name: Any
    source: str = ""


class Reader:
    """Reads nodes of one config.

    Values that hold one of ``literals``, the secrets in the config, are withheld too. Below the
    keys in ``unset`` a variable that is not set is no problem: its text is withheld all the same.
    """

    _watched: tuple[str, ...] = ("oc.env",)

    def __init__(
        self, findings: Findings, literals: Sequence[str] = (), unset: Sequence[str] = ()
    ) -> None:
        self._findings = findings
        self._unset = tuple(unset)
        self._literals = tuple(literals)
        # aliases (${a} beside ${a} beside ...) can make a small file expand without end
        self._left = MOST_VALUES
        self._open: list[int] = []
        self._reads: list[str] = []

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
            name: self._read(node, raw[name], _At(f"{key}.{name}" if key else name, name))
            for name in names
            if name in raw
        }

    def _read(self, node: Mapping[Any, Any], raw: Any, at: _At) -> Tree:
        try:
            with watching(*self._watched) as self._reads:
                if isinstance(node, DictConfig):
                    return self._item(node, at.name, raw, at)
                if isinstance(raw, (DictConfig, ListConfig)):
                    return self._container(raw, _raw(raw), at)
                return raw
        except _TooMuchError:
            text = f"it expands to more than {MOST_VALUES} values"
            self._findings.add_about(at.key, text, code="too-large")
            return BROKEN

    def _item(self, parent: DictConfig | ListConfig, index: Any, raw: Any, at: _At) -> Tree:
        key, name, source = at
        reads = self._reads
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
            self._note_failure(key, text, error)
            return BROKEN
        if reads and not source:
            source = _source_of(raw, name, reads)
        if isinstance(value, (DictConfig, ListConfig)):
            if id(value) in self._open or len(self._open) >= DEEPEST:
                itself = id(value) in self._open
                why = "it contains itself" if itself else "it is nested too deeply"
                self._findings.add_about(key, why, code="too-large")
                return BROKEN
            if isinstance(raw, str):  # a reference
                raw = _raw(value)
                self._left -= _size(raw)
                if self._left < 0:
                    raise _TooMuchError
            return self._container(value, raw, _At(key, name, source))
        if not source and holds_env(raw):
            source = safe_source(raw, name)
        if not source and isinstance(value, str) and self._holds_literal(value):
            written = isinstance(raw, str) and "${" in raw
            source = safe_source(raw, name) if written else source_for(str(name))
        return Withheld(value, source) if source else value

    def _container(self, node: DictConfig | ListConfig, raw: Any, at: _At) -> Tree:
        key, name, source = at
        self._open.append(id(node))
        try:
            if isinstance(raw, list):
                return [
                    self._item(node, index, item, _At(f"{key}[{index}]", name, source))
                    for index, item in enumerate(raw)
                ]
            return {
                # restart's ``on`` is true for YAML
                own: self._item(
                    node, own, item, _At(f"{key}.{'on' if own is True else own}", own, source)
                )
                for own, item in raw.items()
            }
        finally:
            self._open.pop()

    def _holds_literal(self, text: str) -> bool:
        return any(literal in text for literal in self._literals)

    def _note_failure(self, key: str, text: str | None, error: Exception) -> None:
        reads = self._reads
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
        if text:
            unfit = Unfit(message=message, code="interpolation")
            self._findings.add(key, Withheld(None, text), unfit)
        else:
            self._findings.add_about(key, message, code="interpolation")


def _is_unset(error: Exception, reads: Sequence[str]) -> bool:
    """Whether a leaf cannot be resolved since a variable of the environment is not set."""
    return bool(reads) and is_unset(error, reads[-1])


def _raw(node: DictConfig | ListConfig) -> Any:
    return OmegaConf.to_container(node, resolve=False)


def _source_of(raw: Any, name: Any, reads: Sequence[str]) -> str:
    if not isinstance(raw, str) or (_is_reference(raw) and not holds_env(raw)):
        # ${params.token}: what it leads to says more than the detour.
        return f"${{oc.env:{reads[0]}}}"
    return safe_source(raw, name)


def _is_reference(raw: str) -> bool:
    found = interpolations(raw)
    return len(found) == 1 and found[0][:2] == (0, len(raw))


def _size(content: Any) -> int:
    if isinstance(content, dict):
        return 1 + sum(map(_size, content.values()))
    return 1 + sum(map(_size, content)) if isinstance(content, list) else 1


CLUSTER: Final = "cluster"
"""The root node that says where a run goes that is not run here."""

BACKEND: Final = "slurm"


def asks_for_cluster(cfg: DictConfig, *, users_own: bool = False) -> bool:
    """Return whether a config has a node ``cluster`` that is ours; whatever it has, none raises.

    In the config of an app of the user's own (``users_own``) nodes may have any names and keys.
    There ``backend`` must be written out, and be one that we have; else it is enough that the key
    exists.
    """
    return node_of_cluster(cfg, users_own=users_own) is not None


def node_of_cluster(cfg: DictConfig, *, users_own: bool = False) -> DictConfig | None:
    """The node ``cluster`` of a config, if `asks_for_cluster` says that it is ours."""
    try:
        node = OmegaConf.select(cfg, CLUSTER)
        plain: Any = _raw(node) if isinstance(node, DictConfig) else None
    except Exception:  # noqa: BLE001 - whatever OmegaConf and users' resolvers raise
        return None
    if not isinstance(plain, dict) or "backend" not in plain:
        return None
    return None if users_own and plain["backend"] != BACKEND else node


_LEFT_OUT = ("hydra", "launch")
_PLAIN = (bool, int, float, str, bytes, enum.Enum, os.PathLike)


def public_config(cfg: DictConfig) -> dict[str, Any]:
    """A job's config as it may be written, without ``hydra``, ``launch`` and ``cluster``.

    A ``cluster`` that is the user's own is no other key.

    Plain data, resolved but for some leaves, of which the config's own text stands there: those
    that come from the environment or from what changes with each composing (``${now:...}``,
    ``${hydra:...}``), by whatever detour; those under a name that says secret, and references to
    them; and those that cannot be resolved. Of literal secrets ``${oc.env:NAME}`` stands there.
    Resolvers of the user's are called; what they raise is ignored.
    """
    register_resolvers()
    root: Any = OmegaConf.to_container(cfg, resolve=False)
    left_out = {*_LEFT_OUT, CLUSTER} if asks_for_cluster(cfg, users_own=True) else {*_LEFT_OUT}
    return _PublicReader(root).read_items(cfg, "", [name for name in root if name not in left_out])


def with_sources(decided: Mapping[str, Any], cfg: DictConfig, *nodes: str) -> dict[str, Any]:
    """Return a decided ``launch`` node that is the same whenever the config is composed.

    Leaves of which `public_config` would leave the config's own text have that text. ``nodes`` are
    the dotted keys that it was read from, the strongest last.
    """
    register_resolvers()
    root: Any = OmegaConf.to_container(cfg, resolve=False)
    found = dict(decided)
    for node in nodes:
        raw = value_at(root, node.split("."))
        if isinstance(raw, dict):
            texts = _PublicReader(root).read_items(OmegaConf.select(cfg, node), node, [*raw])
            found = {key: _with_text(item, texts.get(key)) for key, item in found.items()}
    return found


def _with_text(decided: Any, text: Any) -> Any:
    if isinstance(decided, dict) and isinstance(text, dict):
        return {key: _with_text(item, text.get(key)) for key, item in decided.items()}
    if isinstance(decided, list) and isinstance(text, list) and len(decided) == len(text):
        return [_with_text(*pair) for pair in zip(decided, text, strict=True)]
    return text if isinstance(text, str) and "${" in text else decided


class _PublicReader(Reader):
    """Reads what may be written, with the config's own text in place of what may not."""

    # what they give is a secret, or another one each time
    _watched = ("oc.env", "now", "hydra")

    def __init__(self, root: Mapping[str, Any]) -> None:
        written = {name: item for name, item in root.items() if name != "hydra"}
        found = literals(written, allowed=not_secret(root))
        super().__init__(Findings(), [text for _, _, text in found])
        self._root = root

    def _item(self, parent: DictConfig | ListConfig, index: Any, raw: Any, at: _At) -> Tree:
        if isinstance(raw, (dict, list)):
            return self._container(parent[index], raw, at)
        if not isinstance(raw, str) or "${" not in raw:
            if isinstance(raw, str) and self._holds_literal(raw):
                return source_for(str(at.name))
            return raw if raw is None or isinstance(raw, _PLAIN) else f"<{type(raw).__qualname__}>"
        tree: Tree = BROKEN
        if not is_secret_name(at.name) and not self._stays(raw):
            with suppress(_TooMuchError):
                tree = super()._item(parent, index, raw, at)
        plain = tree is None or isinstance(tree, (*_PLAIN, dict, list))
        return tree if plain else safe_source(raw, at.name)

    def _container(self, node: DictConfig | ListConfig, raw: Any, at: _At) -> Tree:
        return BROKEN if at.source else super()._container(node, raw, at)

    def _stays(self, raw: str, follow: int = 10) -> bool:
        """Whether a leaf's text says that its value may not be written, as far as one can tell."""
        if mentions_env(raw):
            return True
        for each in interpolations(raw):
            word = each.words[0] if each.words else ""
            parts = parts_of(word.lstrip("."))
            if each.resolver in {"now", "hydra"} or (
                each.resolver is None and "hydra" in parts[:1]
            ):
                return True
            if each.resolver not in {None, "oc.select"} or not parts:
                continue
            if is_secret_name(parts[-1]):
                return True
            target = None if word.startswith(".") else value_at(self._root, parts)
            if isinstance(target, str) and follow and self._stays(target, follow - 1):
                return True
        return False
