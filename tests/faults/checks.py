"""What must be true after a scenario, whatever happened in it.

Each check compares what lllaunch wrote with what the workers wrote into their ledger, and reads
files as anybody would: none uses a reader of lllaunch's.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.worker import pieces
from tests.faults.world import Injected, Launched, Observed

_SLACK = 2_000_000_000
"""Nanoseconds that news may take on a busy machine, from a process to the launcher."""


class Worker(NamedTuple):
    """What the ledger tells of a worker; of one that was killed no ``code``, and ``ended`` is 0."""

    key: str
    pid: int
    job: str
    attempt: int
    rank: int
    started: int
    log: Path
    code: int | None
    ended: int
    refused: bool


def workers(seen: Observed) -> list[Worker]:
    """Return what the ledger tells, in the order in which they began."""
    ends = {entry["key"]: entry for entry in seen.entries if entry["what"] == "end"}
    refused = {entry["key"] for entry in seen.entries if entry["what"] == "refused"}
    found = []
    for entry in seen.entries:
        if entry["what"] == "start":
            key, log = entry["key"], Path(entry["log"])
            end = ends.get(key, {"code": None, "time": 0})
            told = [entry[name] for name in ("pid", "job", "attempt", "rank", "time")]
            found.append(Worker(key, *told, log, end["code"], end["time"], key in refused))
    return found


def sent(seen: Observed, target: str, *names: str) -> list[Injected]:
    """Return the signals of some names that a target got."""
    hits = [one for one in seen.injected if one.fault.what == "signal"]
    return [one for one in hits if one.fault.target == target and one.fault.name in names]


def has(seen: Observed, *whats: str) -> bool:
    """Return whether a fault of a kind happened."""
    return any(one.fault.what in whats for one in seen.injected)


def disturbed(seen: Observed) -> bool:
    """Return whether something could not be written."""
    return has(seen, "fill", "remove", "rename", "files", "processes")


# Processes


def ends(seen: Observed) -> Iterator[str]:
    """Every launcher ends."""
    for name in seen.hung:
        yield f"launcher {name} did not end"


def alive(seen: Observed) -> Iterator[str]:
    """Nothing of what was started is alive."""
    both = sent(seen, "launcher", "SIGKILL") and sent(seen, "spawner", "SIGKILL")
    for text in seen.left:
        # what docs/design/nothing-outlives-the-launcher.md does not promise
        if not (both and not text.startswith("worker")):
            yield text


def others(seen: Observed) -> Iterator[str]:
    """Nothing else was hit."""
    for well, signals in seen.bystanders:
        if not well:
            yield "a process that is none of ours was ended or stopped"
        for text in signals:
            yield f"a process that is none of ours got a signal: {text}"


# Exit codes and results


def code(seen: Observed) -> Iterator[str]:
    """The exit code says what happened."""
    for one in seen.launched:
        yield from _code(seen, one)


def _code(seen: Observed, one: Launched) -> Iterator[str]:
    hits = [hit for hit in seen.injected if hit.pid == one.pid and hit.fault.what == "signal"]
    hits = [hit for hit in hits if hit.fault.name != "SIGSTOP"]
    numbers = {int(signal.Signals[hit.fault.name]) for hit in hits}
    status = one.status
    if status is None or one.name in seen.hung:
        return
    if status < 0:
        if -status not in numbers:
            yield f"launcher {one.name}: {status}, but it got {sorted(numbers)}"
        elif status != -signal.SIGKILL and not _outside_of_its_work(seen, one):
            yield f"launcher {one.name}: {status}: a signal ended it while it had workers"
    elif status > 128:
        if status - 128 not in numbers:
            yield f"launcher {one.name}: {status}, but it got {sorted(numbers)}"
    elif status == 1 and signal.SIGINT in numbers and _started_too_early(_shown(one)):
        return
    elif status not in _natural(seen, one):
        yield f"launcher {one.name}: {status}, expected {sorted(_natural(seen, one))}"
    elif numbers and not _came_late(seen, hits):
        names = [hit.fault.name for hit in hits]
        yield f"launcher {one.name}: {status}, though it got {names} while workers were running"


def _started_too_early(shown: bytes) -> bool:
    """Whether Ctrl-C came before Python ran any code of ours, and Python says so itself."""
    words = (b"Fatal Python error: init", b"Could not import runpy module", b"<frozen runpy>")
    ours = re.search(rb'File "[^"]*/lllaunch/', shown)
    return not ours and any(word in shown for word in words)


def _shown(one: Launched) -> bytes:
    return b"".join(bytes(data) for data in one.shown.values())


def _outside_of_its_work(seen: Observed, one: Launched) -> bool:
    began = [worker for worker in workers(seen) if worker.started < one.ended]
    results = [one.directory] if one.directory else list(seen.run_dir.parent.glob("outputs/*/*"))
    if seen.scenario.jobs:
        return not began or (seen.run_dir / "sweep.json").exists()
    return not began or any((path / "result.json").exists() for path in results)


def _came_late(seen: Observed, hits: list[Injected]) -> bool:
    """Whether the workers that ran when the first signal came ended at once by themselves."""
    first = min(hits, key=lambda hit: hit.time)
    ended = {worker.key: worker.ended for worker in workers(seen)}
    if any(one.fault.name == "SIGSTOP" for one in seen.injected) or disturbed(seen):
        return True
    return all(0 < ended[key] < first.time + _SLACK for key in first.running)


def _natural(seen: Observed, one: Launched) -> set[int]:
    """The exit codes that may come of the workers and of the faults that are not signals."""
    mine = _of_launcher(seen, one)
    if seen.scenario.jobs:
        return _natural_of_sweep(seen, one)
    if not mine:
        # refused, since another one has the directory; or nothing could be started
        codes = {2} if has(seen, "second") else set()
        ended = sent(seen, "worker", "SIGKILL", "SIGTERM", "SIGINT")
        codes |= {3} if ended or sent(seen, "spawner", "SIGKILL", "SIGSTOP") else set()
        return codes | ({1, 2, 3} if disturbed(seen) else set())
    last = max(worker.attempt for worker in mine)
    nproc = seen.scenario.launch["nproc"]
    final = [worker for worker in mine if worker.attempt == last]
    codes = {0} if len(final) == nproc and all(worker.code == 0 for worker in final) else {3}
    if codes == {0} and _hit_after_its_end(seen, final):
        codes.add(3)
    return codes | ({1, 3} if disturbed(seen) else set())


def _of_launcher(seen: Observed, one: Launched) -> list[Worker]:
    return [worker for worker in workers(seen) if worker.job == one.name or seen.scenario.jobs]


def _hit_after_its_end(seen: Observed, final: list[Worker]) -> bool:
    """Whether a fault may have ended a worker between its last word in the ledger and its end."""
    for hit in seen.injected:
        fault = hit.fault
        if fault.what != "signal" or fault.name == "SIGSTOP" or fault.target == "launcher":
            continue
        if any(hit.pid == worker.pid for worker in final):
            return True
        if fault.target == "spawner" and any(hit.time < w.ended + _SLACK for w in final):
            return True
    # a spawner that stands still is killed by the launcher when that is to end
    return bool(sent(seen, "spawner", "SIGSTOP") and sent(seen, "launcher", "SIGTERM", "SIGINT"))


def _natural_of_sweep(seen: Observed, one: Launched) -> set[int]:
    if has(seen, "damage") and one.name == "resume":
        return {0, 1, 2, 6}
    # another one has the directory
    refused = {2} if has(seen, "second") and one.name in "ab" else set()
    if disturbed(seen):
        return {0, 1, 6} | refused
    codes = {0, 6} | refused
    # or what is left of a killed one is still ending
    if not any(worker.started < one.ended for worker in workers(seen)):
        codes.add(2)
    if one.name == "resume":
        journal = seen.run_dir / "sweep.json"
        if journal.exists() and json.loads(journal.read_text())["exit_code"] == 0:
            codes.discard(6)
    return codes


def result(seen: Observed) -> Iterator[str]:
    """Each result.json is what the workers say, and what the launcher exited with."""
    if has(seen, "remove", "rename"):
        return
    for one in seen.launched:
        if one.directory is None or seen.scenario.jobs or disturbed(seen) or one.status is None:
            continue
        known = (one.directory / "result.json").exists() or not _of_launcher(seen, one)
        if not known and (one.status in {0, 3, 4} or one.status > 128):
            yield f"launcher {one.name} exited with {one.status} and left no result.json"
    paths = [*seen.run_dir.glob("*/result.json"), *seen.run_dir.glob("result.json")]
    for path in [*paths, *seen.run_dir.parent.glob("outputs/*/*/result.json")]:
        try:
            document = json.loads(path.read_text())
        except ValueError as e:
            yield f"{path}: {e}"
        else:
            yield from _result(seen, path, document)


def _result(seen: Observed, path: Path, document: Any) -> Iterator[str]:
    name = path.relative_to(seen.run_dir.parent)
    told = {
        (attempt["attempt"], worker["rank"]): worker
        for attempt in document["attempts"]
        for worker in attempt["workers"]
    }
    directory = str(path.parent)
    mine = [worker for worker in workers(seen) if str(worker.log.parents[2]) == directory]
    by_pid = {worker.pid: worker for worker in mine}
    for (attempt, rank), entry in told.items():
        worker = by_pid.get(entry["pid"])
        if worker is None:
            if entry["exitcode"] == 0:
                yield f"{name}: rank {rank} of attempt {attempt} succeeded, and never began"
            continue
        if (worker.attempt, worker.rank) != (attempt, rank):
            yield f"{name}: {worker.key} is called rank {rank} of attempt {attempt}"
        yield from _worker(seen, f"{name}: rank {rank} of attempt {attempt}", worker, entry)
    numbers = {attempt["attempt"] for attempt in document["attempts"]}
    for worker in mine:
        if worker.attempt in numbers and worker.pid not in {e["pid"] for e in told.values()}:
            fate = told.get((worker.attempt, worker.rank), {}).get("fate")
            if not disturbed(seen) and fate != "lost":
                yield f"{name}: {worker.key} ran and is not in it (but {fate})"
    yield from _state(seen, str(name), document, mine)
    yield from _root_cause(seen, str(name), document, mine)


def _worker(seen: Observed, name: str, worker: Worker, entry: Any) -> Iterator[str]:
    exitcode, fate = entry["exitcode"], entry["fate"]
    hit = any(one.pid == worker.pid for one in seen.injected)
    if exitcode is None:
        if fate not in {"lost", "not_started", "ended"}:
            yield f"{name}: {fate} without an exit status"
        return
    if fate == "succeeded" and exitcode != 0:
        yield f"{name}: succeeded with exit status {exitcode}"
    if exitcode >= 0:
        # it could not write, or not fork
        hindered = exitcode and (worker.refused or has(seen, "files", "processes"))
        # an exception of ours: Ctrl-C in the middle of a worker's start
        early = exitcode in {1, 130} and hit
        if worker.code != exitcode and not hindered and not early:
            yield f"{name}: exit status {exitcode}, but it said {worker.code} in its ledger"
        return
    signalled_itself = worker.code is not None and worker.code < 0
    if signalled_itself and exitcode not in {worker.code, -signal.SIGKILL} and not hit:
        yield f"{name}: ended by {-exitcode}, but it sent itself {-worker.code}"


def _state(seen: Observed, name: str, document: Any, mine: list[Worker]) -> Iterator[str]:
    state = document["state"]
    expected = {"succeeded": {0}, "failed": {3, 4}, "error": {1, 2}}.get(state)
    if expected is not None and document["exit_code"] not in expected:
        yield f"{name}: state {state} with exit code {document['exit_code']}"
    if not seen.scenario.jobs and len(seen.launched) == 1 and not disturbed(seen):
        status = seen.launched[0].status
        if status is not None and status >= 0 and status != document["exit_code"]:
            yield f"{name}: exit code {document['exit_code']}, the launcher's was {status}"
    if not mine or not document["attempts"]:
        return
    last = document["attempts"][-1]["attempt"]
    final = [worker for worker in mine if worker.attempt == last]
    nproc = seen.scenario.launch["nproc"]
    well = len(final) == nproc and all(worker.code == 0 for worker in final)
    if state == "succeeded" and not well:
        codes = [worker.code for worker in final]
        yield f"{name}: succeeded, but its {nproc} workers said {codes}"
    if state == "failed" and well and not (disturbed(seen) or _hit_after_its_end(seen, final)):
        yield f"{name}: failed, but all of its workers succeeded"


def _root_cause(seen: Observed, name: str, document: Any, mine: list[Worker]) -> Iterator[str]:
    cause = document["root_cause"]
    if document["state"] == "succeeded":
        if cause is not None:
            yield f"{name}: succeeded with a root cause"
        return
    if cause is None:
        if document["state"] == "failed":
            yield f"{name}: failed without a root cause"
        return
    explanation = cause["explanation"] or {}
    blamed = cause["cause"]["type"] == "SpawnerLost" and explanation.get("sure") == "certain"
    if blamed and explanation["suspect"] == "outside" and not sent(seen, "spawner", "SIGKILL"):
        yield f"{name}: {explanation['text']}: nobody else killed the spawner"
    if seen.injected or cause["local_rank"] is None:
        return
    final = [worker for worker in mine if worker.attempt == cause["attempt"]]
    failed = sorted((w.ended, w.rank) for w in final if w.code)
    # two that fail in one moment may have ended in another order than they said so
    clear = failed and (len(failed) == 1 or failed[1][0] - failed[0][0] > _SLACK)
    if clear and cause["local_rank"] != failed[0][1]:
        yield f"{name}: root cause is rank {cause['local_rank']}, {failed[0][1]} failed first"


# What workers wrote, and what was shown


class _Stream(NamedTuple):
    """What a worker was to write to a stream, how much of it it has counted, and its file."""

    name: str
    meant: bytes
    count: int
    file: bytes


def _streams(seen: Observed, worker: Worker) -> Iterator[_Stream]:
    counters = seen.root / "ledger" / f"bytes-{worker.key}"
    data = counters.read_bytes() if counters.exists() else b""
    attempts = seen.scenario.acts.get(worker.job) or seen.scenario.acts["*"]
    act = attempts[min(worker.attempt, len(attempts) - 1)][worker.rank]
    counts = struct.unpack("<qq", data.ljust(16, b"\0"))
    for name, count in zip(("out", "err"), counts, strict=True):
        meant = b"".join(pieces(vars(act), worker.key, name))
        path = worker.log.with_name(f"std{name}.log")
        yield _Stream(name, meant, count, path.read_bytes() if path.exists() else b"")


def written(seen: Observed) -> Iterator[str]:
    """Every byte that a worker wrote is in its file, and nothing else."""
    if has(seen, "remove", "rename"):
        return
    for worker in workers(seen):
        for stream in _streams(seen, worker):
            count = stream.count
            if stream.file[:count] != stream.meant[:count]:
                yield f"{worker.key}: not all of {count} bytes of std{stream.name} are in its file"
            elif stream.name == "out" and not stream.meant.startswith(stream.file):
                yield f"{worker.key}: its stdout.log holds what it never wrote"


_TEED = re.compile(rb"(?:\[\d+\] )?\[default([\d,-]+)\]:")
_WRITTEN = re.compile(rb"[@%][a-z0-9]+\.\d+\.\d+\.\d+\.(out|err)\.")


def lines(seen: Observed) -> Iterator[str]:
    """Every line that is shown is whole, and shown once; of those that are teed none is missing."""
    # the end of a line that is longer than the room in a pipe has no place if nobody reads on
    unread = any(hit.fault.what == "block" and hit.fault.hold is None for hit in seen.injected)
    for one in seen.launched:
        cut_short = one.gone or one.status == -signal.SIGKILL or unread
        found: Counter[bytes] = Counter()
        expected = _expected_lines(seen)
        streams = [bytes(data).splitlines(keepends=True) for data in one.shown.values()]
        ends = {id(texts[-1]) for texts in streams if texts}
        for text in itertools.chain.from_iterable(streams):
            teed = _TEED.match(text)
            body = text[teed.end() :].rstrip(b"\n") if teed else text.rstrip(b"\n")
            # the end of a worker that was killed within a line may be short
            torn = teed is not None and body != b"" and body in expected
            if not torn and not _WRITTEN.search(text):
                continue
            # the excerpt of a failure report
            if re.match(rb"(\[\d+\] )?\s+\|", text) or b"of its own accord" in text:
                continue
            # Ctrl-C: what Python says of it goes on where the worker's last line was not ended
            body = body.removesuffix(b"Traceback (most recent call last):")
            if not teed or body not in expected:
                if cut_short and id(text) in ends:
                    continue
                yield f"launcher {one.name} shows a line that is not whole: {_short(text)}"
            found[body] += 1
        for body, count in found.items():
            # the torn ends of two workers may be the same
            if count > 1 and body in expected and _WRITTEN.search(body):
                yield f"launcher {one.name} shows a line {count} times: {_short(body)}"
        yield from _missing(seen, one, found)


def _short(text: bytes) -> str:
    return repr(text if len(text) < 160 else text[:100] + b"..." + text[-50:])


def _expected_lines(seen: Observed) -> set[bytes]:
    found = set()
    for worker in workers(seen):
        for stream in _streams(seen, worker):
            found.update(stream.meant.splitlines())
            # a worker that was ended within a line
            found.update(stream.meant[: stream.count + 1].splitlines()[-1:])
            found.update(stream.file.splitlines()[-1:])
    return found


def _missing(seen: Observed, one: Launched, found: Counter[bytes]) -> Iterator[str]:
    """Lines that a launcher that ended properly has not shown."""
    if one.gone or one.status is None or one.status < 0 or disturbed(seen) or seen.hung:
        return
    if has(seen, "block", "second") or seen.scenario.jobs:
        return
    if any(hit.fault.target == "launcher" for hit in seen.injected):
        # asked to end a second time, it shows no more
        return
    tee = str(seen.scenario.launch["tee"])
    for worker in workers(seen):
        for stream in _streams(seen, worker):
            out, first = stream.name == "out", worker.rank == 0
            if not {"none": False, "all": True, "0:all": first, "out": out}[tee]:
                continue
            whole = stream.meant[: stream.count].splitlines()
            if not (missing := [body for body in whole if body and not found[body]]):
                continue
            # a signal may come when it has written more, and before it has counted that
            if missing != whole[-1:] or not any(body.startswith(missing[0]) for body in found):
                count = f"{len(missing)} of {len(whole)} lines"
                yield f"{count} of {worker.key} are not shown: {_short(missing[0])}"


# Records


def records(seen: Observed) -> Iterator[str]:
    """Every line of events and journals can be read."""
    if disturbed(seen):
        return
    killed = any(one.status == -signal.SIGKILL for one in seen.launched)
    names = ["events.jsonl", *([] if has(seen, "damage") else ["sweep.jsonl"])]
    for path in (path for name in names for path in seen.root.glob(f"project/**/{name}")):
        *whole, last = path.read_bytes().split(b"\n")
        # whoever is killed may not have come to the end of its last line
        whole += [last] if last and not killed else []
        for number, line in enumerate(whole, 1):
            try:
                json.loads(line)
            except ValueError:
                yield f"{path.relative_to(seen.root)}, line {number}: {_short(line)}"


_OURS = re.compile(
    rb'File "[^"]*/lllaunch/[^"]*\.py"|internal error|Exception ignored in|Traceback \(most recent'
)


def message(seen: Observed) -> Iterator[str]:
    """No launcher shows a traceback of its own or calls an error internal."""
    for one in seen.launched:
        for data in one.shown.values():
            own = [line for line in bytes(data).splitlines() if not _TEED.match(line)]
            python = _started_too_early(bytes(data))
            for number, line in enumerate(own):
                if re.match(rb"(\[\d+\] )?\s+(\||[A-Z ]*File )", line):
                    continue
                allowed = b"Traceback" in line and (python or _is_workers(own[number:]))
                if _OURS.search(line) and not allowed:
                    yield f"launcher {one.name} shows: {_short(line)}"
                    break


def _is_workers(texts: list[bytes]) -> bool:
    """Whether a traceback, which the texts begin with, is one that a report quotes."""
    margin = texts[0][: texts[0].index(b"Traceback")] + b" "
    inner = itertools.takewhile(lambda line: line.startswith(margin), texts[1:])
    return any(b'/project/worker.py"' in line for line in inner)


def debris(seen: Observed) -> Iterator[str]:
    """No file, directory or cgroup is left in places that belong to nobody."""
    if any(one.status is not None and one.status < 0 for one in seen.launched):
        return
    if sent(seen, "job", "SIGKILL") or has(seen, "files", "processes"):
        return
    yield from seen.debris


# Sweeps and launchers side by side


def once(seen: Observed) -> Iterator[str]:
    """Each job is done once, by one launcher at a time; nothing tells of another's run."""
    for entry in seen.entries:
        if entry["what"] == "taken" and entry["lock"].startswith("job-"):
            yield f"{entry['key']} runs while {entry['holder']} does"
    if seen.scenario.jobs:
        yield from _resumes(seen)
    elif has(seen, "second"):
        yield from _pairs(seen)


