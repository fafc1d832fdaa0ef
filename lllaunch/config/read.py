"""The seam to OmegaConf: a node of a config becomes a tree, and what cannot be resolved a problem.

Every leaf is resolved on its own, so that one bad interpolation does not hide the others. While a
leaf is resolved, the resolver ``oc.env`` is watched: a value that came from the environment, by
whatever detour, is withheld from everything that is written. Literals that look like a secret
(`lllaunch.secret_names.is_literal_secret`) must come from the environment, since Hydra writes
overrides and configs to files.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeGuard

from omegaconf import MISSING, DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lllaunch.config.fields import Findings
from lllaunch.config.omegaconf_compat import (
    MOST_REFERENCES,
    counting,
    interpolations,
    is_unset,
    own_node,
    raw_value,
    resolvers,
)
from lllaunch.config.tree import BROKEN, DEEPEST, MOST_VALUES, Tree, Withheld, parts_of, value_at
from lllaunch.errors import ConfigError, Diagnostic, Unfit
from lllaunch.secret_names import is_literal_secret, is_secret_name, is_telling_name, source_for

# What must never be written

# What may stand beside a variable in a header.
_SCHEME = re.compile(r"\s*(?:bearer|basic|token)\s+", re.IGNORECASE)
# their second argument may be the value
_WITH_DEFAULT = ("oc.env", "oc.select")
_OPENING = re.compile(r"(?<!\\)(?:\\\\)*\$\{")


def mentions_env(raw: object) -> TypeGuard[str]:
    """Return whether a leaf's text may ask for the environment, now or when it is read again."""
    return isinstance(raw, str) and "oc.env" in raw


def holds_env(raw: object) -> bool:
    """Return whether a leaf's own text asks for the environment.

    Within an interpolation escaped text counts, too: its resolver may read it.
    """
    if not mentions_env(raw) or "${" not in raw:
        return False
    found = interpolations(raw)
    if not found and _OPENING.search(raw):
        return True  # nobody can read it
    return any("oc.env" in raw[each.start : each.stop] for each in found)


def _literals_of(raw: str, name: object) -> Iterator[tuple[str, str]]:
    """Yield what should stand in place of a leaf's secrets, and these."""
    texts: list[tuple[object, str]] = [(name, text) for text in _beside(raw)]
    for each in interpolations(raw):
        if each.resolver not in _WITH_DEFAULT or len(each.words) < 2:
            continue
        variable, text = each.words[:2]
        if each.resolver == "oc.select":
            texts.append((name, text))
        elif is_literal_secret(text, variable) or is_literal_secret(text, name):
            yield f"${{oc.env:{variable}}}", text
    yield from ((source_for(str(key)), text) for key, text in texts if is_literal_secret(text, key))


def _beside(raw: str) -> Iterator[str]:
    """Yield the parts of a text that are no interpolation."""
    scheme = _SCHEME.match(raw) if "${" in raw else None
    place = scheme.end() if scheme else 0
    for each in interpolations(raw):
        if not each.depth:
            yield raw[place : each.start].strip()
            place = each.stop
    yield raw[place:].strip() if place else raw


def _texts(
    raw: Any, key: str, name: object, allowed: Collection[str]
) -> Iterator[tuple[str, object, str]]:
    """Yield the texts of unresolved data, but those below some keys: dotted key, name, text."""
    if key and key in allowed:
        return
    if isinstance(raw, dict):
        for own, item in raw.items():
            yield from _texts(item, f"{key}.{own}" if key else str(own), own, allowed)
    elif isinstance(raw, list):
        for index, item in enumerate(raw):
            yield from _texts(item, f"{key}[{index}]", name, allowed)
    elif isinstance(raw, str):
        yield key, name, raw


