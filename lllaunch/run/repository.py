"""The repository that a run's code is in: what it was built from, and the code set aside.

The ``build`` of result.json says which commit ran, whether the tree was changed, and versions of
packages. Git may take its time on a large tree or a slow disk; so a run starts the question when it
begins and takes the answer when it ends. Nothing of it makes a run fail: what cannot be found out
is null, and ``git_problem`` says why.

A job may wait in a cluster's queue for hours while its author edits on. A snapshot is a git
worktree of a hidden commit: HEAD, and all that is not committed and not ignored. It is made in a
copy of the user's index, so that index, HEAD, branches, stash and files stay as they are, and no
lock of git's is held that the user's own commands want. Each step is one git, however many files
there are. What is ignored (data, virtual environments, compiled extensions) is shared: links in the
snapshot lead to it. So are untracked files that hold keys, by their names: they are in no commit.
docs/design/slurm.md says what was decided, and why.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from fnmatch import fnmatch
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lllaunch.documents import Record
from lllaunch.errors import SnapshotFailed
from lllaunch.files import is_below, naming
from lllaunch.run.directory import EVENTS, PLAN, RESULT, SUBMISSION
from lllaunch.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lllaunch.spec import LaunchSpec

# Nothing of the repository's is to be run, and nothing to be written in it.
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
# They speak of another tree than that of the directory, as in a hook; change what a path means; or
# write traces.
_DROPPED = re.compile(
    "GIT_(DIR|WORK_TREE|INDEX_FILE|PREFIX|COMMON_DIR|NAMESPACE|OBJECT_DIRECTORY"
    "|ALTERNATE_OBJECT_DIRECTORIES|IMPLICIT_WORK_TREE|GRAFT_FILE|SHALLOW_FILE"
    "|(LITERAL|GLOB|NOGLOB|ICASE)_PATHSPECS|TRACE.*)"
)
_SET = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C.UTF-8",
}
_KILLED_WITHIN = 1.0  # seconds
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=normal")

_UNBORN = "(initial)"
NO_REPOSITORY = "not in a git repository"

PACKAGES = ("lllaunch", "hydra-core", "omegaconf", "torch")
"""Packages whose versions matter to every run, where they are installed."""

BUILD_PATIENCE = 5.0
"""How long git may take to say what a run is built from, seconds."""

_SHORT_PATIENCE = 1.0  # for a question that reads two small files


class SnapshotPlace(Record, frozen=True):
    """Where the code is that a run has run, if that was set aside (`lllaunch.run.repository`)."""

    path: str
    diff: str
    tree_commit: str


class Build(Record, frozen=True):
    """What a run was built from; null is what is not known."""

    commit: str | None = None  # full hash
    dirty: bool | None = None
    branch: str | None = None  # null also if none is checked out
    changed: int | None = None  # tracked files that differ from the commit
    untracked: int | None = None  # files and whole directories, neither tracked nor ignored
    git_problem: str | None = None  # why some of these are null, else null
    versions: Mapping[str, str] = {}  # by package
    python: str = ""
    implementation: str = ""
    snapshot: SnapshotPlace | None = None


class Host(Record, frozen=True):
    """The machine that a run was on; null is what is not known."""

    hostname: str = ""
    kernel: str = ""
    cpus: int | None = None  # that the launcher may use
    memory: int | None = None  # bytes
    memory_limit: int | None = None  # bytes
    python: str = ""


class Git:
    """A git that runs, in a session of its own so that no signal of the terminal reaches it.

    Of the user's ``environ`` what would lead it elsewhere is left out; ``variables`` come on top.

    Raises:
        OSError: it cannot be started; FileNotFoundError: it is not installed.
    """

    def __init__(
        self,
        cwd: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        path = environ.get("PATH", os.defpath)
        program, setpriv = (shutil.which(each, path=path) for each in ("git", "setpriv"))
        if program is None:
            raise FileNotFoundError("git")
        import subprocess  # noqa: PLC0415 - who only shows runs asks nothing

        # a launcher that is killed takes it along
        with_launcher = [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]
        kept = {name: value for name, value in environ.items() if not _DROPPED.fullmatch(name)}
        self._process = subprocess.Popen(
            [*with_launcher, program, "-C", cwd, *_QUIET, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**kept, **_SET, **(variables or {})},
            start_new_session=True,
            encoding="utf-8",
            errors="surrogateescape",
        )

    @property
    def status(self) -> int | None:
        """Its exit status; None before `end`."""
        return self._process.returncode

    def end(self, timeout: float) -> tuple[str, str] | None:
        """Waits for it, then kills it and what it started; to be called once.

        Returns its standard output and standard error; None if it did not end within ``timeout``
        seconds.
        """
        import subprocess  # noqa: PLC0415 - as above

        process = self._process
        try:
            return process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:  # also where a signal interrupts who waits
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                # if it hangs in the kernel, it is left to that
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_WITHIN)
                for pipe in filter(None, (process.stdout, process.stderr)):
                    pipe.close()


def versions_of(names: Iterable[str], path: Sequence[str] | None = None) -> dict[str, str]:
    """Returns the versions of packages by name, those that are not installed left out.

    ``path`` is ``sys.path`` if None. What `importlib.metadata` takes 20 ms to be imported for are
    the names of directories.
    """
    known: dict[str, str] = {}
    for entry in sys.path if path is None else path:
        with contextlib.suppress(OSError):  # not there, or an archive
            for info in sorted(os.listdir(entry or os.curdir)):
                if info.endswith((".dist-info", ".egg-info")):
                    name, _, version = info.rpartition(".")[0].partition("-")
                    known.setdefault(_normalized(name), version.partition("-py")[0])
    found = {name: known.get(_normalized(name), "") for name in dict.fromkeys(names)}
    return {name: version for name, version in found.items() if version}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def build_facts(
    cwd: str, environ: Mapping[str, str] | None = None, *, own: Sequence[str] = ()
) -> Build:
    """Returns what is built from a directory, as `BuildQuery` does, and waits for it."""
    return BuildQuery(cwd, environ).result(own=own)


def modules_of(spec: LaunchSpec) -> list[str]:
    """Modules that a config names: what they belong to is worth knowing the version of."""
    entrypoint = spec.entrypoint
    named = [entrypoint.name] if entrypoint.form in {"function", "module"} else []
    return [*spec.imports, *named]


class BuildQuery:
    """A question that git works on; takes about a millisecond to ask, and raises nothing.

    The thread that asks it must live until `result` or `close`: git ends with it.
    """

    def __init__(self, cwd: str, environ: Mapping[str, str] | None = None) -> None:
        self._cwd = cwd
        self._environ = dict(os.environ) if environ is None else environ
        self._tree: Build | None = None
        self._git: Git | None = None
        try:
            self._git = Git(cwd, _STATUS, self._environ)
        except OSError as error:
            self._tree = Build(git_problem=refusal(error))

    def result(
        self,
        timeout: float = BUILD_PATIENCE,
        *,
        modules: Sequence[str] = (),
        own: Sequence[str] = (),
    ) -> Build:
        """Returns what a run is built from; idempotent.

        ``timeout``: how long to wait for git from now on, seconds. ``modules``: dotted names; the
        versions of packages that are called as they are come, too. ``own``: directories that runs
        write to. An untracked directory that holds one of them, and not ``cwd``, is taken for
        output: it does not make the tree dirty.
        """
        if self._tree is None:
            self._tree = self._answer(timeout, own)
        tops = (module.partition(".")[0] for module in modules)
        return replace(
            self._tree,
            versions=versions_of([*PACKAGES, *tops]),
            python=sys.version.split()[0],
            implementation=sys.implementation.name,
        )

    def of_run(self, spec: LaunchSpec, snapshot: Snapshot | None = None) -> Build:
        """Return what a run is built from, which runs the code of a snapshot if there is one."""
        found = self.result(modules=modules_of(spec), own=[spec.log_dir])
        return found if snapshot is None else snapshot.build(found)

    def close(self) -> None:
        """Ends git if it still runs; idempotent, and not needed after `result`."""
        if self._git is not None:
            self._git.end(0.0)
            self._git = None

    def _answer(self, timeout: float, own: Sequence[str]) -> Build:
        git, self._git = self._git, None
        if git is None:
            return Build(git_problem="nobody waited for git")
        answer = git.end(timeout)
        if answer is not None:
            return parse_status(*answer, cwd=self._cwd, own=own)
        problem = "git status took too long"
        with contextlib.suppress(OSError):
            asked = ("rev-parse", "HEAD", "--abbrev-ref", "HEAD")
            short = Git(self._cwd, asked, self._environ).end(_SHORT_PATIENCE)
            lines = short[0].split("\n") if short else []
            # a hash of SHA-1, or a longer one
            if len(lines) >= 2 and len(lines[0]) >= 40:
                branch = None if lines[1] == "HEAD" else lines[1]
                return Build(commit=lines[0], branch=branch, git_problem=problem)
        return Build(git_problem=problem)


def refusal(error: OSError) -> str:
    """Returns why git could not be started."""
    if isinstance(error, FileNotFoundError):
        return "git is not installed"
    return f"git cannot be started: {error.strerror or error}"


def _said(status: str) -> tuple[dict[str, str], Mapping[str, list[str]]]:
    """Return what ``git status --porcelain=v2 --branch -z`` says of HEAD, and of files by kind."""
    said = defaultdict[str, list[str]](list)
    for entry in status.split("\0"):
        kind, _, rest = entry.partition(" ")
        said[kind].append(rest)
    return dict(each.partition(" ")[::2] for each in said["#"]), said


def parse_status(told: str, errors: str, *, cwd: str, own: Sequence[str] = ()) -> Build:
    """Returns what git's status says of a tree; reads no file but .git."""
    head, said = _said(told)
    if "branch.oid" not in head:
        return Build(git_problem=complaint(errors))
    unborn = head["branch.oid"] == _UNBORN
    changed, strange = sum(len(said[kind]) for kind in "12u"), said["?"]
    if strange and own:
        here = top = os.path.realpath(cwd)
        while not os.path.lexists(os.path.join(top, ".git")) and top != "/":
            top = os.path.dirname(top)
        outputs = tuple(f"{os.path.realpath(path)}/" for path in own)
        strange = [
            name
            for name in strange
            if not name.endswith("/")
            or f"{here}/".startswith(path := os.path.join(top, name))
            or not any(output.startswith(path) for output in outputs)
        ]
    return Build(
        commit=None if unborn else head["branch.oid"],
        dirty=bool(changed or strange),
        branch=None if head.get("branch.head") == "(detached)" else head.get("branch.head"),
        changed=changed,
        untracked=len(strange),
        git_problem="there is no commit yet" if unborn else None,
    )


