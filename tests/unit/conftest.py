"""What holds for unit tests."""

from __future__ import annotations

import inspect
import os
import re
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

# how long an example takes depends on what else the machine does
settings.register_profile("default", deadline=None)
settings.register_profile("quick", parent=settings.get_profile("default"), max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_COMPOSING = re.compile(r"^(from|import) (hydra|support\.verbs|lllaunch\.app)", re.MULTILINE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of modules that compose configs with Hydra, which takes them most of a second.

    ``make quick`` leaves them out.
    """
    sources: dict[object, bool] = {}
    for item in items:
        module = getattr(item, "module", None)
        if module is None or not str(item.path).startswith(os.path.dirname(__file__)):
            continue
        if module not in sources:
            sources[module] = bool(_COMPOSING.search(inspect.getsource(module)))
        if sources[module]:
            item.add_marker("composing")
