"""Which variables a config has read, so that no message quotes their values.

What Hydra, OmegaConf and Python say of a value that does not fit is made where nobody knows that it
came from the environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from lllaunch.config.read import watching
from lllaunch.run.redact import Redactor

_open: list[list[str]] = []


@contextlib.contextmanager
def noting_variables() -> Iterator[None]:
    """In the block `without_variables` knows what has been read in it."""
    with watching("oc.env") as names:
        _open.append(names)
        try:
            yield
        finally:
            _open[:] = [each for each in _open if each is not names]


def without_variables(text: str) -> str:
    """Returns a text with ``${oc.env:NAME}`` in place of the values of variables that were read."""
    names = {name for each in _open for name in each if name in os.environ}
    if not names:
        return text
    return Redactor({os.environ[name]: f"${{oc.env:{name}}}" for name in names})(text)
