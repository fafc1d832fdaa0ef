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
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta, to_builtins
from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.documents import Plain, Record, Text, decode_record, encode_record
from lllaunch.linux.process import short_address, wait_readable
from lllaunch.supervisor.machine import Logged
from lllaunch.watchdog.frames import Frame, LockWait, RankStack

if TYPE_CHECKING:
    from concurrent.futures import Future

    from lllaunch.cluster.membership import Place
    from lllaunch.supervisor.machine import GroupState
    from lllaunch.supervisor.nodes import NodeGroup
    from lllaunch.watchdog.collector import StackCollector, TraceSource

SOCKET = ".lllaunch.sock"
"""Its name in the run's directory."""
VERSION = 1
ANSWER_SECONDS = 30.0
"""An answer is there within this."""

_ROOT = 0
_MOST_CLIENTS = 16
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
_CHUNK = 1 << 17
# After an error of the listening socket's own (no descriptors are left), seconds.
_PAUSE = 1.0


# What is asked and answered


class Request(Record, frozen=True):
    """What a client wants to know."""

    # whose stacks, among the workers of all nodes; None for all
    ranks: frozenset[Annotated[int, Meta(ge=0)]] | None = None
    threads: bool = False
    version: int = VERSION
    ask: str = "stacks"

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
        if request.ask != "stacks":
            raise RequestRefused("request", "asks for nothing that there is; there is 'stacks'")
        return request


class ThreadAnswer(Record, frozen=True):
    """Where a thread of a worker stands."""

    name: str = ""
    frames: tuple[Frame, ...] = ()


class RankAnswer(Record, frozen=True):
    """Where a worker stands; as of a `RankStack`."""

    rank: int  # among the workers of all nodes
    local_rank: int = 0
    node: Text = ""
    status: str = ""  # ``starting``, ``running`` or ``ended``
    pid: int | None = None
    source: Text = ""
    state: Text = ""
    wchan: Text = ""
    frames: tuple[Frame, ...] = ()
    locks: tuple[LockWait, ...] = ()
    threads: tuple[ThreadAnswer, ...] | None = None  # None unless they are asked for
    # its last collectives, as JSON of a `RankTrace`, which who asks compares with those of others
    trace: Any = None


class NodeAnswer(Record, frozen=True):
    """A node of the run."""

    name: str = ""
    state: Text = ""
    text: str = ""
    why_not: str = ""  # why its workers are not shown, or empty


class Answer(Record, frozen=True):
    """Where the workers stand."""

    version: int = VERSION
    time_ns: int = 0  # a moment before any of them was asked
    attempt: int = 0
    state: str = ""
    text: str = ""
    world_size: int = 0
    ranks: tuple[RankAnswer, ...] = ()
    nodes: tuple[NodeAnswer, ...] = ()  # none if there is one


class Refusal(Record, frozen=True):
    """Why there is no answer; as of `RequestRefused`."""

    code: str = ""
    text: str = ""


class _Reply(Answer, frozen=True):
    error: Refusal | None = None


def read_answer(line: bytes) -> Answer:
    """Return what a launcher has answered.

    Raises:
        RequestRefused: with an error.
        ValueError: it cannot be understood.
    """
    try:
        reply = decode_record(line, _Reply)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if reply.error is not None:
        raise RequestRefused(reply.error.code, reply.error.text)
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
    until = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        with short_address(os.path.join(directory, SOCKET)) as address:
            connection.connect(address)
        owner = os.stat(directory).st_uid
        if _peer(connection)[1] not in {_ROOT, os.geteuid(), owner}:
            raise PermissionError(errno.EPERM, "somebody else's process listens there")
        connection.sendall(request.to_json())
        data = bytearray()
        while not data.endswith(b"\n"):
            connection.settimeout(max(0.01, until - time.monotonic()))
            read = connection.recv(_CHUNK)
            if not read:
                raise ConnectionResetError("the launcher closed the connection")
            data += read
            if len(data) > _MOST_ANSWER:
                raise ValueError("the answer is too long")
    return read_answer(bytes(data))