def literals(
    raw: Any, key: str = "", name: object = "", allowed: Collection[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Yield the secrets in unresolved data: dotted key, what should stand there, the secret."""
    for where, own, text in _texts(raw, key, name, allowed):
        yield from ((where, source, secret) for source, secret in _literals_of(text, own))


def not_secret(root: Mapping[Any, Any]) -> Collection[str]:
    """Return the dotted keys that a config, as plain data, says hold no secret."""
    keys = value_at(root, ["launch", "not_secret"])
    return [str(key) for key in keys] if isinstance(keys, list) else ()


def exposed(raw: Any, key: str = "", allowed: Collection[str] = ()) -> Iterator[str]:
    """Yield the dotted keys whose names say secret, and whose values anybody may read."""
    for where, name, text in _texts(raw, key, "", allowed):
        plain = text and "${" not in text and text != "???" and "[" not in where
        if plain and is_telling_name(name):
            yield where


EXPOSED = "a literal under a name that says secret is written to files as it is"
"""What is said of those."""


def problems_with(secrets: Iterable[tuple[str, str, str]]) -> list[Diagnostic]:
    """Return what is wrong with the secrets that `literals` found."""
    expected = "a secret to come from the environment"
    return [
        Diagnostic(
            *("secret", key, "a literal", ""),
            f"write {source}; if it is no secret, list {key} in launch.not_secret",
            expected=expected,
        )
        for key, source, _ in secrets
    ]


def safe_source(raw: str, name: object) -> str:
    """Return a leaf's own text, which resolves to its value again, without the secrets in it."""
    if any(is_literal_secret(text, name) for text in _beside(raw)):
        return source_for(str(name))
    return without_defaults(raw) if any(_literals_of(raw, name)) else raw


def without_defaults(raw: str) -> str:
    """Return a leaf's text with the defaults of its variables left out."""
    left = len(raw)
    for each in reversed(interpolations(raw)):
        if each.stop <= left and each.resolver in _WITH_DEFAULT:
            text = f"${{{each.resolver}:{each.words[0]}}}" if each.words else "${}"
            raw, left = raw[: each.start] + text + raw[each.stop :], each.start
    return raw


# Reading


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
    """A value expands beyond all measure; with its key and why."""


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
    """Reads nodes of one config, whose own text it looks at once.

    Values that hold a secret of the config are withheld, too. Below the keys in ``unset`` a
    variable that is not set is no problem: its text is withheld all the same. ``parts`` are dotted
    keys of parts of Hydra's node whose secrets count as well.

    Raises:
        ConfigError: the config is nested too deeply.
    """

    _watched: tuple[str, ...] = ("oc.env",)

    def __init__(
        self, cfg: DictConfig, findings: Findings, *parts: str, unset: Sequence[str] = ()
    ) -> None:
        self.cfg = cfg
        self.unset = tuple(unset)
        self._findings = findings
        try:
            # all but Hydra's node, unresolved
            self.root: dict[Any, Any] = {
                name: _raw(own_node(cfg, name)) for name in cfg if name != "hydra"
            }
            allowed = not_secret(self.root)
            found = list(literals(self.root, allowed=allowed))
            for part in filter(None, parts):
                node = OmegaConf.select(cfg, part, throw_on_resolution_failure=False)
                found += literals(_raw(node), part, allowed=allowed)
        except RecursionError:
            problem = Diagnostic("too-large", "", "the config", "is nested too deeply to be read")
            raise ConfigError((problem,)) from None
        # dotted key, what should stand there, and the secret
        self.secrets = found
        self._literals = tuple(text for *_, text in found)
        # aliases (${a} beside ${a} beside ...) can make a small file expand without end
        self._left = MOST_VALUES
        self._references = 0
        self._open: list[int] = []
        self._reads: list[str] = []

    def read(self, key: str) -> Tree:
        """Return the tree at a root key; leaves that cannot be read are `BROKEN`, and a problem."""
        return self.items("", [key]).get(key)

    def items(
        self, key: str, names: Collection[str] | None = None, without: Collection[str] = ()
    ) -> dict[str, Tree]:
        """Return the trees below the keys in ``names``, or all, that a mapping has.

        ``key`` is its own, empty for the config itself; nothing if there is no mapping.
        """
        node: Any = None
        with suppress(OmegaConfBaseException):
            node = OmegaConf.select(self.cfg, key) if key else self.cfg
        raw = value_at(self.root, key.split(".")) if key else self.root
        if not isinstance(raw, dict):
            # a reference, or a part of Hydra's node
            raw = _raw(node)
        if node is None or not isinstance(raw, dict):
            return {}
        return {
            name: self._read(node, raw[name], _At(f"{key}.{name}" if key else name, name))
            for name in (raw if names is None else names)
            if name in raw and name not in without
        }

    def _read(self, node: DictConfig, raw: Any, at: _At) -> Tree:
        if raw is None:
            return None  # most are, and need no resolver
        try:
            with watching(*self._watched) as self._reads, counting(self._count):
                return self._item(node, at.name, raw, at)
        except _TooMuchError as error:
            key, most = error.args
            self._findings.add_about(key, f"it expands to more than {most}", code="too-large")
            return BROKEN

    def _count(self) -> None:
        self._references += 1
        if self._references > MOST_REFERENCES:
            raise _TooMuchError

    def _item(self, parent: DictConfig | ListConfig, index: Any, raw: Any, at: _At) -> Tree:
        key, name, source = at
        reads = self._reads
        del reads[:]
        self._references = 0
        try:
            value = parent[index]
        except MissingMandatoryValue:
            self._findings.add(key, MISSING, Unfit("a value", code="missing"))
            return BROKEN
        except (OmegaConfBaseException, RecursionError) as error:
            if self._references > MOST_REFERENCES:
                self._left = -1
                raise _TooMuchError(key, f"{MOST_REFERENCES} references") from None
            if _is_unset(error, reads) and key.startswith(self.unset):
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
                    raise _TooMuchError(key, f"{MOST_VALUES} values")
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


def _raw(node: Any) -> Any:
    """Return what a node of a config holds, unresolved."""
    if isinstance(node, (DictConfig, ListConfig)):
        return OmegaConf.to_container(node, resolve=False)
    return raw_value(node) if isinstance(node, Node) else node


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


def cluster_key(cfg: DictConfig, *, users_own: bool = False, outer: str = "") -> str:
    """Return the dotted key of the node that says which cluster a run goes to; empty if none does.

    It is ``cluster`` at the root, or that of ``outer``, such as ``hydra.launcher``; whatever they
    have, none raises. In the config of an app of the user's own (``users_own``) nodes may have any
    names and keys. There ``backend`` must be written out at the root, and be one that we have; else
    it is enough that the key exists.
    """
    try:
        plain = _raw(OmegaConf.select(cfg, CLUSTER))
    except Exception:  # noqa: BLE001 - whatever OmegaConf and users' resolvers raise
        plain = None
    there = isinstance(plain, dict) and "backend" in plain
    if there and (not users_own or plain["backend"] == BACKEND):
        return CLUSTER
    if not outer:
        return ""
    key = f"{outer}.{CLUSTER}"
    try:
        return "" if OmegaConf.select(cfg, key) is None else key
    except Exception:  # noqa: BLE001 - as above
        return key


_PLAIN = (bool, int, float, str, bytes, enum.Enum, os.PathLike)


class PublicReader(Reader):
    """Reads a job's config as it may be written.

    Plain data, resolved but for some leaves, of which the config's own text stands there: those
    that come from the environment or from what changes with each composing (``${now:...}``,
    ``${hydra:...}``), by whatever detour; those under a name that says secret, and references to
    them; and those that cannot be resolved. Of literal secrets ``${oc.env:NAME}`` stands there.
    Resolvers of the user's are called; what they raise is ignored.
    """

    # what they give is a secret, or another one each time
    _watched = ("oc.env", "now", "hydra")

    def __init__(self, cfg: DictConfig) -> None:
        register_resolvers()
        super().__init__(cfg, Findings())

    def config(self) -> dict[str, Any]:
        """Return the whole config without ``hydra``, ``launch`` and ``cluster``.

        A ``cluster`` that is the user's own is no other key.
        """
        return self.items("", without=("launch", cluster_key(self.cfg, users_own=True)))

    def with_sources(self, decided: Mapping[str, Any], *nodes: str) -> dict[str, Any]:
        """Return a decided ``launch`` node that is the same whenever the config is composed.

        Leaves of which the config's own text may be written have that text. ``nodes`` are the
        dotted keys that it was read from, the strongest last.
        """
        found = dict(decided)
        for node in nodes:
            texts = self.items(node)
            found = {key: _with_text(item, texts.get(key)) for key, item in found.items()}
        return found

    def _item(self, parent: DictConfig | ListConfig, index: Any, raw: Any, at: _At) -> Tree:
        if isinstance(raw, (dict, list)):
            return self._container(parent[index], raw, at)
        if not isinstance(raw, str) or "${" not in raw:
            if isinstance(raw, str) and self._holds_literal(raw):
                return source_for(str(at.name))
            return raw if raw is None or isinstance(raw, _PLAIN) else f"<{type(raw).__qualname__}>"
        tree: Tree = BROKEN
        # once one is too much, those that come after stay as well
        if self._left >= 0 and not is_secret_name(at.name) and not self._stays(raw):
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
            target = None if word.startswith(".") else value_at(self.root, parts)
            if isinstance(target, str) and follow and self._stays(target, follow - 1):
                return True
        return False


def _with_text(decided: Any, text: Any) -> Any:
    if isinstance(decided, dict) and isinstance(text, dict):
        return {key: _with_text(item, text.get(key)) for key, item in decided.items()}
    if isinstance(decided, list) and isinstance(text, list) and len(decided) == len(text):
        return [_with_text(*pair) for pair in zip(decided, text, strict=True)]
    return text if isinstance(text, str) and "${" in text else decided
