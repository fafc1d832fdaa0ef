"""What logging would import, told from a config."""

from __future__ import annotations

from typing import Any

import pytest

from lllaunch.review.allow import made_by_logging


def asked(node: Any, **rest: Any) -> list[tuple[Any, bool]]:
    config = {"hydra": {"job_logging": node, "hydra_logging": None}, **rest}
    return [(value, clear) for _, value, clear in made_by_logging(config)]


def test_logging_itself_asks_for_nothing() -> None:
    node = {
        "version": 1,
        "formatters": {"simple": {"format": "[%(asctime)s] %(message)s"}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"},
            "file": {
                "class": "logging.FileHandler",
                "filename": "${hydra.runtime.output_dir}/${hydra.job.name}.log",
            },
            "dated": {"class": "logging.FileHandler", "filename": "${now:%Y}.log"},
        },
        "root": {"level": "${oc.env:LEVEL,INFO}", "handlers": ["console", "file"]},
    }
    assert asked(node) == []


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({"formatters": {"f": {"()": "evil.make"}}}, ("evil.make", True)),
        ({"handlers": {"h": {"class": "${e.name}"}}}, ("evil.main", True)),
        ({"handlers": {"h": {"stream": "ext://evil.main"}}}, ("ext://evil.main", True)),
        ({"handlers": {"h": {"stream": "${e.scheme}evil.main"}}}, ("ext://evil.main", True)),
        ({"handlers": "${e.handlers}"}, ("evil.Far", True)),
        ("${e.node}", ("evil.Farther", True)),
        ({"handlers": {"h": {"stream": "ex${e.unknown}"}}}, ("ex${e.unknown}", False)),
        ({"handlers": {"h": {"class": "${oc.select:e.name}"}}}, ("${oc.select:e.name}", False)),
        ({"handlers": {"h": {"level": "${f:1}"}}}, ("${f:1}", False)),
        ({"a": "${now:ext://evil.main}"}, ("${now:ext://evil.main}", False)),
        ({"a": "${oc.env:X}evil.main"}, ("${oc.env:X}evil.main", False)),
    ],
)
def test_what_it_is_asked_to_import_is_found_by_whatever_detour(
    node: Any, found: tuple[str, bool]
) -> None:
    e = {
        "name": "evil.main",
        "scheme": "ext://",
        "handlers": {"h": {"class": "evil.Far"}},
        "node": {"handlers": {"h": {"class": "evil.Farther"}}},
    }
    assert found in asked(node, e=e)


def test_nodes_that_refer_to_themselves_end() -> None:
    assert asked({"a": "${hydra.job_logging}"}) != []
    assert asked("${a}", a="${b}", b="${a}") != []
