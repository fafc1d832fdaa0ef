"""A hook of MkDocs: what pages have for tests and forges becomes what the site wants."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Give blocks that hold a command's output a title in place of the mark that tests read."""
    return re.sub(r"^```text output$", '```text title="Output"', markdown, flags=re.MULTILINE)
