"""The control socket of a run: another process of the same user asks where its workers stand.

A Unix socket in the run's directory, which is one more thing that the supervisor waits for. Who
connects sends one line of JSON and gets one (docs/reference/files.md). Nothing that comes over it
can disturb the run: a request has few bytes and little time, clients are few at a time, and what
the watchdog wants to know goes before what they want to know. For the machine nothing happens.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import queue
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.documents import Plain, Record, Text, decode_record, encode_record
from lllaunch.linux.process import short_address, wait_readable
from lllaunch.supervisor.machine import Logged
from lllaunch.watchdog.evidence import RankStack

if TYPE_CHECKING:
    from lllaunch.cluster.rendezvous import Place
    from lllaunch.supervisor.machine import GroupState
    from lllaunch.supervisor.nodes import NodeGroup
    from lllaunch.watchdog.collector import StackCollector, TraceSource

SOCKET = ".lllaunch.sock"
"""Its name in the run's directory."""
VERSION = 1
ANSWER_SECONDS = 30.0
"""An answer is there within this."""

_ROOT = 0
# Clients that may wait for the one that is served.
_MOST_WAITING = 16
# The ranks of thousands of workers fit into it.
_MOST_REQUEST = 1 << 16
_MOST_ANSWER = 256 << 20
# A client has so long to ask, and to take its answer; seconds.
_REQUEST_SECONDS = 5.0
_TAKE_SECONDS = 10.0
# What the watchdog does is waited for so long, and stacks that are taken here; seconds.
_BUSY_SECONDS = 10.0
_LOOK_SECONDS = 5.0
# Beyond these, of those that other nodes take.
_NODES_SECONDS = 10.0
# After an error of the listening socket's own (no descriptors are left), seconds.
_PAUSE = 1.0
# Answers that are being taken when the run ends may take so long, seconds.
_LAST_SECONDS = 0.5


# What is asked and answered


class Request(Record, frozen=True):
    """What a client wants to know."""

    # whose stacks, among the workers of all nodes; None for all
    ranks: frozenset[Annotated[int, Meta(ge=0)]] | None = None
    threads: bool = False
    version: int = VERSION
    ask: Literal["stacks"] = "stacks"

    def to_json(self) -> bytes:
        """Return it as a line; the inverse of `from_json`."""
        return encode_record(self) + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> Request:
        """Return what a line asks for.

        Raises:
            RequestRefused: it asks for nothing that there is.
        """
        try:
            request = decode_record(line, cls)
        except (ValueError, RecursionError) as error:
            raise RequestRefused("request", str(error)) from None
        if request.version != VERSION:
            raise RequestRefused("version", f"this launcher speaks version {VERSION}")
        return request


class RankAnswer(RankStack, frozen=True):
    """Where a worker stands, and what became of it; threads only if they are asked for."""

    BESIDE = frozenset({"path", "process"})

    local_rank: int = 0
    node: Text = ""
    status: str = ""  # ``starting``, ``running`` or ``ended``
    pid: int | None = None


class NodeAnswer(Record, frozen=True):
    """A node of the run."""

    name: str = ""
    state: Text = ""
    text: str = ""
    why_not: str = ""  # why its workers are not shown, or empty


class Answer(Record, frozen=True):
    """Where the workers stand, or why that is not told."""

    BESIDE = frozenset({"error"})

    version: int = VERSION
    time_ns: int = 0  # a moment before any of them was asked
    attempt: int = 0
    state: str = ""
    text: str = ""
    world_size: int = 0
    ranks: tuple[RankAnswer, ...] = ()
    nodes: tuple[NodeAnswer, ...] = ()  # none if there is one
    # ``code`` and ``text`` of a `RequestRefused`; None with an answer
    error: Mapping[str, str] | None = None


def read_answer(line: bytes) -> Answer:
    """Return what a launcher has answered.

    Raises:
        RequestRefused: with an error.
        ValueError: it cannot be understood.
    """
    try:
        reply = decode_record(line, Answer)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if reply.error is not None:
        raise RequestRefused(reply.error.get("code", ""), reply.error.get("text", ""))
    if reply.version != VERSION:
        raise RequestRefused("version", f"it speaks version {reply.version}")
    return reply


