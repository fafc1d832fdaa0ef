"""Why something could not be composed, in a few words."""

from __future__ import annotations

import os


def reason_of(error: BaseException) -> str:
    """Says in short why a config could not be composed, with what caused that."""
    parts: list[str] = []
    while error is not None and len(parts) < 4:
        text = str(error).strip()
        parts.append(text or type(error).__name__)
        error = error.__cause__  # type: ignore[assignment]
    return os.linesep.join(dict.fromkeys(parts))
