"""What holds for unit tests."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# how long an example takes depends on what else the machine does; the first two profiles try the
# same examples each time
_SLOW = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("quick", parent=settings.get_profile("default"), max_examples=20)
settings.register_profile(
    "many", deadline=None, max_examples=500, print_blob=True, suppress_health_check=_SLOW
)
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


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Take away what Hydra sets up where an app runs in this process: its stream is the test's."""
    before, level = logging.root.handlers[:], logging.root.level
    yield
    for handler in set(logging.root.handlers).difference(before):
        if type(handler).__module__.startswith("logging"):
            logging.root.removeHandler(handler)
            handler.close()
    logging.root.setLevel(level)
