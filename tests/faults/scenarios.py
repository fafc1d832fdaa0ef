"""What is run and which faults happen to it, as a function of a seed and a number.

Nothing is started here. The same seed and number give the same scenario everywhere; the moments at
which its faults happen depend on the machine, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

KIN = ("child", "daemon", "bare")
"""A plain child of a worker, a daemon in a session of its own, one without an environment."""

DAMAGES = (
    *("torn", "cut", "flipped", "zeros", "garbage"),
    *("huge", "doubled", "dropped", "retyped", "emptied"),
)
"""What is done to a journal."""

_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP")


@dataclass(frozen=True)
class Act:
    """What one worker does.

    Attributes:
        lines: how many it writes to its standard output.
        errors: how many to its standard error.
        width: bytes of a short line.
        torn: whether lines are written in pieces.
        newline: whether the last line ends with one.
        pause: seconds between two writes.
        kin: what it leaves behind, of `KIN`.
        deaf: whether those ignore polite signals.
        polite: what it does when it is asked to end: ``die``, ``exit`` (7), ``success`` (0),
            ``slow`` (exit after a moment) or ``ignore``.
        ballast: MiB of memory, which take their time to be given back.
        after: seconds from the last line to its end.
        end: an exit status, ``raise``, the name of a signal, or ``wait`` (for a very long time).
    """

    lines: int = 3
    errors: int = 1
    width: int = 10
    torn: bool = False
    newline: bool = True
    pause: float = 0.0
    kin: tuple[str, ...] = ()
    deaf: bool = False
    polite: str = "die"
    ballast: int = 0
    after: float = 0.1
    end: str = "0"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        what: ``signal``, ``fill``, ``remove``, ``rename``, ``close``, ``block``, ``files``,
            ``processes``, ``second`` or ``damage``.
        at: what it follows: ``start`` of the launcher, ``worker`` (the first has begun), ``kin``,
            ``end`` (the first worker's), ``started`` or ``ended`` (a job's), ``result``, ``fault``
            (the one before).
        delay: seconds from there.
        target: ``launcher``, ``spawner``, ``worker``, ``job`` (its launcher), or one of `KIN`.
        name: the signal's, or the damage's.
        hold: seconds until it is taken back; None: never.
        again: seconds until the same happens once more; None: never.
        amount: how much is left: descriptors, processes; or where in a file, as a fraction.
    """

    what: str
    at: str
    delay: float
    target: str = ""
    name: str = ""
    hold: float | None = None
    again: float | None = None
    amount: float = 0.0

    @property
    def kind(self) -> str:
        """The row of the table that it counts in."""
        if self.what == "signal":
            return f"{self.name} {'twice ' * (self.again is not None)}{self.target}"
        return {
            "fill": "disk full",
            "remove": "journal removed" if self.target == "journal" else "directory removed",
            "rename": "directory renamed",
            "close": "console closed",
            "block": "console blocked",
            "files": "no descriptors",
            "processes": "no processes",
            "second": "second launcher",
            "damage": f"journal {self.name}",
        }[self.what]


@dataclass(frozen=True)
class Scenario:
    """One run or sweep, and what happens to it.

    Attributes:
        family: ``run``, ``place``, ``pair``, ``sweep`` or ``journal``.
        cgroups: whether lllaunch sees the machine's.
        form: of the entrypoint: ``script``, ``function``, ``module`` or ``program``.
        launch: keys of the ``launch`` node.
        acts: by job (``*``: any other), then attempt, then rank.
        jobs: numbers of a sweep's jobs; empty for a run.
        merged: whether both streams of the launcher go to one pipe.
        native: when the launcher has a child from before it was executed, which makes a daemon
            after so many seconds; None: it has none.
        faults: in the order in which they happen.
    """

    seed: str
    number: int
    family: str
    cgroups: bool = True
    form: str = "script"
    launch: Mapping[str, object] = field(default_factory=dict)
    acts: Mapping[str, Sequence[Sequence[Act]]] = field(default_factory=dict)
    jobs: tuple[int, ...] = ()
    merged: bool = False
    native: float | None = None
    faults: tuple[Fault, ...] = ()


def scenario(seed: str, number: int) -> Scenario:
    """Return the scenario of a number from 0; the seed is any text."""
    rng = Random(f"{seed}/{number}")
    (draw,) = rng.choices([_run, _place, _pair, _sweep, _journal], [50, 18, 6, 18, 8])
    base = Scenario(seed, number, draw.__name__[1:], cgroups=rng.random() < 0.4)
    return draw(rng, base)


