"""A run on many nodes, played in virtual time: no threads, no processes, no waiting.

What decides is lllaunch's own: for each node a `Machine`, a `Supervisor` that performs its actions,
a `NodeGroup` with its `Rendezvous`; and of torch's rendezvous the operations that decide who is in.
Played are the workers, the watchdog, the clock, the network and the store, which counts what it is
asked.

Code that waits for the store is run as a task: where it asks for something that it has no answer to
yet it is left, and run again from its beginning when the answer is there, with all answers so far.
So two tasks take turns at each operation, as two threads would, and a node can be lost between any
two.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import random
import re
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torchs
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from lllaunch.cluster import rendezvous
from lllaunch.cluster.rendezvous import Place, Roster
from lllaunch.documents import decode_record
from lllaunch.errors import RendezvousFailed
from lllaunch.events import Exited, OrphansGone
from lllaunch.spec import Nodes, RestartPolicy
from lllaunch.supervisor import nodes as nodes_module
from lllaunch.supervisor import supervisor as supervisor_module
from lllaunch.supervisor.machine import (
    Begin,
    Finish,
    GroupEnd,
    Machine,
    NodesAgreed,
    SignalReceived,
    StacksTaken,
    StartWorkers,
    WatchdogFired,
)
from lllaunch.supervisor.nodes import NodeGroup
from lllaunch.supervisor.supervisor import GroupHooks, GroupOptions, Supervisor
from lllaunch.watchdog.blame import blame
from lllaunch.watchdog.evidence import Frame, RankStack
from lllaunch.watchdog.findings import HeartbeatLost, Stalled

_EPOCH = 1_800_000_000
_RUN_ID = "simulated"
_SIGTERM = 15
_OPERATION_SECONDS = 60.0
# Of a played run, for what it waits at most after its last worker could have ended.
_PATIENCE_SECONDS = 900.0


class Violation(AssertionError):
    """Something that must hold of a run did not."""


class _Left(BaseException):
    """A task asks for what has no answer yet; it is run again when there is one."""


# What is asked of the store, by what for.
_PHASES = (
    ("greet", r"/hello|/clock"),
    ("join", r"/member/|/roster|MASTER_"),
    ("ranks", r"/role_info/|/assigned_ranks/"),
    ("keep-alive", r"/alive/|/look"),
    ("end", r"/ended"),
    ("roll call", r"/end/|/counted"),
    ("barrier", r"/terminal_state|/arrived"),
    ("stacks", r"stacks|/stall|/silence"),
    ("results", r"/result"),
)
PHASES = (*(name for name, _ in _PHASES), "torch")
_PHASE_OF = re.compile("|".join(f"(?P<p{i}>{text})" for i, (_, text) in enumerate(_PHASES)))


@functools.lru_cache(200_000)
def _phase(key: str) -> str:
    found = _PHASE_OF.search(key)
    assert found is not None, key
    assert found.lastgroup is not None
    return _PHASES[int(found.lastgroup[1:])][0]


@dataclass
class Load:
    """What a store was asked.

    Attributes:
        operations: how often.
        keys: how many keys that named.
        received: bytes of keys and values.
        sent: bytes of values.
    """

    operations: int = 0
    keys: int = 0
    received: int = 0
    sent: int = 0

    def add(self, other: Load) -> None:
        self.operations += other.operations
        self.keys += other.keys
        self.received += other.received
        self.sent += other.sent


@dataclass(frozen=True)
class Scenario:
    """What is played.

    Attributes:
        nodes: how many there are at first.
        spare: how many more may join.
        min_nodes: with fewer nothing runs.
        nproc: workers of each node.
        seed: of all that chance decides.
        faults: what happens when: seconds and kind (`FAULTS`).
        clean_at: when all workers are done, seconds.
        max_restarts: as in the config.
        latency: of a message, least and most seconds; a few take ten times as long.
        operation: seconds that the store needs for an operation.
        bandwidth: bytes per second that the store takes and gives.
        victims: share of the nodes on which a worker fails because one fails elsewhere.
        node_ranks: whether nodes have numbers that were given to them; node 0 has one always.
    """

    nodes: int
    seed: int
    spare: int = 0
    min_nodes: int = 1
    nproc: int = 8
    faults: tuple[tuple[float, str], ...] = ()
    clean_at: float = 120.0
    max_restarts: int = 3
    latency: tuple[float, float] = (0.0001, 0.0005)
    operation: float = 20e-6
    bandwidth: float = 1e9
    victims: float = 0.1
    node_ranks: bool = True

    def settings(self, node_rank: int | None) -> Nodes:
        """Return what the config of a node says of the nodes."""
        return Nodes(
            min_nodes=self.min_nodes,
            max_nodes=self.nodes + self.spare,
            node_rank=node_rank,
            backend="c10d",
            host="10.0.0.1",
            port=29500,
            timeout=_OPERATION_SECONDS,
            join_timeout=600.0,
        )


# Tasks


class _Task:
    """Code that asks, as the module says.

    Args:
        node: whose it is.
        work: the code; what it asks must follow from the answers alone.
        over: gets its result, or its error.
        keep: objects that it changes; each run finds them as the first one did.
    """

    def __init__(
        self,
        node: _Node,
        work: Callable[[], Any],
        over: Callable[[Any, Exception | None], object],
        keep: Sequence[object] = (),
    ) -> None:
        self._node = node
        self._work = work
        self._over = over
        self._kept = [(each, dict(vars(each))) for each in keep]
        self._answers: list[Any] = []
        self._position = 0
        self.dropped = False

    def run(self) -> None:
        world = self._node.world
        for each, kept in self._kept:
            vars(each).clear()
            vars(each).update(kept)
        self._position = 0
        before, world.task, world.node = (world.task, world.node), self, self._node
        result: Any = None
        failed: Exception | None = None
        try:
            result = self._work()
        except _Left:
            return
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            failed = error
        finally:
            world.task, world.node = before
        self._over(result, failed)

    def ask(self, question: Callable[[Callable[[Any], None]], object]) -> Any:
        """Return the answer to a question, if it has come; errors are raised."""
        if self._position < len(self._answers):
            answer = self._answers[self._position]
            self._position += 1
            if isinstance(answer, Exception):
                raise answer
            return answer
        self._outside(lambda: question(self._answered))
        raise _Left

    def _outside(self, work: Callable[[], Any]) -> Any:
        world = self._node.world
        world.task = None
        try:
            return work()
        finally:
            world.task = self

    def _answered(self, answer: Any) -> None:
        # never at once: the question may still be being asked
        self._node.world.later(0.0, self._node.when_awake, lambda: self._go_on(answer))

    def _go_on(self, answer: Any) -> None:
        if not self.dropped and not self._node.gone:
            self._answers.append(answer)
            self.run()

    def once(self, make: Callable[[], Any]) -> Any:
        """Do something that must not be done again when the task is run again."""
        if self._position == len(self._answers):
            self._answers.append(self._outside(make))
        answer = self._answers[self._position]
        self._position += 1
        return answer


# The store


class _Store:
    """torch's ``Store``, as far as lllaunch uses it."""

    def __init__(self, world: World, node: _Node, prefix: str = "") -> None:
        self._world = world
        self._node = node
        self._prefix = prefix

    def below(self, prefix: str) -> _Store:
        return _Store(self._world, self._node, f"{self._prefix}{prefix}/")

    def clone(self) -> _Store:
        return self

    def _ask(self, name: str, keys: Sequence[str], *rest: Any) -> Any:
        task = self._world.task
        assert task is not None, name
        full = [self._prefix + key for key in keys]
        return task.ask(
            lambda reply: self._world.server.request(self._node, name, full, rest, reply)
        )

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("multi_set", [key], [_bytes(value)])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        self._ask("multi_set", keys, [_bytes(value) for value in values])

    def get(self, key: str) -> bytes:
        found: list[bytes] = self._ask("multi_get", [key])
        return found[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        found: list[bytes] = self._ask("multi_get", keys)
        return found

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", [key], amount))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return bytes(self._ask("compare_set", [key], [_bytes(expected), _bytes(value)]))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", keys))

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        self._ask("wait", keys, timeout.total_seconds())


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


