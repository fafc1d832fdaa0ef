"""Which line of a YAML file a key stands in."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
# libyaml's is ten times as fast; both know the lines
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Lines:
    """Lines of a container of a YAML file and of what is in it. Holds keys, but no values.

    Attributes:
        line: of the key, or of the element of a list, from 1; None if not known.
    """

    __slots__ = ("_items", "line")

    def __init__(self, line: int | None = None, items: dict[object, Lines] | None = None) -> None:
        self.line = line
        self._items = items if items is not None else {}

    def below(self, key: object) -> Lines:
        """Lines of a key of a mapping, or of an index of a list."""
        found = self._items.get(key)
        if found is None and not isinstance(key, str):
            # the config may read as a number what stands here as text
            found = self._items.get(str(key))
        return found or NO_LINES


NO_LINES = Lines()


def lines_of(text: str) -> Lines:
    """Reads the lines of a YAML text.

    Returns:
        Those of its only document; without lines if it is no YAML.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return _Reader(loader).read(node, node) if node is not None else NO_LINES
    except yaml.YAMLError:
        return NO_LINES
    finally:
        loader.dispose()


class _Reader:
    def __init__(self, loader: Any) -> None:
        self._loader = loader
        # an anchor is read once, however often it is used
        self._read: dict[int, dict[object, Lines]] = {}

    def read(self, node: Any, at: Any) -> Lines:
        """Lines of what is in a node, of which the key is the node ``at``."""
        return Lines(at.start_mark.line + 1, self._items(node))

    def _items(self, node: Any) -> dict[object, Lines]:
        items = self._read.get(id(node))
        if items is None:
            items = self._read[id(node)] = {}
            if isinstance(node, yaml.SequenceNode):
                items.update(
                    (index, self.read(each, each)) for index, each in enumerate(node.value)
                )
            elif isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.tag == _MERGE:
                        items.update(self._merged(value))
                for key, value in node.value:
                    if key.tag != _MERGE:
                        items[self._key(key)] = self.read(value, key)
        return items

    def _merged(self, node: Any) -> dict[object, Lines]:
        """What ``<<`` brings in; of several mappings the first one wins."""
        items: dict[object, Lines] = {}
        mappings = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for mapping in reversed(mappings):
            items.update(self._items(mapping))
        return items

    def _key(self, node: Any) -> object:
        if node.tag == _TEXT or not isinstance(node, yaml.ScalarNode):
            return str(node.value)
        key = self._loader.construct_object(node)
        return key if isinstance(key, (bool, int, float)) else node.value
