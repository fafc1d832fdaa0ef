"""Where the values of a run's plan came from, found out when it is over.

A run leaves its plan and the overrides of its command line, but not which file said what. So the
same command line is composed once more. What comes out is believed only where it comes to the very
plan that the run has left: files may have changed since, or not be there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lllaunch.config.document import parse
from lllaunch.documents import Fields
from lllaunch.errors import LaunchError
from lllaunch.files import read_text
from lllaunch.review.annotated import AnnotatedLine, annotated
from lllaunch.text import first_line

_HYDRA = os.path.join(".hydra", "hydra.yaml")
_LONGEST = 4 << 20
# The overrides of Hydra's own node that say which way a job was run, not what it is.
_OF_THE_WAY = ("hydra.mode=", "hydra.run.", "hydra.sweep.")


def annotated_plan(directory: str, plan: str) -> tuple[list[AnnotatedLine], str]:
    """Return the lines of a run's plan, and what is to be said of where their values came from.

    Args:
        directory: of the run.
        plan: the text of its plan.yaml.

    Returns:
        the lines, with comments where that can be told; and a sentence. Never raises for what the
        run has left.
    """
    bare = [AnnotatedLine(line) for line in plan.splitlines()]
    hydra = _read(os.path.join(directory, _HYDRA)).inner("hydra")
    runtime = hydra.inner("runtime")
    cwd = runtime.text("cwd")
    if not cwd:
        return bare, _unknown("it has left no .hydra/hydra.yaml that could be read")
    try:
        if os.path.realpath(cwd) != os.path.realpath(os.getcwd()):
            return bare, _unknown(f"it was started in {cwd}, where its config is")
        recorded = parse(plan, "plan.yaml").data
        lines = _compose(hydra, recorded) if isinstance(recorded, dict) else None
    except Exception as error:  # noqa: BLE001 - whatever a config does, there is a page
        reason = first_line(str(error)) or type(error).__name__
        return bare, _unknown(f"its command line cannot be composed now: {reason}")
    if lines is None:
        return bare, _unknown("its config has changed since: it comes to another plan now")
    return lines, "Behind each value: the file and line, or the override, that it came from."


def _unknown(reason: str) -> str:
    return f"Which file said what cannot be told: {reason}."


def _read(path: str) -> Fields:
    text = read_text(path) or ""
    if len(text) > _LONGEST:
        return Fields()
    try:
        return Fields(parse(text, path).data)
    except LaunchError:
        return Fields()


def _compose(hydra: Fields, recorded: Mapping[str, Any]) -> list[AnnotatedLine] | None:
    """Return the lines of the plan that a command line comes to; None if it is another plan.

    Raises:
        LaunchError: it comes to none.
    """
    # loads Hydra, which nothing else of a report needs
    from lllaunch.app.composed import Composition, ConfigRequest  # noqa: PLC0415
    from lllaunch.app.search_path import PRIMARY  # noqa: PLC0415
    from lllaunch.config.plan import SOURCES, essential, portable_plan  # noqa: PLC0415
    from lllaunch.review.annotated import OriginAnnotator  # noqa: PLC0415

    overrides = hydra.inner("overrides")
    of_hydra = [
        each for each in overrides.texts("hydra") if not each.lstrip("+~").startswith(_OF_THE_WAY)
    ]
    name = hydra.inner("job").text("config_name")
    sources = hydra.inner("runtime").objects("config_sources")
    main = [each.text("path") for each in sources if _is_file_of(each, "main")]
    request = ConfigRequest(
        (*of_hydra, *overrides.texts("task")),
        config_name=None if name == PRIMARY else name or None,
        config_path=main[0] if main else None,
        config_dir=next(
            (each.text("path") for each in sources if _is_file_of(each, "command-line")), None
        ),
    )
    with Composition(request) as composed:
        config = composed.compose()
        # what the workers of a user's own app call stands in no config
        own_app = config.launch.get("entrypoint") is None
        spec = composed.plan(config, entrypoint_required=not own_app)
        plan = essential(portable_plan(spec, SOURCES))
        if _compared(plan, own_app=own_app) != _compared(recorded, own_app=own_app):
            return None
        told = OriginAnnotator(composed.origins(), spec)

        def comment(path: tuple[Any, ...]) -> str:
            called = own_app and path[:2] in _OF_THE_FUNCTION
            return "the app's own function" if called else told.comment(path)

        return annotated(recorded, comment)


_OF_THE_FUNCTION = (("launch", "entrypoint"), ("launch", "args"))


def _compared(plan: Mapping[str, Any], *, own_app: bool) -> dict[str, Any]:
    left_out = {key for _, key in _OF_THE_FUNCTION} if own_app else set()
    launch = plan.get("launch")
    shown = launch.items() if isinstance(launch, Mapping) else ()
    return {**plan, "launch": {key: each for key, each in shown if key not in left_out}}


def _is_file_of(source: Fields, provider: str) -> bool:
    return source.text("provider") == provider and source.text("schema") == "file"
