"""What a run's workers returned, for Hydra's job and for the user's own app."""

from __future__ import annotations

import json
import os
import pickle
from typing import TYPE_CHECKING, Any

from lllaunch.errors import OutputError

if TYPE_CHECKING:
    from lllaunch.run.result import ReturnValue


def plain(value: ReturnValue | None) -> Any:
    """Returns a worker's value if it is JSON and small, else None; unpickles nothing."""
    return json.loads(value.json) if value is not None and value.json is not None else None


def load(value: ReturnValue | None) -> Any:
    """Returns a worker's value, unpickled where need be; None if it returned nothing.

    Raises:
        OutputError: its file cannot be read, or holds what cannot be unpickled here.
    """
    if value is None or value.json is not None:
        return plain(value)
    try:
        with open(value.path, "rb") as file:
            if os.path.splitext(value.path)[1] == ".json":
                return json.load(file)
            return pickle.load(file)  # noqa: S301 - written by a worker of this run
    except OSError as error:
        raise OutputError(value.path, error.strerror or str(error)) from error
    except Exception as error:  # whatever the classes' own code raises
        reason = f"the return value ({value.type_name}) cannot be loaded: "
        raise OutputError(value.path, f"{reason}{type(error).__name__}: {error}") from error
