"""The log file of a Hydra app, where it cannot be written."""

from __future__ import annotations

import logging
import logging.config
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lllaunch.app.app import configure_late


def configured(path: str) -> logging.Logger:
    """Return a logger that an app of ours has set up to write to a file."""

    def configure(conf: dict[str, Any]) -> None:
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **conf})

    file = {"class": "logging.FileHandler", "filename": path}
    configure_late(
        configure, {"handlers": {"file": file}, "loggers": {"of.a.test": {"handlers": ["file"]}}}
    )
    return logging.getLogger("of.a.test")


@pytest.fixture(autouse=True)
def no_handlers_are_left() -> Iterator[None]:
    logger = logging.getLogger("of.a.test")
    logger.propagate = False
    yield
    for handler in list(logger.handlers):
        logger.removeHandler(handler)


def test_it_is_made_by_the_first_message(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    logger = configured(str(path))
    assert not path.exists()
    logger.warning("here")
    assert path.read_text() == "here\n"


@pytest.mark.parametrize("path", ["/dev/full", "/no/such/directory/app.log"])
def test_a_message_that_cannot_be_written_is_no_traceback(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(path).warning("nowhere")
    assert capsys.readouterr().err == ""
