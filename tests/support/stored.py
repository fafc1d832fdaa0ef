"""Hydra's store of configs in this process, which tests share with those that follow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hydra.core.config_store import ConfigStore

from lllaunch.app.schema_store import install

_SCHEMA = "_lllaunch_schema.yaml"


@contextlib.contextmanager
def schema_installed() -> Iterator[ConfigStore]:
    """Have the schema stored in the block; then it is there if it was before.

    Hydra's root names the schema once it is installed, so that neither may be put back alone. What
    plugins store when they are imported stays: that happens once in a process.
    """
    store = ConfigStore.instance()
    root, schema = store.load("hydra/config.yaml"), store.repo.get(_SCHEMA)
    install()
    try:
        yield store
    finally:
        store.repo["hydra"]["config.yaml"] = root
        store.repo.pop(_SCHEMA, None)
        if schema is not None:
            store.repo[_SCHEMA] = schema
