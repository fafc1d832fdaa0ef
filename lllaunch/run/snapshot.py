"""The code of a run as it was when the run was submitted.

A job may wait in a cluster's queue for hours while its author edits on. A snapshot is a git
worktree of a hidden commit: HEAD, and all that is not committed and not ignored. It is made in a
copy of the user's index, so that index, HEAD, branches, stash and files stay as they are, and no
lock of git's is held that the user's own commands want. Each step is one git, however many files
there are.

What is ignored (data, virtual environments, compiled extensions) is shared: links in the snapshot
lead to it. So are untracked files that hold keys, by their names: they are in no commit.
docs/design/slurm.md says what was decided, and why.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections import Counter, defaultdict
from fnmatch import fnmatch
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lllaunch.documents import Record
from lllaunch.errors import SnapshotFailed
from lllaunch.files import is_below, naming
from lllaunch.run.build import NO_REPOSITORY, Build, Git, SnapshotPlace, complaint, refusal
from lllaunch.run.directory import EVENTS, PLAN, RESULT, SUBMISSION
from lllaunch.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

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
_SETTINGS = (
    *("-c", "add.ignoreErrors=false"),
    *("-c", "core.safecrlf=false"),
    *("-c", "core.splitIndex=false"),  # a shared index would lie beside the user's
    *("-c", "gc.auto=0"),
    *("-c", "i18n.commitEncoding=UTF-8"),  # it would be part of the commit
    *("-c", "maintenance.auto=false"),
    *("-c", "submodule.recurse=false"),
)
# Many files are slow to make one after the other where the disk is; for few it does not pay.
_WORKERS = ("-c", "checkout.workers=4", "-c", "checkout.thresholdForParallelism=1000")
# Files that are there although they are "skipped" are looked at as well; then all that are there.
_PRESENT = ("-c", "core.sparseCheckout=true")
_SPARSE_AS_WELL = ("-c", "core.sparseCheckout=false")
_PATHS_AS_WRITTEN = {
    f"GIT_{name}_PATHSPECS": "0" for name in ("LITERAL", "GLOB", "NOGLOB", "ICASE")
}
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

    def git_tells(self, *arguments: str) -> list[str]:
        return self.git(*arguments).split("\0")[:-1]


# What is not ignored of submodules is theirs.
_STATUS = (
    *("status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--ignore-submodules=all"),
    *("--untracked-files=normal", "--ignored=matching"),
)


def _taken(repository: _Repository, cwd: str, path: str, say: Callable[[str], object]) -> Snapshot:
    """Returns the snapshot, whose directory is there."""
    top = repository.top
    commit, said = "", defaultdict[str, list[str]](list)
    for entry in repository.git_tells(*_STATUS):
        kind, _, rest = entry.partition(" ")
        said[kind].append(rest)
        if entry.startswith("# branch.oid ") and "(initial)" not in entry:
            commit = entry.split(" ")[2]
    if said["u"]:
        # ten words are before the name of an unmerged entry, one of them cut off already
        conflicts = (each.split(" ", 9)[-1] for each in said["u"])
        names = ", ".join(islice(conflicts, _MOST_NAMED))
        raise SnapshotFailed(top, f"there are conflicts to be resolved first, in {names}")
    outputs: list[str] = []
    keys: list[str] = []
    if said["?"]:
        files = repository.git_tells("ls-files", "-z", "--others", "--exclude-standard")
        outputs = _outputs(files, said["?"], top, cwd, path)
        _expect_little(top, [each for each in files if not _is_in(each, outputs)], say)
        keys = [
            each
            for each in files
            if any(fnmatch(os.path.basename(each).lower(), pattern) for pattern in _KEYS)
        ]
    snapshot = _committed(repository, commit, path, [*outputs, *keys])
    repository.git("update-ref", _ref_of(path), snapshot.tree_commit)
    repository.git(*_WORKERS, "worktree", "add", "--detach", path, snapshot.tree_commit)
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
    _write_diff(repository, snapshot)
    problem = ""
    if shared:
        names = ", ".join([*shared[:_MOST_NAMED], *(["..."] if len(shared) > _MOST_NAMED else [])])
        problem = f"repositories inside of this one are shared, not set aside: {names}"
        say(problem)
    return replace(snapshot, problem=problem)


def _committed(repository: _Repository, commit: str, path: str, outputs: Iterable[str]) -> Snapshot:
    """Returns the snapshot that is to be checked out; its commit is made."""
    top = repository.top
    with _copied_index(repository, path) as index:
        variables = {"GIT_INDEX_FILE": index, **_PATHS_AS_WRITTEN}
        # what the user wants to be taken for unchanged may have changed
        repository.git(*_PRESENT, "update-index", "-q", "--really-refresh", variables=variables)
        left_out = [f":(exclude,literal){name}" for name in outputs]
        add = (*_SPARSE_AS_WELL, "add", "--all", "--", ".", *left_out)
        try:
            repository.git(*add, variables=variables)
        except SnapshotFailed as error:
            if "No such file" not in error.reason:
                raise
            # it vanished meanwhile, as files of editors do
            repository.git(*add, variables=variables)
        tree = repository.git("write-tree", variables=variables).strip()
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


@contextlib.contextmanager
def _copied_index(repository: _Repository, path: str) -> Iterator[str]:
    """Copies the index of the user, with what it knows of files, which spares reading them."""
    answer = repository.git("rev-parse", "--git-path", "index")
    original = os.path.join(repository.top, answer.removesuffix("\n"))
    # where no `add` sees it
    name = f"lllaunch-{os.getpid()}-{os.path.basename(_ref_of(path))}"
    copy = os.path.join(os.path.dirname(original), name)
    try:
        with contextlib.suppress(FileNotFoundError):
            # with its time: git takes no file for unchanged that is as young as the index
            shutil.copy2(original, copy)
        yield copy
    finally:
        for each in (copy, f"{copy}.lock"):
            with contextlib.suppress(OSError):
                os.unlink(each)


def _mend(repository: _Repository, snapshot: Snapshot) -> list[str]:
    """Mends what leads nowhere in a worktree: submodules, relative links out of the repository.

    Returns the submodules, and repositories inside of this one, that are linked.
    """
    shared = []
    for entry in repository.git_tells("ls-tree", "-r", "-z", snapshot.tree_commit):
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


def _write_diff(repository: _Repository, snapshot: Snapshot) -> None:
    """Writes what `git apply` takes."""
    diff = ["diff-tree", "-p", "--binary", "--no-ext-diff", "--no-textconv", "--no-color"]
    output = [f"--output={snapshot.diff}"]  # straight to the disk, which is larger than memory
    trees = [snapshot.commit, snapshot.tree_commit]
    if not snapshot.commit:
        trees = ["--root", "--no-commit-id", snapshot.tree_commit]
    # of an earlier snapshot it may be there
    with open(os.open(snapshot.diff, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
    repository.git(*diff, *output, *trees)