class _Server:
    """Holds the keys, and does one operation after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._pending: set[Callable[[Any], object]] = set()
        self._free_at = 0.0
        self.busy = 0.0
        self.gone = False
        self.load: dict[str, Load] = {phase: Load() for phase in PHASES}

    def request(
        self,
        node: _Node,
        name: str,
        keys: list[str],
        rest: tuple[Any, ...],
        reply: Callable[[Any], None],
    ) -> None:
        world = self._world

        def answer(value: Any) -> None:
            if answer in self._pending:
                self._pending.discard(answer)
                world.when_reached(node, lambda: world.later(world.latency(), reply, value))

        def arrive() -> None:
            if self.gone:
                answer(RuntimeError("Connection was closed by the other end"))
                return
            given = sum(map(len, rest[0])) if name in ("multi_set", "compare_set") else 0
            took = Load(1, len(keys), given + sum(map(len, keys)))
            self.load[_phase(keys[0])].add(took)
            self.occupy(took.received, lambda: self._perform(name, keys, rest, answer))

        self._pending.add(answer)
        world.when_reached(node, lambda: world.later(world.latency(), arrive))

    def occupy(self, size: int, work: Callable[[], object] = lambda: None) -> None:
        """Do something when what came before is done."""
        world = self._world
        took = world.scenario.operation + size / world.scenario.bandwidth
        self.busy += took
        self._free_at = max(world.now, self._free_at) + took
        world.at(self._free_at, work)

    def close(self) -> None:
        """The process that holds it ends."""
        self.gone = True
        for answer in list(self._pending):
            answer(RuntimeError("Connection was closed by the other end"))

    def _perform(
        self, name: str, keys: list[str], rest: tuple[Any, ...], answer: Callable[[Any], None]
    ) -> None:
        if self.gone:
            return
        if name == "multi_set":
            for key, value in zip(keys, rest[0], strict=True):
                self._set(key, value)
            answer(None)
        elif name == "add":
            value = int(self._values.get(keys[0], b"0")) + rest[0]
            self._set(keys[0], str(value).encode())
            answer(value)
        elif name == "compare_set":
            expected, value = rest[0]
            if self._values.get(keys[0], b"") == expected:
                self._set(keys[0], value)
            answer(self._values.get(keys[0], expected))
        elif name == "check":
            answer(all(key in self._values for key in keys))
        else:
            self._await(name, keys, rest[0] if rest else _OPERATION_SECONDS, answer)

    def _set(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for fire in self._waiting.pop(key, ()):
            fire()

    def _await(
        self, name: str, keys: list[str], seconds: float, answer: Callable[[Any], None]
    ) -> None:
        missing = {key for key in keys if key not in self._values}

        def come() -> None:
            if any(key not in self._values for key in missing):
                return
            found = [self._values[key] for key in keys] if name == "multi_get" else None
            if found is not None:
                size = sum(map(len, found))
                self.load[_phase(keys[0])].sent += size
                self.occupy(size)
            answer(found)

        if not missing:
            come()
            return
        for key in missing:
            self._waiting[key].append(come)
        late = RuntimeError(f"wait timeout after {seconds * 1000:.0f}ms")

        def give_up() -> None:
            for key in missing:
                waiting = self._waiting.get(key, [])
                if come in waiting:
                    waiting.remove(come)
            answer(late)

        self._world.later(seconds, give_up)


# torch's rendezvous


class _Executor(torchs._DistributedRendezvousOpExecutor):
    """torch's own changes of the state; nobody else changes it meanwhile."""

    def __init__(self, handler: _Handler, state: Any, settings: Any) -> None:
        super().__init__(handler.desc, None, settings)  # type: ignore[arg-type]
        self._state = state
        self._handler = handler

    def _record(self, message: str, node_state: Any = None) -> None:
        pass

    def run(self, state_handler: Any, deadline: float, update_deadline: Any = None) -> None:  # noqa: ARG002 - torch's
        handler = self._handler
        task = handler.node.world.task
        assert task is not None
        task.ask(lambda reply: handler.rendezvous.run(handler, state_handler, deadline, reply))