class RequestRefused(Exception):
    """A client gets an error for its answer."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code  # its kind: ``request``, ``version``, ``permission``, ``busy`` or ``over``
        self.text = text

    def to_json(self) -> dict[str, Any]:
        """Return the answer that says so."""
        return {"version": VERSION, "error": {"code": self.code, "text": self.text}}


def ask(directory: str, request: Request, seconds: float = ANSWER_SECONDS) -> Answer:
    """Ask the launcher of a run that lives; also raises what `read_answer` does.

    Raises:
        OSError: there is no socket, nobody listens, it is another user's, ...; ``TimeoutError``
            if there is no answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        with short_address(os.path.join(directory, SOCKET)) as address:
            connection.connect(address)
        owner = os.stat(directory).st_uid
        if _peer(connection)[1] not in {_ROOT, os.geteuid(), owner}:
            raise PermissionError(errno.EPERM, "somebody else's process listens there")
        connection.sendall(request.to_json())
        try:
            line = _line(connection, seconds, _MOST_ANSWER)
        except EOFError:
            raise ConnectionResetError("the launcher closed the connection") from None
    return read_answer(line)


def _line(connection: socket.socket, seconds: float, most: int) -> bytes:
    """Read one line, without its end.

    Raises:
        EOFError: the other side has closed it.
        OSError: it is gone; ``TimeoutError`` if nothing comes in time.
        ValueError: the line is too long.
    """
    connection.settimeout(seconds)
    with connection.makefile("rb") as file:
        line = file.readline(most + 1)
    if line.endswith(b"\n"):
        return line[:-1]
    if len(line) > most:
        raise ValueError(f"is longer than {most} bytes")
    raise EOFError


# Clients


class Question(NamedTuple):
    """A request that is to be answered."""

    request: Request
    tell: Callable[[Mapping[str, Any]], None]
    until: float  # moment of the monotonic clock by which stacks must have begun to be taken
    pid: int | None = None  # as in `StacksAnswered`; None for a request of another node
    uid: int | None = None


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user of the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