def _launch(rng: Random, nproc: int) -> dict[str, object]:
    launch: dict[str, object] = {
        "nproc": nproc,
        "redirects": "all",
        "tee": rng.choice(["none", "0:all", "all", "out"]),
        "start_method": rng.choice(["forkserver", "forkserver", "forkserver", "spawn"]),
        "grace_period": rng.choice(["0s", "0.3s", "0.6s"]),
    }
    if rng.random() < 0.3:
        launch["preload"] = rng.choice([["json", "decimal"], ["email.message"], ["logging"]])
    if rng.random() < 0.4:
        launch["max_restarts"] = 1
        launch["restart"] = {"delay": rng.choice(["0s", "0s", "0.3s"])}
    return launch


def _act(rng: Random, ends: Sequence[str], kin: float = 0.5) -> Act:
    many = rng.random() < 0.25
    return Act(
        lines=rng.randrange(200, 1500) if many else rng.randrange(6),
        errors=rng.randrange(3),
        width=rng.choice([1, 10, 100, 100, 30_000]) if not many else rng.choice([10, 60]),
        torn=rng.random() < 0.4,
        newline=rng.random() < 0.7,
        pause=rng.choice([0.0, 0.0005]) if many else rng.choice([0.0, 0.0, 0.02]),
        kin=tuple(one for one in KIN if rng.random() < kin),
        deaf=rng.random() < 0.4,
        polite=rng.choice(["die", "die", "exit", "success", "slow", "ignore"]),
        after=rng.choice([0.0, rng.uniform(0, 0.3), rng.uniform(0, 1.0)]),
        end=rng.choice(ends),
    )


def _acts(rng: Random, nproc: int, faults: Sequence[Fault]) -> tuple[tuple[Act, ...], ...]:
    """For two attempts, each either well or not; whatever the faults hit is there."""
    wanted = {fault.target for fault in faults} & set(KIN)
    wanted |= {"child"} if any(fault.at == "kin" for fault in faults) else set()
    well, ill, long = ("0",), ("0", "0", "3", "raise", "SIGSEGV", "SIGKILL"), ("wait",)
    attempts = []
    for _ in range(2):
        ends = rng.choices([well, ill, long], [4, 3, 3])[0]
        acts = [_act(rng, ends) for _ in range(nproc)]
        acts[0] = replace(acts[0], kin=tuple(sorted(wanted | set(acts[0].kin))))
        attempts.append(tuple(acts))
    return tuple(attempts)


def _delay(rng: Random) -> float:
    """Often at once, sometimes late."""
    return rng.choice([rng.uniform(0, 0.03), rng.uniform(0, 0.4), rng.uniform(0, 1.2)])


def _signal(rng: Random, targets: Sequence[str], anchors: Sequence[str]) -> Fault:
    name = rng.choice(_SIGNALS)
    target = rng.choice(targets)
    again = None
    if name in {"SIGTERM", "SIGINT"} and target == "launcher" and rng.random() < 0.5:
        again = _delay(rng) / 2
    at = rng.choice(anchors)
    # what stands still is set going again: the launcher always, others are ended with their run,
    # which must have begun
    always = target in {"launcher", "job"} or at in {"start", "fault"}
    hold = rng.uniform(0.05, 0.8) if always or rng.random() < 0.5 else None
    hold = hold if name == "SIGSTOP" else None
    return Fault("signal", at, _delay(rng), target, name, hold=hold, again=again)


ENDING = Fault("signal", "worker", 2.2, "launcher", "SIGTERM")
"""The last fault of a run: by then most have ended by themselves."""

_TARGETS = ("launcher", "launcher", "spawner", "spawner", "worker", *KIN)


def _run(rng: Random, base: Scenario) -> Scenario:
    nproc = rng.choice([1, 1, 2, 3])
    anchors = ["start", "worker", "worker", "kin", "end", "end"]
    faults = [_signal(rng, _TARGETS, anchors)]
    while len(faults) < 3 and rng.random() < 0.4:
        faults.append(_signal(rng, _TARGETS, ["fault", "fault", "worker", "end", "result"]))
    return replace(
        base,
        form=rng.choice(["script", "script", "function", "module", "program"]),
        launch=_launch(rng, nproc),
        acts={"*": _acts(rng, nproc, faults)},
        merged=rng.random() < 0.5,
        native=rng.choice([None, None, rng.uniform(0, 1.5)]),
        faults=(*faults, ENDING),
    )


