"""What OmegaConf's public names do not tell: its private ones, and what ``${...}`` refer to.

No other module uses a private name of its; Hydra's are in `lllaunch.hydra_compat`. A batch job
reads its plan without Hydra.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from antlr4 import ParserRuleContext  # type: ignore[import-untyped]  # it ships no types
from omegaconf import Container

# what dictionaries and lists have in common
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import GrammarParseError
from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser
from omegaconf.grammar_parser import parse

from lllaunch.config.tree import dotted

if TYPE_CHECKING:
    from omegaconf import DictConfig, ListConfig


def resolvers() -> dict[str, Any]:
    """Return OmegaConf's own table of resolvers; there is no public way to put one back."""
    found: dict[str, Any] = BaseContainer._resolvers
    return found


@contextlib.contextmanager
def counting(count: Callable[[], object]) -> Iterator[None]:
    """Call a function before OmegaConf resolves a text, each time that this is referred to.

    With ``a1: ${a0}${a0}``, ``a2: ${a1}${a1}`` and so on thirty short lines come to 10 GB. What the
    function raises ends that, as an error of OmegaConf's.
    """
    owner: Any = Container
    original = owner.resolve_parse_tree

    def counted(*args: Any, **kwargs: Any) -> Any:
        count()
        return original(*args, **kwargs)

    owner.resolve_parse_tree = counted
    try:
        yield
    finally:
        owner.resolve_parse_tree = original


def own_node(container: DictConfig | ListConfig, key: Any) -> Any:
    """Return the node at a key as it stands there, unresolved; None if there is none."""
    return container._get_node(key, validate_access=False)


def raw_value(node: Any) -> Any:
    """Return what a node holds, unresolved."""
    return node._value()


def root_of(node: Any) -> Any:
    """Return the config that a node is in."""
    return node._get_root()


def keeps_defaults_list(config: Container) -> bool:
    """Return whether the defaults list of a config is still in it: it is a dataclass's."""
    return bool(config._get_flag("HYDRA_REMOVE_TOP_LEVEL_DEFAULTS"))


def is_unset(error: Exception, variable: str) -> bool:
    """Return whether ``oc.env`` failed since a variable is not set."""
    return f"{variable!r} not found" in str(error)


# References


MOST_REFERENCES = 1_000
"""That one text may have, and that one value may come to: each takes a millisecond."""

# their arguments are no keys
_NO_KEYS = frozenset({"worker", "oc.env", "now", "oc.deprecated"})
_KEY = re.compile(r"\.*[^\s.,:{}'\"\[\]$][^\s,:{}'\"$]*")


class Interpolation(NamedTuple):
    """One ``${...}``, at ``text[start:stop]``; one within another stands before that."""

    start: int
    stop: int
    depth: int  # 0 where it is within no other one
    resolver: str | None  # None of a reference
    # its arguments, without quotes; of a reference the key alone, up to a part that is made up
    words: tuple[str, ...]
    made_up: bool  # whether its key, or the name of the resolver, depends on another interpolation

    def target(self, path: Sequence[object]) -> str | None:
        """The key that it refers to from the leaf at ``path``; None if that is not certain."""
        if self.made_up or not self.words or self.resolver not in {None, "hydra", "oc.select"}:
            return None
        prefix = "hydra." if self.resolver == "hydra" else ""
        return _absolute(f"{prefix}{self.words[0]}", path)


@functools.lru_cache(maxsize=10_000)
def interpolations(text: str) -> tuple[Interpolation, ...]:
    """Return those of a text; none of one that OmegaConf could not read, or that has too many."""
    if "${" not in text or text.count("${") > MOST_REFERENCES:
        return ()
    try:
        return tuple(_within(parse(text), text, 0))
    except (GrammarParseError, RecursionError):
        return ()


def _within(node: ParserRuleContext, text: str, depth: int) -> Iterator[Interpolation]:
    of_key = isinstance(node, OmegaConfGrammarParser.InterpolationNodeContext)
    of_resolver = isinstance(node, OmegaConfGrammarParser.InterpolationResolverContext)
    for child in node.children or ():
        if isinstance(child, ParserRuleContext):
            yield from _within(child, text, depth + (of_key or of_resolver))
    if not of_key and not of_resolver:
        return
    start, stop = _span(node)
    if of_key:
        made_up = [each for each in node.configKey() if each.interpolation() is not None]
        end = _span(made_up[0])[0] if made_up else stop - 1
        key = text[start + 2 : end].strip()
        words: tuple[str, ...] = (key[:-1] if made_up and key.endswith("[") else key,)
        yield Interpolation(start, stop, depth, None, words, bool(made_up))
        return
    name = node.resolverName()
    elements = node.sequence().element() if node.sequence() is not None else ()
    yield Interpolation(
        *(start, stop, depth, "" if name is None else text[slice(*_span(name))].strip()),
        tuple(text[slice(*_span(each))].strip().strip("'\"") for each in elements),
        name is not None and bool(name.interpolation()),
    )


def _span(node: Any) -> tuple[int, int]:
    return node.start.start, node.stop.stop + 1


def references(text: object, path: Sequence[object]) -> tuple[tuple[str, ...], bool]:
    """Return the keys that a leaf's text refers to, and whether the text is one reference only."""
    found = interpolations(text) if isinstance(text, str) else ()
    keys = [key for each in found if (key := each.target(path)) is not None]
    whole = len(keys) == len(found) == 1 and str(text).strip() == str(text)[slice(*found[0][:2])]
    return tuple(dict.fromkeys(keys)), whole


def may_refer_to(text: object, path: Sequence[object]) -> tuple[str, ...]:
    """Return all keys that a leaf's text may refer to; of one that is made up, the beginning.

    Arguments of a resolver of the user's may be keys.
    """
    keys: dict[str, None] = {}
    for each in interpolations(text) if isinstance(text, str) else ():
        if each.resolver in _NO_KEYS:
            continue
        for word in each.words:
            made_up = each.resolver is None and each.made_up
            if made_up and not word.strip("."):
                # of `${.${x}}` what is above, of `${${x}}` anything
                keys[dotted(path[: max(0, len(path) - len(word))]) if word else ""] = None
            elif _KEY.fullmatch(word):
                key = _absolute(word.rstrip(".") if made_up else word, path)
                if key is not None:
                    keys[f"hydra.{key}" if each.resolver == "hydra" else key] = None
    return tuple(keys)


def _absolute(key: str, path: Sequence[object]) -> str | None:
    name = key.lstrip(".")
    dots = len(key) - len(name)
    if dots > len(path):
        return None
    return dotted([*path[: len(path) - dots], name]) if dots else dotted([name])