def complaint(errors: str) -> str:
    """Returns what git said against it, in one line; hints and progress are left out."""
    lines = [line.strip() for line in errors.splitlines()]
    said = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
    text = "; ".join(line.partition(": ")[2] or line for line in said if line)
    if text.startswith("not a git repository"):
        return NO_REPOSITORY
    return text[:500] or "it said nothing"


PATIENCE = 600.0
"""How long one git may take, with the user's filters (such as LFS) that it runs, seconds."""

CODE = "code"
"""What a snapshot is called, in the directory of a run or a sweep."""

MOST_UNTRACKED = 200 << 20
"""How many bytes in files that are neither tracked nor ignored are set aside at most."""

_MUCH_UNTRACKED = 20 << 20  # bytes; so many are worth a line
_REFS = "refs/lllaunch/snapshots"
_MOST_NAMED = 5
_OUTPUTS = ("outputs", "multirun")  # where Hydra writes
# Two of a run's files, or a sweep's journal, tell whose a directory is.
_MARKS = {**dict.fromkeys((EVENTS, PLAN, RESULT, SUBMISSION), 1), "sweep.jsonl": 2}
# Names of files that hold keys: untracked ones are shared as ignored ones are, and not committed.
_KEYS = (
    *(".env", ".env.*", ".netrc", ".pypirc", "*.pem", "*.key", "*.p12", "*.pfx"),
    *("id_rsa*", "id_ed25519*", "credentials.json", "secrets.json", "secrets.yaml", "secrets.yml"),
)
_LINK, _SUBMODULE = "120000", "160000"  # modes of git's tree entries