_ALTERED = {"flipped", "retyped"}
"""Damages after which a journal may tell of a job what is not so."""


def _resumes(seen: Observed) -> Iterator[str]:
    damage = [hit.fault.name for hit in seen.injected if hit.fault.what == "damage"]
    for number, resume in enumerate(seen.resumed):
        one = seen.launched[resume.launched]
        later = seen.entries[resume.entries :]
        finished = set(resume.finished) & _composed(resume.journal)
        again = {int(e["job"]) for e in later if e["what"] == "start"} & finished
        if again and not (number == 0 and set(damage) & _ALTERED):
            yield f"jobs {sorted(again)} had finished, and were run again by a resume"
        if one.status == 2 and number == 0 and damage:
            yield from _refused(seen, one, resume, later)
    last = seen.launched[-1]
    if seen.resumed and last.status in {0, 6} and not damage and not has(seen, "remove"):
        yield from _summary(seen, last)


def _composed(journal: bytes) -> set[Any]:
    """Return the jobs that a journal tells of: for it, others were never there."""
    found = set()
    for line in journal.splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and record.get("type") == "composed":
                found.add(record.get("job"))
    return found


def _refused(seen: Observed, one: Launched, resume: Any, later: list[Any]) -> Iterator[str]:
    shown = _shown(one)
    if (seen.run_dir / "sweep.jsonl").read_bytes() != resume.journal:
        yield "a resume was refused and changed the journal"
    if any(entry["what"] == "start" for entry in later):
        yield "a resume was refused and started a job"
    if b"sweep.jsonl" not in shown:
        yield f"a resume was refused without naming the journal: {_short(shown)}"


