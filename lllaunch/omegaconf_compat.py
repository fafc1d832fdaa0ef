"""Every private name of OmegaConf that lllaunch uses, as `lllaunch.hydra_compat` has Hydra's.

Apart from those, as a batch job reads its plan without Hydra.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from omegaconf import Container

# what dictionaries and lists have in common
from omegaconf.basecontainer import BaseContainer

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