# What the user may have set for work by hand.
_SETTINGS = tuple(
    word
    for setting in (
        "add.ignoreErrors=false",
        "core.safecrlf=false",
        "core.splitIndex=false",  # a shared index would lie beside the user's
        "gc.auto=0",
        "i18n.commitEncoding=UTF-8",  # it would be part of the commit
        "maintenance.auto=false",
        "submodule.recurse=false",
        # many files are slow to make one after the other where the disk is; for few it does not pay
        "checkout.workers=4",
        "checkout.thresholdForParallelism=1000",
    )
    for word in ("-c", setting)
)
# The same content is to be the same commit.
_AUTHOR = {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in (
        ("NAME", "lllaunch"),
        ("EMAIL", "lllaunch@localhost"),
        ("DATE", "946684800 +0000"),
    )
}


class Snapshot(Record, frozen=True):
    """A snapshot of a repository; paths are absolute."""

    path: str  # the worktree
    commit: str  # hash of HEAD; empty if nothing was committed
    # hash of the commit that is checked out there, which is ``commit`` if nothing differed from
    # that
    tree_commit: str
    top: str  # the top directory of the repository that it was taken of, without links
    changed: bool  # whether anything is in it that was not committed
    problem: str = ""  # what is not as it was: a sentence, or an empty string

    @property
    def diff(self) -> str:
        """Path of the file that says what differs from ``commit``."""
        return f"{self.path}.diff"

    def place(self, path: str) -> str:
        """Returns where a path of the repository is in the snapshot, others unchanged.

        A relative one counts from the working directory.
        """
        whole = os.path.abspath(path)
        # a link may lead there; where the last part leads is for those who open it
        last = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        for each in (whole, last, os.path.realpath(whole)):
            if is_below(each, self.path):
                return path
            if is_below(each, self.top):
                return os.path.normpath(os.path.join(self.path, os.path.relpath(each, self.top)))
        return path

    def build(self, build: Build) -> Build:
        """Returns the ``build`` of a run whose code it is."""
        return replace(
            build,
            commit=self.commit or None,
            dirty=self.changed,
            branch=None,
            changed=None,
            untracked=None,
            git_problem=self.problem or None,
            snapshot=SnapshotPlace(self.path, self.diff, self.tree_commit),
        )


