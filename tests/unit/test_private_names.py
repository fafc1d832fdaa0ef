"""Private names of other packages: all of them in one module."""

from __future__ import annotations

import ast
from pathlib import Path

import lllaunch

ROOT = Path(lllaunch.__file__).parent
ROOMS = ("spawner", "supervisor", "workers", "linux")
PLACE = ROOT / "spawner/private_names.py"
# What is private to us, and what the library documents.
OURS = {"self", "cls", "workers", "spawner", "machine", "Machine", "context", "each", "other"}
PUBLIC = {"_exit", "_replace", "_asdict", "_fields_"}


def private(path: Path) -> set[str]:
    """The attributes of others that a module uses."""
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
    ]
    return {
        node.attr
        for node in nodes
        if node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in PUBLIC
        and ast.unparse(node.value).partition(".")[0] not in OURS
    }


def test_private_names_of_others_are_in_one_module() -> None:
    others = [path for room in ROOMS for path in (ROOT / room).glob("*.py") if path != PLACE]
    found = {str(path.relative_to(ROOT)): names for path in others if (names := private(path))}
    assert found == {}
    assert private(PLACE) == {
        *("_Environ", "_shutdown", "_run_exitfuncs", "_clear", "_registry", "_exit_function"),
        *(
            "_current_exceptions",
            "_xoptions",
            "_args_from_interpreter_flags",
            "_finalizer_registry",
        ),
        *("_run_after_forkers", "_children", "_inheriting", "_resource_tracker", "_fd"),
        *("_WorkerServer", "_register_handler", "_world", "_distributed_c10d"),
    }