class _Handler:
    """torch's ``DynamicRendezvousHandler`` of one node."""

    use_agent_store = True

    def __init__(self, node: _Node, common: _Rendezvous) -> None:
        self.node = node
        self.rendezvous = common
        self.desc: Any = torchs._NodeDesc(node.address, 1000 + node.serial, 0)
        self._op_executor = _Executor(self, common.state, common.settings)
        self._beats = 0

    @property
    def executor(self) -> _Executor:
        return self._op_executor

    def next_rendezvous(self) -> Any:
        world, common = self.node.world, self.rendezvous
        assert world.task is not None
        world.task.once(self._stop_heartbeats)
        deadline = world.time.monotonic() + common.settings.timeout.join.total_seconds()
        self._op_executor.run(torchs._RendezvousExitOp(), deadline)
        self._op_executor.run(torchs._RendezvousJoinOp(), deadline)
        rank, size, number = world.task.once(lambda: self._met(common))
        store = _Store(world, self.node).below(f"torch.rendezvous.{_RUN_ID}.{number}")
        bootstrap = RendezvousStoreInfo.build(
            rank,
            store,  # type: ignore[arg-type]
            local_addr=self.node.address,
            server_port=40000 + number,
        )
        return SimpleNamespace(
            store=store, rank=rank, world_size=size, bootstrap_store_info=bootstrap
        )

    def _met(self, common: _Rendezvous) -> tuple[int, int, int]:
        self._beats += 1
        self._beat(self._beats)
        state = common.state
        self.node.round = state.round
        return state.participants[self.desc], len(state.participants), state.round

    def _beat(self, number: int) -> None:
        common, world = self.rendezvous, self.node.world
        if number != self._beats or self.node.gone:
            return
        if not self.node.is_out:
            common.run(self, torchs._RendezvousKeepAliveOp(), world.now + 5.0, lambda _: None)
        world.later(common.settings.keep_alive_interval.total_seconds(), self._beat, number)

    def _stop_heartbeats(self) -> None:
        self._beats += 1

    def _get_deadline(self, timeout: timedelta) -> float:
        return float(self.node.world.time.monotonic()) + timeout.total_seconds()

    def num_nodes_waiting(self) -> int:
        task = self.node.world.task
        assert task is not None
        return int(task.ask(lambda reply: self.rendezvous.look(self, reply)))

    def shutdown(self) -> bool:
        task = self.node.world.task
        assert task is not None
        task.once(self._stop_heartbeats)
        self._op_executor.run(
            torchs._RendezvousCloseOp(), self._get_deadline(timedelta(seconds=30))
        )
        return True


class _Rendezvous:
    """The state that torch's agents have in common, as if no two wrote it at once."""

    def __init__(self, world: World, settings: Nodes, interval: float, attempts: int) -> None:
        self._world = world
        self.state = torchs._RendezvousState()
        self.settings = torchs.RendezvousSettings(
            _RUN_ID,
            settings.min_nodes,
            settings.max_nodes,
            torchs.RendezvousTimeout(join=timedelta(seconds=settings.join_timeout)),
            keep_alive_interval=timedelta(seconds=interval),
            keep_alive_max_attempt=attempts,
        )
        self._holder = torchs._BackendRendezvousStateHolder(None, self.settings)  # type: ignore[arg-type]
        self._holder._state = self.state

    def look(self, handler: _Handler, reply: Callable[[Any], None]) -> None:
        """Answer how many wait."""
        world = self._world

        def arrive() -> None:
            if world.server.gone:
                reply(RendezvousConnectionError("the connection to the C10d store has failed"))
                return
            self._count(read=True)
            self._holder._sanitize()
            reply(len(self.state.wait_list))

        world.when_reached(handler.node, lambda: world.later(world.latency(), arrive))

    def run(
        self, handler: _Handler, op: Any, deadline: float, reply: Callable[[Any], None]
    ) -> None:
        """Take the next step of an operation, as torch's executor does."""
        world = self._world
        node = handler.node
        if node.gone:
            return
        if node.is_out:
            node.when_awake(
                lambda: world.when_reached(node, lambda: self.run(handler, op, deadline, reply))
            )
            return
        if world.server.gone:
            reply(RendezvousConnectionError("the connection to the C10d store has failed"))
            return
        again = functools.partial(self.run, handler, op, deadline, reply)
        self._holder._sanitize()
        context = torchs._RendezvousContext(handler.desc, self.state, self.settings)
        try:
            action = op(context, deadline)
        except Exception as error:  # noqa: BLE001 - it is the operation's
            reply(error)
            return
        actions = torchs._Action
        ends = {
            actions.FINISH: None,
            actions.ERROR_CLOSED: RendezvousClosedError(),
            actions.ERROR_TIMEOUT: RendezvousTimeoutError(),
        }
        self._count(read=action in ends or action is actions.SYNC)
        if action in ends:
            reply(ends[action])
        elif action is actions.SYNC:
            world.later(1.0, again)
        else:
            change = getattr(handler.executor, f"_{action.name.lower()}")
            change()
            world.later(2 * world.latency(), again)

    def _count(self, *, read: bool) -> None:
        size = STATE_BYTES * (len(self.state.participants) + len(self.state.wait_list))
        key = len("torch.rendezvous.") + len(_RUN_ID)
        self._world.server.load["torch"].add(Load(1, 1, key if read else key + 2 * size, size))


