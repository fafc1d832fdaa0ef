"""Makes the links of README.md absolute, for a package index: they lead to this version's files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Fills in ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme to README.md, with the URL of the source before each relative link."""
        top = f"{metadata['urls']['Source']}/raw/v{metadata['version']}/"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        pages = top.replace("/raw/", "/blob/")

        def absolute(link: re.Match[str]) -> str:
            return f"{link[1]}({top if link[1].startswith('!') else pages}{link[2]})"

        text = re.sub(r"(!?\[[^][]*\])\((?![a-z]+:|#)([^()\s]+)\)", absolute, text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