class ControlSocket:
    """Where clients connect: one is served after another, by a thread as long as it is there.

    Raises:
        OSError: the file system knows no sockets, or it cannot be made.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(os.path.abspath(directory), SOCKET)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._serving = False
        self._thread: threading.Thread | None = None  # of the last client
        self._connection: socket.socket | None = None
        self._answer: Future[Mapping[str, Any]] = Future()
        self._asked: queue.SimpleQueue[Question] = queue.SimpleQueue()
        self._inode = 0
        self._event = -1
        try:
            # readable when somebody has asked, or is gone
            self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            # the file gets these bits, so nobody else can connect at any moment
            os.fchmod(self._listener.fileno(), 0o600)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            with short_address(self._path) as address:
                self._listener.bind(address)
            self._inode = os.lstat(self._path).st_ino
            self._listener.listen(_MOST_WAITING)
        except BaseException:
            self.close()
            raise

    def files(self) -> list[Any]:
        """Descriptors that are readable when `dispatch` has something to do."""
        return [self._event if self._serving else self._listener]

    def dispatch(self) -> list[Question]:
        """Let the next client in, without waiting; return what is asked since."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        if not self._serving and wait_readable(self._listener, 0):
            self._answer, self._serving = Future(), True
            thread = threading.Thread(target=self._serve, args=(self._answer,), daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:
                # there are too many threads
                self._serving = False
                self._listener.accept()[0].close()
        return [] if self._asked.empty() else [self._asked.get()]

    def _serve(self, answer: Future[Mapping[str, Any]]) -> None:
        # the main thread is to get them, and to stop for SIGTSTP
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._connection, _ = self._listener.accept()
        except OSError:
            # no descriptor is left
            time.sleep(_PAUSE)
        else:
            # it is gone, or slow, or the run is ending
            with self._connection, contextlib.suppress(OSError, EOFError, CancelledError):
                try:
                    self._asked.put(self._question(self._connection, answer))
                    os.eventfd_write(self._event, 1)
                    document = answer.result(ANSWER_SECONDS)
                except RequestRefused as refused:
                    document = refused.to_json()
                self._connection.settimeout(_TAKE_SECONDS)
                self._connection.sendall(json.dumps(document).encode() + b"\n")
        self._serving = False
        os.eventfd_write(self._event, 1)

    def _question(self, connection: socket.socket, answer: Future[Mapping[str, Any]]) -> Question:
        """Wait for what a client asks for; also raises what `_line` does.

        Raises:
            RequestRefused: it asks for nothing that there is, or may not ask.
        """
        try:
            line = _line(connection, _REQUEST_SECONDS, _MOST_REQUEST)
        except ValueError as error:
            raise RequestRefused("request", str(error)) from None
        pid, uid = _peer(connection)
        if uid not in {_ROOT, os.geteuid()}:
            raise RequestRefused("permission", f"user {uid} may not look into this run")
        until = time.monotonic() + _BUSY_SECONDS
        return Question(Request.from_json(line), answer.set_result, until, pid, uid)

    def close(self) -> None:
        """Hang up, and remove the socket; idempotent."""
        with contextlib.suppress(OSError):
            if self._listener.fileno() >= 0 and os.lstat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        self._listener.close()
        # who has its answer takes it; nobody asks any more
        self._answer.cancel()
        if self._thread is not None:
            with contextlib.suppress(OSError):
                if self._connection is not None:
                    self._connection.shutdown(socket.SHUT_RD)
            self._thread.join(_LAST_SECONDS)
        # a thread that is late writes to it
        if self._event >= 0 and not (self._thread and self._thread.is_alive()):
            os.close(self._event)
            self._event = -1


# What is answered


class StacksAnswered(Logged, frozen=True):
    """Somebody was told where the workers stand; for events.jsonl."""

    ranks: tuple[int, ...]  # whose stacks were taken, among the workers of all nodes
    pid: int | None = None  # the process that asked; None if it is one of another node
    uid: int | None = None  # its user; None likewise


class ControlUnavailable(Logged, frozen=True):
    """Nobody can ask this run anything; for events.jsonl."""

    reason: str


class RunMoment(NamedTuple):
    """A run at one moment."""

    state: GroupState
    attempt: int
    nproc: int
    base_rank: int
    alive: frozenset[int]  # local ranks of those that have not ended
    pids: Mapping[int, int]
    parent: int  # their parent's process id; 0 before there is one
    busy: bool
    recorders: Mapping[int, TraceSource] = MappingProxyType({})


class _Look(NamedTuple):
    """Stacks that are being taken for a request."""

    question: Question
    view: RunMoment
    time_ns: int  # since the epoch: all that is known was so after that
    until: float  # moment of the monotonic clock by which all must be done
    ranks: Sequence[int]  # local ranks of whom is asked
    collector: StackCollector | None  # None if none of them lives
    others: Future[Mapping[int, bytes]] | None  # what other nodes answer

    @property
    def takes(self) -> list[StackCollector]:
        """Who still takes stacks here, if somebody does."""
        collector = self.collector
        return [] if collector is None or wait_readable(collector, 0) else [collector]

    def end(self) -> tuple[RankAnswer, ...]:
        """Take no stacks any more; return what is known."""
        view, stacks = self.view, {}
        if self.collector is not None:
            stacks = {stack.rank: stack for stack in self.collector.result()}
            self.collector.close()
        found = []
        for rank in self.ranks:
            status = "running" if rank in view.pids else "starting"
            stack = stacks.get(rank, RankStack(rank))
            known = {name: getattr(stack, name) for name in RankStack.__struct_fields__}
            if not self.question.request.threads:
                known["threads"] = ()
            if stack.trace is not None:
                from lllaunch.watchdog.collectives import latest  # noqa: PLC0415 - seldom

                known["trace"] = latest(stack.trace)
            known |= {
                "rank": view.base_rank + rank,
                "local_rank": rank,
                "status": status if rank in view.alive else "ended",
                "pid": view.pids.get(rank),
            }
            found.append(RankAnswer(**known))
        return tuple(found)


class RunControl:
    """Answers what processes of the same user ask about a run, one request after the other.

    ``nodes``: the nodes of the run; None if this is the only one.

    Raises:
        OSError: as `ControlSocket` does.
    """

    def __init__(
        self,
        directory: str,
        hide: Callable[[str], str] = str,
        nodes: NodeGroup | None = None,
    ) -> None:
        self._socket = ControlSocket(directory)
        self._hide = hide
        self._nodes = nodes
        self._waiting: list[Question] = []
        self._look: _Look | None = None

    def files(self) -> list[Any]:
        """Descriptors that are readable when `turn` has something to do."""
        return [*self._socket.files(), *([] if self._look is None else self._look.takes)]

    def next_in(self) -> float | None:
        """Seconds until `turn` has something to do though nothing is readable, or None."""
        # those who wait get their turn when the look is over
        waiting = self._waiting if self._look is None else [self._look]
        first = min((each.until for each in waiting), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def turn(self, view: Callable[[], RunMoment]) -> list[object]:
        """Do what is to be done, without waiting."""
        self._waiting += self._socket.dispatch()
        if self._nodes is not None:
            self._waiting += self._asked_by(self._nodes)
        look = self._look
        found: list[object] = []
        if look is not None and (
            time.monotonic() >= look.until
            or not (look.takes or (look.others is not None and not look.others.done()))
        ):
            self._look = None
            ranks = tuple(look.view.base_rank + rank for rank in look.ranks)
            look.question.tell(Plain(self._hide)(self._answer(look)))
            found.append(StacksAnswered(ranks, look.question.pid, look.question.uid))
        if self._look is None and self._waiting:
            self._next(view())
        return found

    def _asked_by(self, nodes: NodeGroup) -> Iterator[Question]:
        """Yield what other nodes have asked since the last call."""
        for number, text in nodes.stacks_wanted():
            try:
                request = Request.from_json(text)
            except RequestRefused as refused:
                nodes.give_stacks(number, refused.to_json())
                continue
            give = functools.partial(nodes.give_stacks, number)
            yield Question(request, give, time.monotonic() + _BUSY_SECONDS)

    def _next(self, view: RunMoment) -> None:
        """Begin with the next request, unless the watchdog is at it."""
        question, now = self._waiting[0], time.monotonic()
        if view.busy and question.until > now:
            return
        del self._waiting[0]
        text = "the watchdog takes stacks itself: see what it says"
        if not view.busy:
            try:
                self._look = self._begun(question, view)
            except (OSError, RuntimeError) as error:
                # no descriptor or thread is left; the run may do without
                text = f"nothing can be started: {error}"
            else:
                return
        question.tell(RequestRefused("busy", text).to_json())

    def _begun(self, question: Question, view: RunMoment) -> _Look:
        others, collector, seconds, now = None, None, _LOOK_SECONDS + 1.0, now_ns()
        if self._nodes is not None and question.pid is not None:
            others = self._nodes.ask_stacks(question.request.to_json(), _NODES_SECONDS)
            seconds = max(seconds, _NODES_SECONDS + 1.0)
        wanted, ranks = question.request.ranks, range(view.nproc)
        asked = [rank for rank in ranks if wanted is None or view.base_rank + rank in wanted]
        pids = {rank: view.pids[rank] for rank in asked if rank in view.alive & view.pids.keys()}
        if pids:
            from lllaunch.watchdog.collector import StackCollector  # noqa: PLC0415 - seldom

            recorders = {rank: each for rank, each in view.recorders.items() if rank in pids}
            collector = StackCollector(
                pids, seconds=_LOOK_SECONDS, parent=view.parent, recorders=recorders
            )
            collector.start()
        until = time.monotonic() + seconds
        return _Look(question, view, now, until, asked, collector, others)

    def give_way(self) -> None:
        """Let the watchdog take stacks: what is being taken here is taken anew after that."""
        if self._look is not None and self._look.takes:
            self._look.end()
            until = time.monotonic() + _BUSY_SECONDS
            self._waiting.insert(0, self._look.question._replace(until=until))
            self._look = None

    def _answer(self, look: _Look) -> Answer:
        view = look.view
        answer = Answer(
            time_ns=look.time_ns,
            attempt=view.attempt,
            state=view.state.name,
            text=view.state.value,
            world_size=view.nproc,
            ranks=look.end(),
        )
        place = None if self._nodes is None else self._nodes.place
        if place is None:
            return answer
        answer = replace(answer, world_size=place.share.world_size)
        return answer if look.question.pid is None else _with_nodes(answer, place, look.others)

    def close(self) -> None:
        """Answer nobody any more, and remove the socket; idempotent."""
        if self._look is not None:
            self._look.end()
            self._waiting.append(self._look.question)
            self._look = None
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            question.tell(RequestRefused("over", "the run is ending").to_json())
        self._socket.close()


def _with_nodes(answer: Answer, place: Place, others: Future[Mapping[int, bytes]] | None) -> Answer:
    """Return an answer with those of other nodes; None if these could not be asked."""
    here = place.roster.name(place.group_rank)
    ranks = [replace(each, node=here) for each in answer.ranks]
    said = others.result() if others is not None and others.done() else {}
    nodes = []
    for group_rank, member in enumerate(place.roster.members):
        name = place.roster.name(group_rank)
        if group_rank == place.group_rank:
            nodes.append(NodeAnswer(name, answer.state, answer.text))
            continue
        why = "did not answer" if others is not None else "is in no attempt"
        theirs = Answer()
        if member is None:
            why = "runs torchrun"
        elif group_rank in said:
            try:
                theirs, why = read_answer(said[group_rank]), ""
            except RequestRefused as refused:
                why = f"refused to answer ({refused.text})"
            except ValueError as error:
                why = f"was not understood ({error})"
        ranks += [replace(each, node=name) for each in theirs.ranks]
        nodes.append(NodeAnswer(name, theirs.state, theirs.text, why))
    ranks.sort(key=lambda each: each.rank)
    return replace(answer, ranks=tuple(ranks), nodes=tuple(nodes))