# What a node adds to torch's state in the store, bytes; `scale.py` measures it.
STATE_BYTES = 75


# What the modules of lllaunch find instead of their own


class _Time:
    """The module ``time``, as far as it is used.

    Threads that are none of the played ones have the real one: torch's signs of life, for one, that
    a rendezvous in the same process goes on to give.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._thread = threading.get_ident()

    def monotonic(self) -> float:
        if threading.get_ident() != self._thread:
            return time.monotonic()
        task = self._world.task
        return self._world.now if task is None else float(task.once(lambda: self._world.now))

    def now_ns(self) -> int:
        if threading.get_ident() != self._thread:
            return time.time_ns()
        return _EPOCH * 10**9 + int(self.monotonic() * 1e9)

    def sleep(self, seconds: float) -> None:
        if threading.get_ident() != self._thread:
            time.sleep(seconds)
            return
        task = self._world.task
        assert task is not None
        task.ask(lambda reply: self._world.later(seconds, reply, None))

    def now(self, zone: timezone | None = None) -> datetime:
        """Stand for ``datetime.datetime.now``."""
        if threading.get_ident() != self._thread:
            return datetime.now(zone)
        return datetime.fromtimestamp(_EPOCH + self._world.now, zone)


class _Connection(rendezvous.Rendezvous):
    """A connection to the played store."""

    def connect(
        self,
        say: Callable[[str], object],  # noqa: ARG002 - there is nothing to say
        given_up: Callable[[], bool] = lambda: False,  # noqa: ARG002 - and it takes no time
    ) -> None:
        node = World.present.node
        self._handler = node.handler
        self.base = rendezvous._below(f"lllaunch/{self._run_id}", _Store(node.world, node))


class _Link(nodes_module._Link):
    """Does one thing after the other."""

    def __init__(
        self, rendezvous: rendezvous.Rendezvous, wake: Callable[[object, object], None]
    ) -> None:
        self.rendezvous = rendezvous
        self._node = World.present.node
        self._wake = wake
        self._over = False
        self._todo: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._task: _Task | None = None
        self.given_up = SimpleNamespace(is_set=lambda: self._over)  # type: ignore[assignment]

    def wait(self, done: Future[Any], seconds: float) -> bool:
        task = self._node.world.task
        assert task is not None
        return bool(task.ask(lambda reply: self._asked(done, seconds, reply)))

    def _asked(self, done: Future[Any], seconds: float, reply: Callable[[Any], None]) -> None:
        told: list[bool] = []
        world = self._node.world

        def tell(value: Any) -> None:
            if not told:
                told.append(True)
                reply(value)

        if not done.done():
            world.later(seconds, tell, False)
        done.add_done_callback(lambda _: world.later(0.0, tell, True))

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        task = self._node.world.task
        put = functools.partial(self._put, work)
        done: Future[Any] = put() if task is None else task.once(put)
        return done

    def _put(self, work: Callable[[], Any]) -> Future[Any]:
        world = self._node.world
        done: Future[Any] = Future()
        self._todo.append((work, done))
        world.later(0.0, self._next)
        return done

    def join(self, timeout: float | None = None) -> None:
        """Nothing is to be waited for."""

    def stop(self) -> None:
        self._over = True
        if self._task is not None:
            self._task.dropped = True

    def _next(self) -> None:
        if self._task is not None or not self._todo or self._over or self._node.gone:
            return
        work, done = self._todo.popleft()
        link = self._node.group.link

        def over(result: Any, error: Exception | None) -> None:
            self._task = None
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)
            self._tell(done)
            self._node.world.later(0.0, self._next)

        self._task = _Task(self._node, work, over, keep=() if link is None else (link,))
        self._task.run()


class _Watch(nodes_module._Watch):
    """Hears in turns."""

    _at_barrier: dict[int, bool]

    def __init__(self, *args: Any) -> None:
        self._node = World.present.node
        # not of those attributes that a task finds as they were
        self._beyond = {"at_barrier": False, "over": False}
        super().__init__(*args)
        self._task: _Task | None = None

    @property
    def at_barrier(self) -> bool:
        task = self._node.world.task
        here = self._beyond
        return here["at_barrier"] if task is None else bool(task.once(lambda: here["at_barrier"]))

    @at_barrier.setter
    def at_barrier(self, value: bool) -> None:
        self._beyond["at_barrier"] = value

    def start(self) -> None:
        self._node.world.later(0.0, self._next)

    def join(self, timeout: float | None = None) -> None:
        """Nothing is to be waited for."""

    def stop(self) -> None:
        self._beyond["over"] = True
        task = self._node.hearing.pop(id(self), None)
        if task is not None:
            task.dropped = True

    def _is_over(self) -> bool:
        return False

    def _next(self) -> None:
        if self._beyond["over"] or self._node.gone:
            return
        store = self._rendezvous.round
        task = _Task(self._node, lambda: self.turn(store), self._turned, keep=(self,))
        self._node.hearing[id(self)] = task
        task.run()

    def _turned(self, heard: Any, error: Exception | None) -> None:
        if error is not None:
            self._wake(nodes_module._Broken(str(error)), self)
        elif not heard:
            self._node.world.later(0.0, self._next)


class _Group(NodeGroup):
    """The nodes of a run, as one of them sees them."""

    def __init__(self, node: _Node, settings: Nodes) -> None:
        self._node = node
        with mock.patch("os.eventfd", return_value=-1):
            super().__init__(
                settings,
                run_id=_RUN_ID,
                role="default",
                nproc=node.world.scenario.nproc,
                plan={"entrypoint": "train.py", "args": {"lr": 0.1}},
                directory=f"/scratch/experiments/2026-11-22/12-00-00/node_{node.number}",
            )

    def token(self) -> str:
        return "0123456789abcdef"

    def failure(self) -> GroupEnd | None:
        return self._node.failure()

    @property
    def link(self) -> rendezvous.Rendezvous | None:
        return None if self._link is None else self._link.rendezvous

    def prepare(self) -> nodes_module._Link:
        task = self._node.world.task
        if self._link is None and task is not None:
            self._link = task.once(super().prepare)
        return super().prepare()

    def _await(self, link: nodes_module._Link, work: Callable[[], Any], _: Any) -> Any:
        done = link.do(work)
        assert link.wait(done, 1e9)
        return done.result()

    def _wake(self, news: object = None, source: object = None) -> None:
        task = self._node.world.task
        if task is None:
            self._woken(news, source)
        else:
            task.once(lambda: self._woken(news, source))

    def _woken(self, news: object, source: object) -> None:
        if news is not None:
            self._news.append((news, source))
        self._node.world.later(0.0, self._node.turn)

    def _clear(self) -> None:
        pass


class _Signals:
    """No signal comes while a node joins but those that the scenario has."""

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        yield


class _Watchdog:
    """Takes stacks, and finds what the scenario says."""

    def __init__(self, node: _Node) -> None:
        self._node = node

    def prepare(self, nprocs: int) -> None:
        pass

    def begin(self, workers: object) -> None:
        pass

    def signal(self, action: object) -> None:
        pass

    def take_stacks(self, ranks: frozenset[int], finding: Any, _: int = 0) -> None:
        world = self._node.world
        stacks = tuple(_stack(rank, hung=rank in self._node.hanging) for rank in sorted(ranks))
        taken = StacksTaken(stacks, blame(stacks, finding), finding)
        world.later(world.random.uniform(0.2, 2.0), self._node.arrive, taken)


def _stack(rank: int, *, hung: bool) -> RankStack:
    top = (
        Frame("/home/u/train.py", 41, "load", "queue.get()")
        if hung
        else Frame("/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce")
    )
    own = Frame("/home/u/train.py", 57, "step", "loss.backward()")
    path = f"/scratch/experiments/2026-11-22/12-00-00/attempt_0/{rank}/stacks.txt"
    return RankStack(rank, path, (top, own), "S", "futex_wait", "faulthandler")


class _Workers:
    """The workers of an attempt on one node."""

    def __init__(self, node: _Node, number: int) -> None:
        world = node.world
        self._node = node
        self.attempt = number
        self.alive = set(range(world.scenario.nproc))
        self.failure: GroupEnd | None = None
        over = max(world.scenario.clean_at, world.now + 0.5)
        for rank in self.alive:
            world.at(over + world.random.uniform(0.0, 2.0), self.end, rank, 0, True)

    def end(self, rank: int, exitcode: int, by_itself: bool = False) -> None:
        node = self._node
        world = node.world
        if rank not in self.alive or node.gone or (by_itself and rank in node.hanging):
            return
        self.alive.discard(rank)
        now_ns = world.now_ns()
        if exitcode and self.failure is None:
            base = node.group.place.share.base_rank if node.group.place is not None else 0
            text = f"exited with status {exitcode}"
            self.failure = GroupEnd(
                "failed", "", -1, text, base + rank, now_ns, cause="ExitedNonZero"
            )
        node.arrive(Exited(rank, 1, exitcode, now_ns, attempt=self.attempt))

    def signal(self, signum: int) -> None:
        random = self._node.world.random
        for rank in sorted(self.alive):
            # a few take no notice
            if random.random() >= 0.01 and rank not in self._node.hanging:
                self._node.world.later(random.uniform(0.01, 0.5), self.end, rank, -signum)

    def kill(self) -> None:
        for rank in sorted(self.alive):
            self._node.world.later(self._node.world.random.uniform(0.0, 0.05), self.end, rank, -9)

    def clean_up(self, settle: float) -> None:  # noqa: ARG002 - no orphan is played
        world = self._node.world
        world.later(world.random.uniform(0.01, 0.3), self._node.arrive, OrphansGone())

    def known_pids(self) -> dict[int, int]:
        return {}

    def close(self, *_: object) -> None:
        pass


class _Node:
    """A launcher."""

    def __init__(self, world: World, number: int, serial: int) -> None:
        scenario = world.scenario
        self.world = world
        self.number = number
        self.serial = serial
        self.hostname = f"host{number}"
        self.address = f"10.0.{number // 250}.{number % 250 + 1}"
        self.gone = False
        self.over = False
        self.round = -1
        self.signalled = False
        # when it can be reached again, and when it goes on
        self.cut_until = self.stopped_until = 0.0
        self.was_out = False
        self.hanging: set[int] = set()
        self.hearing: dict[int, _Task] = {}
        self.results: int | None = None
        self.end: Finish | None = None
        self.said = ""
        self.workers: _Workers | None = None
        self.handler = _Handler(self, world.rendezvous)
        self._next_attempt = 0
        self._events: deque[Any] = deque([Begin()])
        self._task: _Task | None = None
        self._turn_at = -1.0
        numbered = scenario.node_ranks or number == 0
        self.group = _Group(self, scenario.settings(number if numbered else None))
        self.machine = Machine(
            scenario.max_restarts, policy=RestartPolicy(on=_ALL_CAUSES), alone=False
        )
        self._supervisor = Supervisor(
            self.machine,
            GroupOptions(scenario.nproc, 5.0),
            GroupHooks(self._start),  # type: ignore[arg-type]
            signals=_Signals(),  # type: ignore[arg-type]
            watchdog=_Watchdog(self),  # type: ignore[arg-type]
            clock=world.clock,  # type: ignore[arg-type]
            nodes=self.group,
        )

    # Its main thread

    @property
    def is_out(self) -> bool:
        """Whether it is cut off, or stopped."""
        return max(self.cut_until, self.stopped_until) > self.world.now

    def when_awake(self, work: Callable[[], object]) -> None:
        if self.stopped_until > self.world.now:
            self.world.at(self.stopped_until, self.when_awake, work)
        else:
            work()

    def arrive(self, event: Any) -> None:
        """Let something happen here."""
        if not self.gone and not self.over:
            self._events.append(event)
            self.world.later(0.0, self.turn)

    def turn(self) -> None:
        """Take note of all that happened, as the supervisor does."""
        if self.gone or self.over or self._task is not None:
            return
        if self.stopped_until > self.world.now:
            self.world.at(self.stopped_until, self.turn)
            return
        self.world.node = self
        heard = self.group.events()
        self._events.extend(heard)
        if not self._events:
            self._events.extend(self._supervisor._timed())
        while self._events and self._task is None and not self.over:
            event = self._events.popleft()
            self.world.saw(self, event)
            for action in self.machine.handle(event):
                self._act(action)
        self._come_back()

    def _come_back(self) -> None:
        if self._task is not None or self.over:
            return
        waits = [self.group.next_in(), self._supervisor._deadlines.next_in()]
        known = [each for each in waits if each is not None]
        at = self.world.now + max(0.001, min(known, default=1e9))
        if known and not self.world.now < self._turn_at <= at:
            self._turn_at = at
            self.world.at(at, self.turn)

    def _act(self, action: Any) -> None:
        self.world.saw(self, action)
        if isinstance(action, Finish):
            self._leave(action)
        elif isinstance(action, StartWorkers):
            kept = filter(supervisor_module._outlasts_an_attempt, self._events)
            self._events = deque(kept)
            work = functools.partial(self._supervisor._perform, action)
            self._run(work, self._started)
        else:
            self._events.extendleft(reversed(self._supervisor._perform(action)))

    def _run(self, work: Any, over: Any) -> None:
        self._task = _Task(self, work, over, keep=(self.group,))
        self._task.run()

    def _start(self, action: StartWorkers) -> _Workers:
        attempt = self._next_attempt
        place = self.group.join(_Signals(), attempt, action.restart_count)  # type: ignore[arg-type]
        number = max(attempt, place.attempt)
        self._next_attempt = number + 1
        self.hanging = set()
        self.workers = _Workers(self, number)
        self.world.started(self, place, number)
        return self.workers

    def _started(self, events: Any, error: Exception | None) -> None:
        self._task = None
        if error is not None:
            if not isinstance(error, RendezvousFailed):
                raise error
            self.said = str(error)
            self._leave(None)
            return
        self._events.extendleft(reversed(events))
        self.world.later(0.0, self.turn)

    def _leave(self, end: Finish | None) -> None:
        self.end = end
        self.over = True
        over = end is None or end.signum is None
        self._run(functools.partial(self._farewell, over), self._left)

    def _farewell(self, over: bool) -> None:
        """Do what `lllaunch.run.nodes.RunNodes.finish` does."""
        if self.number != 0:
            self.group.give_result(self.world.document)
        else:
            self.results = len(self.group.results(20.0 if over else 1.0, _Signals()))
        self.group.close(over=over)

    def _left(self, _: Any, error: Exception | None) -> None:
        if error is not None:
            raise error
        self.gone = True
        self.world.ended(self)

    def failure(self) -> GroupEnd | None:
        return None if self.workers is None else self.workers.failure

    # What happens to it

    def is_idle_everywhere(self, workers: _Workers | None) -> None:
        """Ask again and again whether all nodes stall, as the watchdog does."""
        if self.gone or self.over or self.workers is not workers:
            return
        if not self.machine.healthy or not self.machine.alive:
            return
        self.world.node = self
        if self.group.are_all_idle("stall", 4.0):
            finding = Stalled(tuple(range(self.world.scenario.nproc)), 300.0)
            self.arrive(WatchdogFired(finding, "hang"))
        else:
            self.world.later(1.0, self.is_idle_everywhere, workers)

    def interrupt(self) -> None:
        """Get SIGTERM."""
        self.signalled = True
        if self._task is not None and not self.over:
            # while it joins
            self._task.dropped = True
            self._task = None
            self._leave(Finish("FAILED", "signal", _SIGTERM))
            return
        self.arrive(SignalReceived(_SIGTERM))


_ALL_CAUSES: Any = frozenset({"failure", "signal", "oom", "hang", "timeout", "node"})


@dataclass
class _Round:
    """What is known of an attempt of all nodes."""

    started: dict[int, tuple[_Node, Place]] = field(default_factory=dict)
    reasons: dict[tuple[Any, ...], str] = field(default_factory=dict)
    decisions: dict[str, str] = field(default_factory=dict)
    fault: tuple[float, str] | None = None


@dataclass(frozen=True)
class Recovery:
    """From a failure to the next attempt.

    Attributes:
        kind: of the failure.
        seconds: until workers run on all nodes.
        heard: until the last node has heard of it.
    """

    kind: str
    seconds: float
    heard: float


class World:
    """A run, played.

    Args:
        scenario: what is played.
        document: what each node leaves for node 0 in the end, plain data.

    Attributes:
        now: virtual time, seconds.
        server: the store.
        recoveries: from failures to next attempts.
    """

    present: World

    def __init__(self, scenario: Scenario, document: Any = None) -> None:
        self.scenario = scenario
        self.document = document or {"state": "succeeded"}
        self.random = random.Random(scenario.seed)
        self.now = 0.0
        self.task: _Task | None = None
        self.node: Any = None
        self.time = _Time(self)
        self.server = _Server(self)
        self.nodes: list[_Node] = []
        self.recoveries: list[Recovery] = []
        self.met_first = 0.0
        self.wakes = 0
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._rounds: dict[int, _Round] = defaultdict(_Round)
        self._faults: deque[tuple[float, str]] = deque()
        self._heard_last = 0.0
        settings = scenario.settings(0)
        interval, attempts = rendezvous.torchs_keep_alive(settings)
        self.rendezvous = _Rendezvous(self, settings, interval, int(attempts))

    # Time

    def at(self, moment: float, work: Callable[..., object], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(moment, self.now), self._count, work, args))

    def later(self, seconds: float, work: Callable[..., object], *args: Any) -> None:
        self.at(self.now + seconds, work, *args)

    def latency(self) -> float:
        """Return how long a message takes."""
        low, high = self.scenario.latency
        seconds = self.random.uniform(low, high)
        return seconds * 10 if self.random.random() < 0.01 else seconds

    def when_reached(self, node: _Node, work: Callable[[], object]) -> None:
        if node.cut_until > self.now:
            self.at(node.cut_until, self.when_reached, node, work)
        else:
            work()

    def clock(self) -> float:
        return self.now

    def now_ns(self) -> int:
        return self.time.now_ns()

    # The run

    def play(self) -> None:
        """Play it to its end.

        Raises:
            Violation: what must hold did not.
        """
        with self._instead():
            try:
                self._play()
            except Violation:
                raise
            except Exception as error:
                raise Violation(
                    f"seed {self.scenario.seed}, {self.now:.3f} s: {error!r}"
                ) from error

    def _play(self) -> None:
        for number in range(self.scenario.nodes):
            self.later(self.random.uniform(0.0, 5.0) if number else 0.0, self.add_node, number)
        for moment, kind in self.scenario.faults:
            self.at(moment, self._fault, kind)
        limit = self.scenario.clean_at + _PATIENCE_SECONDS
        while self._queue and self.now < limit:
            if len(self.nodes) >= self.scenario.nodes and all(each.gone for each in self.nodes):
                break
            self.now, _, work, args = heapq.heappop(self._queue)
            self.wakes += 1
            if self.wakes > 3000 * self.scenario.nodes * (1 + limit / 60):
                self._violated("far too much happens")
            work(*args)
        waiting = [node for node in self.nodes if not node.gone]
        for node in waiting[:1]:
            state = node.machine.state.name
            self._violated(f"{len(waiting)} nodes never end; {node.hostname} is {state}")

    @contextlib.contextmanager
    def _instead(self) -> Iterator[None]:
        World.present = self
        named = SimpleNamespace(gethostname=lambda: self.node.hostname)
        roster_of = functools.lru_cache(16)(lambda text: decode_record(text, Roster))

        def read(text: bytes, kind: Any) -> Any:
            return roster_of(text) if kind is Roster else decode_record(text, kind)

        with contextlib.ExitStack() as stack:
            for module in (nodes_module, rendezvous):
                stack.enter_context(mock.patch.object(module, "time", self.time))
                stack.enter_context(mock.patch.object(module, "now_ns", self.time.now_ns))
                stack.enter_context(mock.patch.object(module, "socket", named))
            for name, value in (
                ("Rendezvous", _Connection),
                ("_Link", _Link),
                ("_Watch", _Watch),
                ("local_address", lambda *_: self.node.address),
                ("network_name", lambda: self.node.hostname),
            ):
                stack.enter_context(mock.patch.object(nodes_module, name, value))
            below = lambda prefix, store: store.below(prefix)  # noqa: E731
            stack.enter_context(mock.patch.object(rendezvous, "_below", below))
            # nodes that read the same roster would each have a copy
            stack.enter_context(mock.patch.object(rendezvous, "decode_record", read))
            stack.enter_context(mock.patch.object(torchs, "datetime", self.time))
            stack.enter_context(mock.patch.object(torchs, "time", self.time))
            yield

    def add_node(self, number: int) -> None:
        """Let a node come."""
        serial = len(self.nodes)
        self.node = SimpleNamespace(address="", hostname="")
        node = _Node(self, number, serial)
        self.nodes.append(node)
        self.node = node
        node.group.prepare()
        self.later(0.0, node.turn)

    # What happens

    def _fault(self, kind: str) -> None:
        running = [each for each in self.nodes if not each.gone and not each.over]
        healthy = [each for each in running if each.machine.healthy and each.workers is not None]
        others = [each for each in running if each.number]
        if kind == "joins":
            used = {each.number for each in running}
            total = self.scenario.nodes + self.scenario.spare
            free = [number for number in range(total) if number not in used]
            if free:
                self._note(kind)
                self.add_node(self.random.choice(free))
            return
        among = {
            "fails": healthy,
            "hangs": healthy,
            "stalls": healthy,
            "first lost": [each for each in running if each.number == 0],
        }.get(kind, others)
        if not among:
            return
        node = self.random.choice(among)
        self._note(kind)
        _KINDS[kind](self, node)

    def _note(self, kind: str) -> None:
        self._faults.append((self.now, kind))

    def _fails(self, node: _Node) -> None:
        assert node.workers is not None
        rank = self.random.choice(sorted(node.workers.alive) or [0])
        node.workers.end(rank, self.random.choice((1, 1, 2, -6, -9)))
        for other in self.nodes:
            if other is not node and self.random.random() < self.scenario.victims:
                self.later(self.random.uniform(0.0, 1.0), self._falls, other, other.workers)

    def _falls(self, node: _Node, workers: _Workers | None) -> None:
        """Let a worker fail that was in a collective with one that has."""
        if workers is not None and node.workers is workers and workers.alive:
            workers.end(self.random.choice(sorted(workers.alive)), 1)

    def _lost(self, node: _Node) -> None:
        node.gone = True
        if node.number == 0:
            self.later(0.01, self.server.close)

    def _hangs(self, node: _Node) -> None:
        node.hanging = {0}
        node.arrive(WatchdogFired(HeartbeatLost((0,), 30.0), "hang"))

    def _stalls(self, node: _Node) -> None:
        node.hanging = {0}
        for each in self.nodes:
            if each.machine.healthy:
                delay = self.random.uniform(0.0, 1.0)
                self.later(delay, each.is_idle_everywhere, each.workers)

    def _left(self, node: _Node) -> None:
        node.interrupt()

    def _cut(self, node: _Node) -> None:
        node.was_out = True
        node.cut_until = self.now + self.random.choice((1.0, 8.0, 20.0, 50.0))

    def _stopped(self, node: _Node) -> None:
        node.was_out = True
        node.stopped_until = self.now + self.random.choice((1.0, 8.0, 20.0, 50.0))

    # What must hold

    def saw(self, node: _Node, item: Any) -> None:
        """Take note of an event or an action of a node."""
        here = self._rounds[node.round]
        if isinstance(item, NodesAgreed):
            self._heard_last = self.now
            if not node.was_out and not node.signalled and not self.server.gone:
                ended = item.ended
                key = (item.reason, ended.how, ended.node, ended.group_rank, ended.rank)
                here.reasons[key] = node.hostname
                if len(here.reasons) > 1:
                    self._violated(f"nodes heard different reasons: {here.reasons}")
        decides = isinstance(item, (StartWorkers, Finish)) and node.round >= 0
        if decides and not node.signalled and not node.was_out and not self.server.gone:
            what = "again" if isinstance(item, StartWorkers) else f"over, {item.state}"
            here.decisions[what] = node.hostname
            if len(here.decisions) > 1:
                self._violated(f"nodes do not go on alike: {here.decisions}")

    def started(self, node: _Node, place: Place, attempt: int) -> None:
        """Take note that a node starts its workers."""
        here = self._rounds[node.round]
        nproc = self.scenario.nproc
        share = place.share
        if attempt != place.attempt:
            self._violated(f"{node.hostname} counts {attempt}, the others {place.attempt}")
        if place.group_rank in here.started:
            self._violated(f"two nodes have group rank {place.group_rank}")
        for other, theirs in list(here.started.values())[:1]:
            same = (place.size, place.attempt, place.restarts, share.world_size, place.roster)
            if same != (
                theirs.size,
                theirs.attempt,
                theirs.restarts,
                theirs.share.world_size,
                theirs.roster,
            ):
                self._violated(f"{node.hostname} and {other.hostname} start different attempts")
        if (share.base_rank, share.world_size) != (place.group_rank * nproc, place.size * nproc):
            self._violated(
                f"{node.hostname} has ranks from {share.base_rank} of {share.world_size}"
            )
        for number, before in self._rounds.items():
            for _, earlier in list(before.started.values())[:1]:
                if number < node.round and not (
                    earlier.attempt < place.attempt and earlier.restarts <= place.restarts
                ):
                    self._violated(f"attempt {place.attempt} follows {earlier.attempt}")
        here.started[place.group_rank] = node, place
        if len(here.started) == place.size:
            self._all_started()

    def _all_started(self) -> None:
        self.met_first = self.met_first or self.now
        while self._faults:
            moment, kind = self._faults.popleft()
            heard = max(0.0, self._heard_last - moment)
            self.recoveries.append(Recovery(kind, self.now - moment, heard))

    def ended(self, node: _Node) -> None:
        """Take note that a launcher has ended."""
        if node.number == 0 and not self.server.gone:
            self.later(0.01, self.server.close)

    def _violated(self, text: str) -> None:
        raise Violation(f"seed {self.scenario.seed}, {self.now:.3f} s: {text}")

    @property
    def load(self) -> Load:
        """What the store was asked in all, but for torch's rendezvous."""
        total = Load()
        for phase, load in self.server.load.items():
            if phase != "torch":
                total.add(load)
        return total

    def states(self) -> Counter[str]:
        """Return how many nodes ended in which state."""
        return Counter(
            "lost" if each.end is None and not each.said else _state(each) for each in self.nodes
        )