def _summary(seen: Observed, last: Launched) -> Iterator[str]:
    document = json.loads((seen.run_dir / "sweep.json").read_text())
    jobs = document["jobs"]
    if len(jobs) != len(seen.scenario.jobs):
        yield f"sweep.json has {len(jobs)} jobs, not {len(seen.scenario.jobs)}"
    if document["exit_code"] != last.status:
        yield f"sweep.json: exit code {document['exit_code']}, the launcher's was {last.status}"
    done = {worker.job for worker in workers(seen) if worker.code == 0}
    for job in jobs:
        tag = job["overrides"][-1].partition("=")[2]
        if job["state"] == "succeeded" and tag not in done:
            yield f"sweep.json: job {job['job']} (tag={tag}) succeeded, but no worker of it did"


def _pairs(seen: Observed) -> Iterator[str]:
    ran = workers(seen)
    for one in seen.launched:
        if one.status == 2 and any(worker.job == one.name for worker in ran):
            yield f"launcher {one.name} was refused and started workers"
    for directory in {path.parent for path in seen.root.glob("project/**/.hydra")}:
        # a worker may have written no line
        tags_of = {
            attempt: {worker.job.encode() for worker in ran if attempt in worker.log.parents}
            for attempt in directory.glob("attempt_*")
        }
        for log in directory.glob("attempt_*/*/stdout.log"):
            tags_of[log.parents[1]] |= set(re.findall(rb"@([ab])\.", log.read_bytes()))
        tags = set().union(*tags_of.values())
        plain = (directory / ".hydra" / "overrides.yaml").read_text()
        tag = re.search(r"tag=(\w)", plain)
        # an attempt whose workers were never started is whose it says
        if all(tags_of.values()) and len(tags) == 1 and tag and tag[1].encode() not in tags:
            yield f"{directory.name}/.hydra tells of tag={tag[1]}, its workers were {tags}"
        if len(tags) == 2 and directory != seen.run_dir:
            yield f"two runs share {directory.name}"


def leases(seen: Observed) -> Iterator[str]:
    """No two workers have a GPU at the same time."""
    for entry in seen.entries:
        if entry["what"] == "taken" and entry["lock"].startswith("gpu-"):
            yield f"{entry['key']} has {entry['lock']} while {entry['holder']} does"


CHECKS: dict[str, Callable[[Observed], Iterator[str]]] = {
    "ends": ends,
    "alive": alive,
    "others": others,
    "code": code,
    "result": result,
    "bytes": written,
    "lines": lines,
    "records": records,
    "once": once,
    "leases": leases,
    "message": message,
    "debris": debris,
}


def violations(seen: Observed) -> list[tuple[str, str]]:
    """Return all that should not be: the name of a check, and what is wrong, for people."""
    return [(name, text) for name, check in CHECKS.items() for text in check(seen)]