def take(
    cwd: str, path: str, environ: Mapping[str, str], say: Callable[[str], object]
) -> Snapshot | None:
    """Sets the code aside in a new directory; ``<path>.diff`` tells people what is not committed.

    Returns None if ``cwd`` is in no working tree of git.

    Raises:
        SnapshotFailed: git refuses, or something cannot be written. Nothing is left then.
    """
    cwd, path = os.path.realpath(cwd), os.path.abspath(path)
    answer = _Repository(cwd, environ).git("rev-parse", "--is-inside-work-tree", "--show-cdup")
    inside, _, up = answer.removesuffix("\n").partition("\n")
    if inside != "true":
        return None
    repository = _Repository(os.path.normpath(os.path.join(cwd, up)), environ)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
        # made here, so that nothing of anybody else is removed; and only its owner may read it: git
        # knows of a file only whether it can be run
        os.mkdir(path, 0o700)
        try:
            return _taken(repository, cwd, path, say)
        except BaseException:
            with contextlib.suppress(SnapshotFailed, OSError):
                remove(Snapshot(path, "", "", repository.top, changed=False), environ)
            for each, unmake in ((path, os.rmdir), (f"{path}.diff", os.unlink)):
                with contextlib.suppress(OSError):
                    unmake(each)
            raise
    except OSError as error:
        raise _failed(error, path) from error


