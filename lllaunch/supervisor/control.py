"""The control socket of a run: another process of the same user asks where its workers stand.

A Unix socket in the run's directory, which is one more thing that the supervisor waits for. Who
connects sends one line of JSON and gets one (docs/reference/files.md). Nothing that comes over it
can disturb the run: a request has few bytes and little time, clients are few at a time, and what
the watchdog wants to know goes before what they want to know. For the machine nothing happens.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import asdict, replace

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


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user of the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


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

    view: RunMoment
    time_ns: int  # since the epoch: all that is known was so after that
    ranks: Sequence[int]  # local ranks of whom is asked
    collector: StackCollector | None  # None if none of them lives


class RunControl:
    """Answers what processes of the same user, and other nodes, ask about a run.

    One after the other, each in a thread as long as it takes. What is known of the run the thread
    gets from the main one, which also begins to take stacks: not while the watchdog does.

    ``nodes``: the nodes of the run; None if this is the only one.

    Raises:
        OSError: the file system knows no sockets, or it cannot be made.
    """

    def __init__(
        self, directory: str, hide: Callable[[str], str] = str, nodes: NodeGroup | None = None
    ) -> None:
        self._hide = hide
        self._nodes = nodes
        self._path = os.path.join(os.path.abspath(directory), SOCKET)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._serving = False
        self._closed = False
        self._thread: threading.Thread | None = None  # that of the last request
        self._connection: socket.socket | None = None
        # what the thread waits for the main one to begin, and what that has begun last
        self._wanted: tuple[Request, Future[_Look]] | None = None
        self._look: _Look | None = None
        self._of_nodes: list[tuple[int, bytes]] = []
        self._answered: list[object] = []
        self._inode = 0
        self._event = -1
        try:
            # readable when the thread wants something, or has ended
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

    # In the main thread

    def files(self) -> list[Any]:
        """Descriptors that are readable when `turn` has something to do."""
        return [self._event if self._serving else self._listener]

    def turn(self, view: Callable[[], RunMoment]) -> list[object]:
        """Do what is to be done, without waiting; return what is worth writing down."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        if self._nodes is not None:
            self._of_nodes += self._nodes.stacks_wanted()
        if self._wanted is not None and not (moment := view()).busy:
            (request, wanted), self._wanted = self._wanted, None
            if wanted.set_running_or_notify_cancel():
                try:
                    wanted.set_result(self._begun(request, moment))
                except (OSError, RuntimeError) as error:
                    # no descriptor or thread is left; the run may do without
                    refused = RequestRefused("busy", f"nothing can be started: {error}")
                    wanted.set_exception(refused)
        if not self._serving and self._of_nodes:
            self._start(self._serve_node, *self._of_nodes.pop(0))
        elif not self._serving and wait_readable(self._listener, 0):
            self._start(self._serve_client)
        answered, self._answered = self._answered, []
        return answered

    def _start(self, serve: Callable[..., None], *asked: Any) -> None:
        def run() -> None:
            # the main thread is to get them, and to stop for SIGTSTP
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                serve(*asked)
            finally:
                self._serving = False
                os.eventfd_write(self._event, 1)

        self._serving, thread = True, threading.Thread(target=run, daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:
            # there are too many threads
            self._serving = False
            if not asked:
                self._listener.accept()[0].close()

    def _begun(self, request: Request, view: RunMoment) -> _Look:
        """Begin to take the stacks that are asked for."""
        wanted, collector, now = request.ranks, None, now_ns()
        ranks = [r for r in range(view.nproc) if wanted is None or view.base_rank + r in wanted]
        pids = {rank: view.pids[rank] for rank in ranks if rank in view.alive & view.pids.keys()}
        if pids:
            from lllaunch.watchdog.collector import StackCollector  # noqa: PLC0415 - seldom

            recorders = {rank: each for rank, each in view.recorders.items() if rank in pids}
            collector = StackCollector(
                pids, seconds=_LOOK_SECONDS, parent=view.parent, recorders=recorders
            )
            collector.start()
        self._look = _Look(view, now, ranks, collector)
        return self._look

    def give_way(self) -> None:
        """Let the watchdog take stacks: what is being taken here is taken anew after that."""
        if self._look is not None and self._look.collector is not None:
            self._look.collector.stop()

    def close(self) -> None:
        """Answer nobody any more, and remove the socket; idempotent."""
        self._closed = True
        self.give_way()
        if self._wanted is not None:
            self._wanted[1].cancel()
        with contextlib.suppress(OSError):
            if self._listener.fileno() >= 0 and os.lstat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        self._listener.close()
        # who has its answer takes it; nobody asks any more
        if self._thread is not None:
            with contextlib.suppress(OSError):
                if self._connection is not None:
                    self._connection.shutdown(socket.SHUT_RD)
            self._thread.join(_LAST_SECONDS)
        # a thread that is late writes to it
        if self._event >= 0 and not (self._thread and self._thread.is_alive()):
            os.close(self._event)
            self._event = -1

    # In the thread of a request

    def _serve_client(self) -> None:
        try:
            self._connection, _ = self._listener.accept()
        except OSError:
            # no descriptor is left
            time.sleep(_PAUSE)
            return
        # it is gone, or slow
        with self._connection, contextlib.suppress(OSError, EOFError):
            try:
                line = _line(self._connection, _REQUEST_SECONDS, _MOST_REQUEST)
                document = self._answer(line, *_peer(self._connection))
            except ValueError as error:
                document = RequestRefused("request", str(error)).to_json()
            except RequestRefused as refused:
                document = refused.to_json()
            self._connection.settimeout(_TAKE_SECONDS)
            self._connection.sendall(json.dumps(document).encode() + b"\n")

    def _serve_node(self, number: int, text: bytes) -> None:
        assert self._nodes is not None
        try:
            document = self._answer(text)
        except RequestRefused as refused:
            document = refused.to_json()
        self._nodes.give_stacks(number, document)

    def _answer(self, line: bytes, pid: int | None = None, uid: int | None = None) -> Any:
        """Return the answer to a request as plain data; without a ``pid`` it is another node's.

        Raises:
            RequestRefused: there is none.
        """
        if uid not in {None, _ROOT, os.geteuid()}:
            raise RequestRefused("permission", f"user {uid} may not look into this run")
        request = Request.from_json(line)
        nodes, stacks, said, answered = self._nodes, dict[int, RankStack](), None, False
        asks = pid is not None
        while not answered:
            look = self._next_look(request)
            if nodes is not None and asks:
                said = nodes.ask_stacks(request.to_json(), _NODES_SECONDS, lambda: self._closed)
                asks = False
            view, collector, answered = look.view, look.collector, True
            if collector is not None:
                wait_readable(collector, _LOOK_SECONDS + 1.0)
                stacks = {stack.rank: stack for stack in collector.result()}
                answered = not collector.unwanted.is_set()
                collector.close()
        self._answered.append(
            StacksAnswered(tuple(view.base_rank + rank for rank in look.ranks), pid, uid)
        )
        answer = Answer(
            time_ns=look.time_ns,
            attempt=view.attempt,
            state=view.state.name,
            text=view.state.value,
            world_size=view.nproc,
            ranks=tuple(_rank_answer(look, stacks, rank, request) for rank in look.ranks),
        )
        place = None if nodes is None else nodes.place
        if place is not None:
            answer = replace(answer, world_size=place.share.world_size)
            answer = answer if pid is None else _with_nodes(answer, place, said)
        return Plain(self._hide)(answer)

    def _next_look(self, request: Request) -> _Look:
        """Wait until the main thread has begun a look; raise `RequestRefused` if it does not."""
        wanted: Future[_Look] = Future()
        self._wanted = request, wanted
        os.eventfd_write(self._event, 1)
        try:
            if not self._closed:
                return wanted.result(_BUSY_SECONDS)
        except TimeoutError:
            if not wanted.cancel():
                return wanted.result()
            text = "the watchdog takes stacks itself: see what it says"
            raise RequestRefused("busy", text) from None
        except CancelledError:
            pass
        raise RequestRefused("over", "the run is ending")


def _rank_answer(
    look: _Look, stacks: Mapping[int, RankStack], rank: int, request: Request
) -> RankAnswer:
    view, known = look.view, asdict(stacks.get(rank, RankStack(rank)))
    if not request.threads:
        known["threads"] = ()
    if known["trace"] is not None:
        from lllaunch.watchdog.collectives import latest  # noqa: PLC0415 - seldom

        known["trace"] = latest(known["trace"])
    status = "running" if rank in view.pids else "starting"
    return RankAnswer(
        **known | {"rank": view.base_rank + rank},
        local_rank=rank,
        status=status if rank in view.alive else "ended",
        pid=view.pids.get(rank),
    )


def _with_nodes(answer: Answer, place: Place, said: Mapping[int, bytes] | None) -> Answer:
    """Return an answer with those of other nodes; None if these could not be asked."""
    here = place.roster.name(place.group_rank)
    ranks = [replace(each, node=here) for each in answer.ranks]
    nodes = []
    for group_rank, member in enumerate(place.roster.members):
        name = place.roster.name(group_rank)
        if group_rank == place.group_rank:
            nodes.append(NodeAnswer(name, answer.state, answer.text))
            continue
        why = "did not answer" if said is not None else "is in no attempt"
        theirs = Answer()
        if member is None:
            why = "runs torchrun"
        elif said and group_rank in said:
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