# Clients


class Client:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # of the other end, as the kernel knows it
        self.pid, self.uid = _peer(connection)
        self._read = bytearray()
        self.unsent = memoryview(b"")  # what is left of its answer
        self.until = time.monotonic() + _REQUEST_SECONDS
        self.fileno, self.close = connection.fileno, connection.close

    def request(self) -> Request | None:
        """Return what it asks for; None if it has not said all of it.

        Raises:
            RequestRefused: it asks for nothing that there is, or may not ask.
            OSError: it is gone.
        """
        # more than is allowed: what is left unread would break off the answer to it
        data = self._connection.recv(_CHUNK)
        self._read += data
        if self.uid not in {_ROOT, os.geteuid()}:
            raise RequestRefused("permission", f"user {self.uid} may not look into this run")
        line, end, _ = self._read.partition(b"\n")
        if len(line) > _MOST_REQUEST:
            raise RequestRefused("request", f"is longer than {_MOST_REQUEST} bytes")
        if end:
            return Request.from_json(bytes(line))
        if not data:
            raise ConnectionResetError
        return None

    def send(self) -> bool:
        """Send what it takes now of its answer; return whether that was the rest.

        Raises:
            OSError: it is gone.
        """
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self._connection.send(self.unsent) :]
        return not self.unsent


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user of the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