def _state(node: _Node) -> str:
    return node.said or (node.end.state if node.end is not None else "?")


_KINDS: dict[str, Callable[[World, _Node], None]] = {
    "fails": World._fails,
    "lost": World._lost,
    "first lost": World._lost,
    "leaves": World._left,
    "hangs": World._hangs,
    "stalls": World._stalls,
    "cut": World._cut,
    "stopped": World._stopped,
}
FAULTS = (*_KINDS, "joins")


def random_scenario(seed: int, nodes: int = 12) -> Scenario:
    """Return a run on a few nodes to which chance lets anything happen, over slow connections."""
    dice = random.Random(seed)
    kinds = [kind for kind in FAULTS if kind != "first lost"]
    clean_at = dice.uniform(40.0, 100.0)
    many = dice.choice((1, 2, 3, 5))
    faults = [(dice.uniform(5.0, clean_at + 2.0), dice.choice(kinds)) for _ in range(many)]
    if dice.random() < 0.1:
        faults.append((dice.uniform(20.0, clean_at + 2.0), "first lost"))
    if dice.random() < 0.5:
        # one upon the other
        moment, _ = dice.choice(faults)
        faults.append((moment + dice.choice((0.0, 0.01, 0.1, 0.5)), dice.choice(kinds)))
    return Scenario(
        nodes=nodes,
        spare=dice.choice((0, 1, 4)),
        min_nodes=dice.choice((1, nodes // 2, nodes)),
        nproc=2,
        seed=seed,
        faults=tuple(sorted(faults)),
        clean_at=clean_at,
        max_restarts=dice.choice((0, 1, 3)),
        latency=(0.0005, dice.choice((0.001, 0.02, 0.2))),
        victims=dice.choice((0.0, 0.3, 1.0)),
        node_ranks=dice.random() < 0.5,
    )