def _failed(error: OSError, path: str, **hint: str) -> SnapshotFailed:
    name = error.filename if isinstance(error.filename, str) else path
    return SnapshotFailed(name, error.strerror or str(error), **hint)


def free_place(directory: str) -> str:
    """Return where a snapshot can be in a directory: ``code``, ``code_1``, ..."""
    path, number = os.path.join(directory, CODE), 0
    while os.path.lexists(path):
        number += 1
        path = os.path.join(directory, f"{CODE}_{number}")
    return path


def hold(snapshot: Snapshot, holders: Iterable[str]) -> None:
    """Let a snapshot be removed when the last of some holders lets it go."""
    above = f"{snapshot.path}.holders"
    with naming(above):
        os.makedirs(above, exist_ok=True)
        for holder in holders:
            with open(os.path.join(above, holder), "wb"):
                pass


def let_go(snapshot: Snapshot, holder: str) -> None:
    """Let go of a snapshot that `hold` holds, and remove it if nobody else does.

    Raises:
        SnapshotFailed: it cannot be removed.
    """
    above = f"{snapshot.path}.holders"
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(above, holder))
        # of two that let go at once, one finds it empty
        os.rmdir(above)
        remove(snapshot)


def remove(snapshot: Snapshot, environ: Mapping[str, str] | None = None) -> None:
    """Removes the worktree and what keeps its commit, if they are there. The diff stays.

    What links in it lead to stays as well.

    Raises:
        SnapshotFailed: something cannot be removed.
    """
    path = snapshot.path
    shutil.rmtree(f"{path}.holders", ignore_errors=True)
    try:
        # what is not a worktree (any more) is somebody else's
        if os.path.isfile(os.path.join(path, ".git")) and not os.path.islink(path):
            shutil.rmtree(path)
    except OSError as error:
        raise _failed(error, path, hint="") from error
    if os.path.isdir(snapshot.top):
        repository = _Repository(snapshot.top, os.environ if environ is None else environ)
        try:
            # only this one: `prune` might forget one of the user's that lies on another disk
            repository.git("worktree", "remove", "--force", "--force", path)
        except SnapshotFailed as error:
            if "is not a working tree" not in error.reason:
                raise
        repository.git("update-ref", "-d", _ref_of(path))


def _ref_of(path: str) -> str:
    return f"{_REFS}/{hashlib.sha256(os.fsencode(path)).hexdigest()[:20]}"