class ControlSocket:
    """Where clients connect, and those that have.

    Raises:
        OSError: the file system knows no sockets, or it cannot be made.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(os.path.abspath(directory), SOCKET)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._epoll = select.epoll()
        self._clients: dict[int, Client] = {}
        self._resumes: float | None = 0.0  # when it listens again; None while it does
        self._inode = 0
        try:
            # the file gets these bits, so nobody else can connect at any moment
            os.fchmod(self._listener.fileno(), 0o600)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            with short_address(self._path) as address:
                self._listener.bind(address)
            self._inode = os.lstat(self._path).st_ino
            self._listener.listen(_MOST_CLIENTS)
            self._listen(0.0)
            _open_sockets.add(self)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """A descriptor that is readable when `dispatch` has something to do."""
        return self._epoll.fileno()

    def next_in(self) -> float | None:
        """Seconds until `dispatch` has something to do though nothing is readable, or None."""
        moments = [client.until for client in self._clients.values()]
        if self._resumes is not None and len(self._clients) < _MOST_CLIENTS:
            moments.append(self._resumes)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def dispatch(self) -> list[tuple[Client, Request]]:
        """Take care of the clients, without waiting; return what they have asked for since."""
        found: list[tuple[Client, Request]] = []
        for fd, events in self._epoll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._clients:
                client = self._clients[fd]
                request = self._serve(client, events)
                found += [] if request is None else [(client, request)]
        now = time.monotonic()
        for client in [each for each in self._clients.values() if each.until <= now]:
            self._drop(client)
        self._listen(now)
        return found

    def _listen(self, now: float) -> None:
        """Listen, unless there are enough clients, or it is too early."""
        full = len(self._clients) >= _MOST_CLIENTS
        if self._resumes is None and full:
            self._pause(now)
        elif self._resumes is not None and not full and now >= self._resumes:
            self._epoll.register(self._listener, select.EPOLLIN)
            self._resumes = None

    def _pause(self, until: float) -> None:
        self._epoll.unregister(self._listener)
        self._resumes = until

    def _accept(self) -> None:
        """Let one in: others get their turn before the next."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._pause(time.monotonic() + _PAUSE)
            return
        connection.setblocking(False)
        try:
            client = Client(connection)
            self._epoll.register(connection, select.EPOLLIN)
        except OSError:
            connection.close()
            return
        self._clients[connection.fileno()] = client

    def _serve(self, client: Client, events: int) -> Request | None:
        try:
            if events & select.EPOLLOUT:
                if client.send():
                    self._drop(client)
            elif events & select.EPOLLIN:
                request = client.request()
                if request is not None:
                    # only its end is of interest until there is an answer
                    self._epoll.modify(client, 0)
                    client.until = time.monotonic() + ANSWER_SECONDS
                return request
            else:
                self._drop(client)
        except RequestRefused as refused:
            self.answer(client, refused.to_json())
        except OSError:
            self._drop(client)
        return None

    def answer(self, client: Client, document: Mapping[str, Any]) -> None:
        """Let a client have its answer; one that is gone gets none."""
        if client.fileno() < 0:
            return
        client.unsent = memoryview(json.dumps(document).encode() + b"\n")
        client.until = time.monotonic() + _TAKE_SECONDS
        try:
            if client.send():
                self._drop(client)
            else:
                self._epoll.modify(client, select.EPOLLOUT)
        except OSError:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        del self._clients[client.fileno()]
        client.close()

    def close(self) -> None:
        """Hang up, and remove the socket; idempotent."""
        with contextlib.suppress(OSError):
            if self._listener.fileno() >= 0 and os.lstat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        self.abandon()

    def abandon(self) -> None:
        """Close what is open here, and leave all else to the process that this was forked from."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._epoll.close()
        self._listener.close()


_open_sockets: weakref.WeakSet[ControlSocket] = weakref.WeakSet()


def _abandon_all() -> None:
    """Let a worker that was forked from the launcher hold nothing: who connects would wait."""
    for each in [*_open_sockets]:
        each.abandon()
    _open_sockets.clear()


os.register_at_fork(after_in_child=_abandon_all)


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

    @property
    def running(self) -> frozenset[int]:
        """Local ranks of workers that live."""
        return self.alive & self.pids.keys()


class _Question(NamedTuple):
    """A request that is to be answered."""

    request: Request
    tell: Callable[[Mapping[str, Any]], None]
    until: float  # moment of the monotonic clock by which stacks must have begun to be taken
    pid: int | None = None  # as in `StacksAnswered`; None for a request of another node
    uid: int | None = None


class _Look:
    """Stacks that are being taken for a request."""

    def __init__(
        self,
        question: _Question,
        view: RunMoment,
        others: Future[Mapping[int, bytes]] | None,
        seconds: float,
    ) -> None:
        self.question = question
        self.request = question.request
        self.view = view
        # when that was, nanoseconds since the epoch: all that is known was so after that
        self.time_ns = now_ns()
        self.others = others
        # moment of the monotonic clock by which all must be done
        self.until = time.monotonic() + seconds
        self.ranks: tuple[RankAnswer, ...] | None = None
        wanted = self.request.ranks
        self._local = [
            rank for rank in range(view.nproc) if wanted is None or view.base_rank + rank in wanted
        ]
        self._collector: StackCollector | None = None
        pids = {rank: view.pids[rank] for rank in self._local if rank in view.running}
        if not pids:
            self.ranks = tuple(self._of(rank, None) for rank in self._local)
            return
        from lllaunch.watchdog.collector import StackCollector  # noqa: PLC0415 - seldom

        self._collector = StackCollector(
            pids,
            seconds=_LOOK_SECONDS,
            parent=view.parent,
            recorders={rank: each for rank, each in view.recorders.items() if rank in pids},
        )
        self._collector.start()

    def files(self) -> list[Any]:
        """Descriptors that are readable when there is something to do."""
        return [] if self._collector is None else [self._collector]

    def is_done(self) -> bool:
        """Whether all that can be known is known; takes what is there."""
        late = time.monotonic() >= self.until
        if self._collector is not None and (late or wait_readable(self._collector, 0)):
            stacks = {stack.rank: stack for stack in self._collector.result()}
            self.ranks = tuple(self._of(rank, stacks.get(rank)) for rank in self._local)
            self.close()
        return self.ranks is not None and (late or self.others is None or self.others.done())

    def close(self) -> None:
        """Take no stacks any more; idempotent."""
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def _of(self, rank: int, stack: RankStack | None) -> RankAnswer:
        view, stack = self.view, stack or RankStack(rank)
        status = "running" if rank in view.pids else "starting"
        trace = None
        if stack.trace is not None:
            from lllaunch.watchdog.collectives import latest  # noqa: PLC0415 - seldom

            trace = to_builtins(latest(stack.trace))
        return RankAnswer(
            rank=view.base_rank + rank,
            local_rank=rank,
            status=status if rank in view.alive else "ended",
            pid=view.pids.get(rank),
            source=stack.source,
            state=stack.state,
            wchan=stack.wchan,
            frames=stack.frames,
            locks=stack.locks,
            threads=self._threads(rank),
            trace=trace,
        )

    def _threads(self, rank: int) -> tuple[ThreadAnswer, ...] | None:
        if not self.request.threads:
            return None
        threads = () if self._collector is None else self._collector.threads(rank)
        return tuple(ThreadAnswer(each.name, tuple(each.frames)) for each in threads)


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
        self._waiting: list[_Question] = []
        self._look: _Look | None = None

    def files(self) -> list[Any]:
        """Descriptors that are readable when `turn` has something to do."""
        return [self._socket, *([] if self._look is None else self._look.files())]

    def next_in(self) -> float | None:
        """Seconds until `turn` has something to do though nothing is readable, or None."""
        # those who wait get their turn when the look is over
        moments = [question.until for question in self._waiting]
        if self._look is not None:
            moments = [self._look.until]
        own = max(0.0, min(moments) - time.monotonic()) if moments else None
        waits = [each for each in (own, self._socket.next_in()) if each is not None]
        return min(waits, default=None)

    def turn(self, view: Callable[[], RunMoment]) -> list[object]:
        """Do what is to be done, without waiting."""
        self._take_requests()
        found: list[object] = []
        if self._look is not None and self._look.is_done():
            look, self._look = self._look, None
            ranks = tuple(each.rank for each in look.ranks or ())
            look.question.tell(Plain(self._hide)(self._answer(look)))
            found.append(StacksAnswered(ranks, look.question.pid, look.question.uid))
        if self._look is None and self._waiting:
            self._next(view())
        return found

    def _take_requests(self) -> None:
        until = time.monotonic() + _BUSY_SECONDS
        for client, request in self._socket.dispatch():
            tell = functools.partial(self._socket.answer, client)
            self._waiting.append(_Question(request, tell, until, client.pid, client.uid))
        nodes = self._nodes
        for number, text in () if nodes is None else nodes.stacks_wanted():
            assert nodes is not None
            give = functools.partial(nodes.give_stacks, number)
            try:
                self._waiting.append(_Question(Request.from_json(text), give, until))
            except RequestRefused as refused:
                give(refused.to_json())

    def _next(self, view: RunMoment) -> None:
        """Begin with the next request, unless the watchdog is at it."""
        if view.busy:
            now = time.monotonic()
            for question in [each for each in self._waiting if each.until <= now]:
                self._waiting.remove(question)
                text = "the watchdog takes stacks itself: see what it says"
                question.tell(RequestRefused("busy", text).to_json())
            return
        question = self._waiting.pop(0)
        others, seconds = None, _LOOK_SECONDS + 1.0
        try:
            if self._nodes is not None and question.pid is not None:
                others = self._nodes.ask_stacks(question.request.to_json(), _NODES_SECONDS)
                seconds = max(seconds, _NODES_SECONDS + 1.0)
            self._look = _Look(question, view, others, seconds)
        except (OSError, RuntimeError) as error:
            # no descriptor or thread is left; the run may do without
            text = f"nothing can be started: {error}"
            question.tell(RequestRefused("busy", text).to_json())

    def give_way(self) -> None:
        """Let the watchdog take stacks: what is being taken here is taken anew after that."""
        if self._look is not None and self._look.files():
            self._look.close()
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
            ranks=look.ranks or (),
        )
        place = None if self._nodes is None else self._nodes.place
        if place is None:
            return answer
        answer = replace(answer, world_size=place.share.world_size)
        return answer if look.question.pid is None else _with_nodes(answer, place, look.others)

    def close(self) -> None:
        """Answer nobody any more, and remove the socket; idempotent."""
        if self._look is not None:
            self._look.close()
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