def _place(rng: Random, base: Scenario) -> Scenario:
    """What goes wrong is around the run: its disk, its console, its limits."""
    base = _run(rng, base)
    what = rng.choice(["fill", "remove", "rename", "close", "block", "block", "files", "processes"])
    limit = what in {"files", "processes"}
    at = "start" if limit else rng.choice(["start", "worker", "end"])
    amounts = {
        "files": rng.randrange(12, 40),
        "processes": rng.randrange(1, 6),
        "fill": rng.choice([0, 0, 5_000]),
    }
    hold = rng.uniform(0.1, 1.0) if what in {"fill", "block"} and rng.random() < 0.8 else None
    delay = 0.0 if limit else _delay(rng)
    fault = Fault(what, at, delay, hold=hold, amount=amounts.get(what, 0))
    launch = dict(base.launch)
    if what in {"close", "block"}:
        launch["tee"] = "all"
    more = base.faults[:1] if rng.random() < 0.15 else ()
    return replace(base, launch=launch, native=None, faults=(fault, *more, ENDING))


def _pair(rng: Random, base: Scenario) -> Scenario:
    """Two launchers in one directory, or both in the default one."""
    nproc = rng.choice([1, 2])
    default = rng.random() < 0.4
    acts = tuple(tuple(_act(rng, ["0", "0", "3"], 0.2) for _ in range(nproc)) for _ in range(2))
    second = Fault("second", "start", _delay(rng), "default" if default else "same")
    more = (_signal(rng, ["launcher", "spawner"], ["worker", "fault"]),) * (rng.random() < 0.3)
    return replace(
        base,
        launch=_launch(rng, nproc) | {"max_restarts": 0},
        acts={"*": acts},
        faults=(second, *more, ENDING),
    )


def _sweep(rng: Random, base: Scenario) -> Scenario:
    """A sweep, killed or hit, then resumed until all is done."""
    jobs = tuple(range(rng.randrange(3, 6)))
    acts = {}
    for job in jobs:
        act = _act(rng, ["0", "0", "0", "0", "3"], 0.25)
        heavy = rng.choice([0, 0, 150])
        act = replace(act, ballast=heavy, lines=min(act.lines, 20), after=act.after / 2)
        acts[str(job)] = ((act,),)
    anchors = ["start", "started", "started", "worker", "ended", "ended"]
    targets = ["launcher", "launcher", "launcher", "job", "spawner", "worker"]
    faults = [_signal(rng, targets, anchors)]
    if rng.random() < 0.3:
        faults.append(_signal(rng, targets, ["fault", "ended"]))
    # no last fault ends a sweep, and what stands still for ever is waited for as long
    for number, one in enumerate(faults):
        if one.name == "SIGSTOP" and one.hold is None:
            faults[number] = replace(one, hold=0.8)
    if rng.random() < 0.15:
        faults[0] = Fault("remove", rng.choice(["started", "ended"]), _delay(rng), "journal")
    if rng.random() < 0.3:
        where = rng.choice(["gpus", "same"])
        faults.insert(0, Fault("second", "start", rng.uniform(0, 0.5), where))
    launch = {"nproc": 1, "tee": rng.choice(["none", "all"]), "grace_period": "0.5s"}
    return replace(
        base,
        form=rng.choice(["script", "function"]),
        launch=launch | {"resources": {"gpus_per_proc": 1}},
        acts=acts,
        jobs=jobs,
        merged=rng.random() < 0.5,
        native=rng.choice([None, None, rng.uniform(0, 2.0)]),
        faults=tuple(faults),
    )


def _journal(rng: Random, base: Scenario) -> Scenario:
    """A sweep that is over or was killed, whose journal is damaged, and then resumed."""
    act = Act(after=rng.uniform(0, 0.1), lines=1)
    faults = [Fault("damage", "start", 0.0, name=rng.choice(DAMAGES), amount=rng.random())]
    if rng.random() < 0.6:
        faults.insert(0, Fault("signal", "ended", _delay(rng) / 4, "launcher", "SIGKILL"))
    return replace(
        base,
        launch={"nproc": 1, "tee": "none", "resources": {"gpus_per_proc": 1}},
        acts={"*": ((act,),)},
        jobs=(0, 1, 2),
        faults=tuple(faults),
    )