class _Repository(NamedTuple):
    """Git, asked in a directory of a working tree: its top one, once that is known."""

    top: str
    environ: Mapping[str, str]

    def git(self, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
        """Returns what git answers; nothing where there is no repository.

        Raises:
            SnapshotFailed: it refuses, or takes too long.
        """
        try:
            git = Git(self.top, [*_SETTINGS, *arguments], self.environ, variables)
        except OSError as error:
            raise SnapshotFailed(self.top, refusal(error)) from error
        answer = git.end(PATIENCE)
        verb = next(word for word in arguments if word != "-c" and "=" not in word)
        if answer is None:
            raise SnapshotFailed(self.top, f"git {verb} took longer than {PATIENCE:.0f} s")
        reason = complaint(answer[1]) if git.status else NO_REPOSITORY
        if reason != NO_REPOSITORY:
            raise SnapshotFailed(self.top, f"git {verb}: {reason}")
        return "" if git.status else answer[0]


def _taken(repository: _Repository, cwd: str, path: str, say: Callable[[str], object]) -> Snapshot:
    """Returns the snapshot, whose directory is there."""
    top = repository.top
    # what is not ignored of submodules is theirs
    also = ("--ignore-submodules=all", "--ignored=matching")
    head, said = _said(repository.git(*_STATUS, *also))
    commit = head.get("branch.oid", "").removesuffix(_UNBORN)
    if said["u"]:
        # ten words are before the name of an unmerged entry, one of them cut off already
        conflicts = (each.split(" ", 9)[-1] for each in said["u"])
        names = ", ".join(islice(conflicts, _MOST_NAMED))
        raise SnapshotFailed(top, f"there are conflicts to be resolved first, in {names}")
    outputs: list[str] = []
    keys: list[str] = []
    if said["?"]:
        files = repository.git("ls-files", "-z", "--others", "--exclude-standard").split("\0")[:-1]
        outputs = _outputs(files, said["?"], top, cwd, path)
        _expect_little(top, [each for each in files if not _is_in(each, outputs)], say)
        keys = [
            each
            for each in files
            if any(fnmatch(os.path.basename(each).lower(), pattern) for pattern in _KEYS)
        ]
    snapshot = _committed(repository, commit, path, [*outputs, *keys])
    repository.git("update-ref", _ref_of(path), snapshot.tree_commit)
    repository.git("worktree", "add", "--detach", path, snapshot.tree_commit)
    shared = _mend(repository, snapshot)
    # what runs write to would lead from the snapshot to itself
    own = (os.path.realpath(path), f"{os.path.realpath(path)}.diff", *_hydra_outputs(top, cwd))
    for name in (each.rstrip("/") for each in (*said["!"], *keys)):
        original, copy = os.path.join(top, name), os.path.join(path, name)
        generated = name.endswith(("__pycache__", ".pyc")) or _is_in(name, outputs)
        if generated or any(is_below(original, each) for each in own):
            continue
        # some came to be while the snapshot was made
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            # where nothing beside it is tracked, its directory is not there
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            os.symlink(original, copy)
    # of an earlier snapshot it may be there
    with open(os.open(snapshot.diff, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
    # what `git apply` takes, straight to the disk, which is larger than memory
    diff = ("diff-tree", "-p", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")
    since = (commit,) if commit else ("--root", "--no-commit-id")
    repository.git(*diff, f"--output={snapshot.diff}", *since, snapshot.tree_commit)
    problem = ""
    if shared:
        names = ", ".join([*shared[:_MOST_NAMED], *(["..."] if len(shared) > _MOST_NAMED else [])])
        problem = f"repositories inside of this one are shared, not set aside: {names}"
        say(problem)
    return replace(snapshot, problem=problem)


def _committed(repository: _Repository, commit: str, path: str, outputs: Iterable[str]) -> Snapshot:
    """Returns the snapshot that is to be checked out; its commit is made."""
    top = repository.top
    index = os.path.join(top, repository.git("rev-parse", "--git-path", "index").removesuffix("\n"))
    # a copy of the user's, where no `add` sees it; what that knows of files spares reading them
    name = f"lllaunch-{os.getpid()}-{os.path.basename(_ref_of(path))}"
    copy = os.path.join(os.path.dirname(index), name)
    variables = {"GIT_INDEX_FILE": copy}
    try:
        with contextlib.suppress(FileNotFoundError):
            # with its time: git takes no file for unchanged that is as young as the index
            shutil.copy2(index, copy)
        # What the user wants to be taken for unchanged may have changed. Files that are there
        # although they are "skipped" are looked at as well, then all that are there.
        sparse = ("-c", "core.sparseCheckout=true", "update-index", "-q", "--really-refresh")
        repository.git(*sparse, variables=variables)
        left_out = [f":(exclude,literal){name}" for name in outputs]
        add = ("-c", "core.sparseCheckout=false", "add", "--all", "--", ".", *left_out)
        try:
            repository.git(*add, variables=variables)
        except SnapshotFailed as error:
            if "No such file" not in error.reason:
                raise
            # it vanished meanwhile, as files of editors do
            repository.git(*add, variables=variables)
        tree = repository.git("write-tree", variables=variables).strip()
    finally:
        for each in (copy, f"{copy}.lock"):
            with contextlib.suppress(OSError):
                os.unlink(each)
    parent = []
    if commit:
        if repository.git("rev-parse", f"{commit}^{{tree}}").strip() == tree:
            return Snapshot(path, commit, commit, top, changed=False)
        parent = ["-p", commit]
    message = "What was not committed when a run was submitted"
    hidden = repository.git("commit-tree", tree, *parent, "-m", message, variables=_AUTHOR).strip()
    return Snapshot(path, commit, hidden, top, changed=True)


def _hydra_outputs(top: str, cwd: str) -> set[str]:
    return {os.path.join(each, name) for each in (top, cwd) for name in _OUTPUTS}


def _is_in(path: str, directories: Collection[str]) -> bool:
    """Returns whether a path is one of some directories or below one. Pure."""
    while path and path not in directories:
        path = path.rpartition("/")[0]
    return bool(path)


def _outputs(
    files: Sequence[str], untracked: Sequence[str], top: str, cwd: str, path: str
) -> list[str]:
    """Returns the directories of output in which nothing is tracked, relative to the top. Pure.

    These are Hydra's own, those of runs and sweeps, and the one that the snapshot itself goes to;
    the user works in none of them.
    """
    marks: Counter[str] = Counter()
    for name in files:
        directory, _, last = name.rpartition("/")
        marks[directory] += _MARKS.get(last, 0)
    own = os.path.dirname(os.path.realpath(path))
    apart = {name.rstrip("/") for name in untracked}
    known = {os.path.relpath(each, top) for each in (*_hydra_outputs(top, cwd), own)}
    around = {name for name in apart if is_below(own, os.path.join(top, name))}
    # other programs write a plan.yaml, too
    found = known | around | {directory for directory, count in marks.items() if count > 1}
    here = os.path.relpath(cwd, top)
    return sorted(each for each in found if _is_in(each, apart) and not is_below(here, each))


def _expect_little(top: str, files: Sequence[str], say: Callable[[str], object]) -> None:
    """Expects that what is neither tracked nor ignored is code, by its size."""
    sizes: Counter[str] = Counter()
    for name in files:
        # files of editors vanish
        with contextlib.suppress(OSError):
            sizes[name.partition("/")[0]] += os.lstat(os.path.join(top, name)).st_size
    total = sizes.total()
    largest = ", ".join(f"{name} ({size(count)})" for name, count in sizes.most_common(_MOST_NAMED))
    much = f"{size(total)} that git neither tracks nor ignores: {largest}"
    if total > MOST_UNTRACKED:
        reason = f"it would have {much}; {size(MOST_UNTRACKED)} are allowed"
        raise SnapshotFailed(top, reason, "add data to .gitignore, or set cluster.snapshot=none")
    if total > _MUCH_UNTRACKED:
        say(f"the snapshot has {much}; data in .gitignore is shared by a link instead")


def _mend(repository: _Repository, snapshot: Snapshot) -> list[str]:
    """Mends what leads nowhere in a worktree: submodules, relative links out of the repository.

    Returns the submodules, and repositories inside of this one, that are linked.
    """
    shared = []
    for entry in repository.git("ls-tree", "-r", "-z", snapshot.tree_commit).split("\0"):
        if not entry.startswith((_LINK, _SUBMODULE)):
            continue
        name = entry.partition("\t")[2]
        original, copy = os.path.join(snapshot.top, name), os.path.join(snapshot.path, name)
        with contextlib.suppress(FileNotFoundError):  # left out of a sparse checkout
            if entry.startswith(_LINK):
                target = os.readlink(copy)
                place = os.path.normpath(os.path.join(os.path.dirname(original), target))
                if not os.path.isabs(target) and not is_below(place, snapshot.top):
                    os.unlink(copy)
                    os.symlink(place, copy)
            elif os.path.lexists(os.path.join(original, ".git")):
                os.rmdir(copy)
                os.symlink(original, copy)
                shared.append(name)
    return shared
