"""The pictures of the states in the docs are those that the tables give."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_committed_pictures_are_the_tables() -> None:
    path = ROOT / "docs" / "generate_state_diagram.py"
    spec = importlib.util.spec_from_file_location("generate_state_diagram", path)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    text = (generator.DESIGN / "supervisor.md").read_text()
    assert generator.page("supervisor.md") == text, "run docs/generate_state_diagram.py"
    assert "RUNNING --> TERMINATING" in text
