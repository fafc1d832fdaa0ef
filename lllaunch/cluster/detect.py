"""``nnodes: auto``: what the environment says where something has started a process on each node.

Pure: from variables to a `Placement`. These are read, as their makers document them:

- Slurm: what ``srun`` sets for a step (``SLURM_STEP_*``, ``SLURM_NODEID``, ``SLURM_LOCALID``), and
  what a job has (``SLURM_JOB_*``). ``SLURM_LAUNCH_NODE_IPADDR`` is not: it may be a login node's.
- torchrun's options by environment (``PET_*``), which Kubeflow's TrainJob and PyTorchJob set.
- SkyPilot (``SKYPILOT_*``) and dstack (``DSTACK_*``).

Several of them may be there at once, as SkyPilot starts its tasks with ``srun`` on Slurm; then they
must agree. Nothing is looked up, and no host name is compared: node 0 is who has the number 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from lllaunch.cluster.hosts import expand_hosts
from lllaunch.cluster.placement import Placement
from lllaunch.cluster.values import (
    MOST_NODES,
    format_endpoint,
    format_nnodes,
    parse_conf,
    parse_endpoint,
    parse_host,
    parse_nnodes,
    parse_port,
)
from lllaunch.errors import Unfit
from lllaunch.secret_names import is_secret_name
from lllaunch.spec import RDZV_BACKENDS, Detected, RdzvBackend

NPROC_WORDS: Final = ("auto", "cpu", "gpu")

# Steps that are none of srun's have numbers from here on: batch scripts, interactive shells.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
# Below 32768, where Linux begins to give ports away, and above what services have.
_PORTS = range(10_000, 30_000)
# Steps of one job and jobs of neighbouring numbers on one machine shall not meet.
_STEP_STRIDE = 1009
_ONE_TASK = "srun --ntasks-per-node=1 python -m lllaunch ..."
_BY_HAND = "write launch.nnodes, launch.node_rank and launch.rdzv.endpoint instead of auto"
_SET_IT = f"set it, or {_BY_HAND}"

_T = TypeVar("_T")


def detect(environ: Mapping[str, str]) -> Placement:
    """Finds out where this node stands.

    ``environ``: variables of the environment; those that are empty count as not set.

    Raises:
        Unfit: what is set is incomplete, or contradicts itself; it names the variable, its value
            and what was expected.
    """
    found = [
        (name, placement)
        for name, read in _SYSTEMS
        if (placement := read(_Variables(environ))) is not None
    ]
    if not found:
        # of torchrun's options this one says something by itself
        variables = _Variables(environ)
        return _one(variables, _pet_nproc(variables))
    (first, placement), *others = found
    for other, its in others:
        if _place(its) != _place(placement):
            message = f"{first} says {_as_said(placement)}, and {other} {_as_said(its)}"
            raise _unfit(message, f"unset what does not hold, or {_BY_HAND}")
    return placement


def _place(placement: Placement) -> tuple[int, int, int | None]:
    several = placement.max_nodes > 1
    return placement.min_nodes, placement.max_nodes, placement.node_rank if several else None


def _as_said(placement: Placement) -> str:
    number = format_nnodes(placement.min_nodes, placement.max_nodes)
    if placement.max_nodes == 1:
        return "one node"
    rank = "no number" if placement.node_rank is None else f"number {placement.node_rank}"
    return f"{number} nodes, of which this has {rank}"


def _unfit(detail: str, hint: str = "") -> Unfit:
    message = "cannot be told from the environment"
    return Unfit(message=message, detail=detail, hint=hint, code="nodes")


class _Variables:
    """Reads variables, and notes what was taken from where."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.detected: list[Detected] = []

    def get(self, *names: str) -> tuple[str, str]:
        """Return the first of some variables that is set, and its value; empty texts if none is."""
        for name in names:
            value = self._environ.get(name, "").strip()
            if value:
                return name, value
        return "", ""

    def has(self, *names: str) -> bool:
        """Whether one of some variables is set."""
        return bool(self.get(*names)[0])

    def need(self, *names: str, because: str) -> tuple[str, str]:
        """Return the first of some variables that is set, and its value.

        ``because``: why one of them must be set.

        Raises:
            Unfit: none is.
        """
        name, value = self.get(*names)
        if not name:
            raise _unfit(f"{names[0]} is not set, but {because}", _SET_IT)
        return name, value

    def count(self, name: str, value: str, expected: str, numbers: range) -> int:
        """Return a value as a number.

        Raises:
            Unfit: it is none of those that it may be.
        """
        is_number = value.isascii() and value.isdecimal() and len(value) < 19
        if not is_number or int(value) not in numbers:
            raise self.wrong(name, value, expected)
        return int(value)

    def rank(self, names: Sequence[str], nodes: int, because: str) -> int:
        """Return this node's number.

        ``nodes``: how many there are at most. ``because``: why one of them must be set.

        Raises:
            Unfit: it is not set, or is no number of a node.
        """
        name, value = self.need(*names, because=because)
        expected = f"a number from 0 to {nodes - 1}, as there are {nodes} nodes"
        rank = self.count(name, value, expected, range(nodes))
        self.take("node_rank", rank, name)
        return rank

    def host(self, name: str, value: str) -> str:
        """Return a value as a host.

        Raises:
            Unfit: it is none.
        """
        return self.read(name, value, parse_host)

    def read(self, name: str, value: str, parse: Callable[[str], _T], shown: str = "") -> _T:
        """Return what a value means.

        ``parse``: reads it; raises `Unfit`. ``shown``: what may be said of it; empty for all of it.

        Raises:
            Unfit: it means nothing; it names the variable.
        """
        try:
            return parse(value)
        except Unfit as unfit:
            expected = "; ".join(filter(None, (unfit.expected, unfit.detail)))
            raise self.wrong(name, shown or value, expected, unfit.hint) from None

    def wrong(self, name: str, value: str, expected: str, hint: str = "") -> Unfit:
        """Return what is wrong with the value of a variable."""
        shown = value if len(value) <= 100 else f"{value[:97]}..."
        hint = hint or f"mend it, or {_BY_HAND}"
        return _unfit(f"{name}: expected {expected}, got {shown!r}", hint)

    def take(self, setting: str, value: object, name: str) -> None:
        """Note what stands for a setting."""
        self.detected.append(Detected(setting, str(value), name))


def _gpus(variables: _Variables, *names: str) -> int | None:
    """Return the number of GPUs of this node; None where nothing says it plainly.

    Forms such as ``a100:4`` are taken for none: they may be of several kinds.
    """
    for name in names:
        _, value = variables.get(name)
        if value.isascii() and value.isdecimal() and 0 < len(value) < 6 and int(value):
            variables.take("nproc", int(value), name)
            return int(value)
    return None


def _slurm(variables: _Variables) -> Placement | None:
    job_name, job = variables.get("SLURM_JOB_ID", "SLURM_JOBID")
    if not job_name:
        half = variables.get("SLURM_STEP_ID", "SLURM_NODEID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
        if half[0]:
            raise _unfit(f"SLURM_JOB_ID is not set, but {half[0]} is", _SET_IT)
        return None
    job_number = variables.count(job_name, job, "the number of a job", range(2**63))
    step_name, step = variables.get("SLURM_STEP_ID", "SLURM_STEPID")
    numbers = range(2**32)
    step_number = variables.count(step_name, step, "the number of a step", numbers) if step else -1
    if not 0 <= step_number < _FIRST_SPECIAL_STEP:
        return _slurm_without_srun(variables)
    because = f"{step_name} is"
    name, value = variables.need(
        *("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), because=because
    )
    nodes = variables.count(name, value, "a number of nodes", range(1, MOST_NODES + 1))
    variables.take("nnodes", nodes, name)
    _expect_one_task(variables, nodes)
    if nodes == 1:
        return _one(variables, _gpus(variables, *_SLURM_GPUS))
    rank = variables.rank(["SLURM_NODEID"], nodes, f"{name} is {nodes}")
    listed, value = variables.need(
        *("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
        because=f"{name} is {nodes}",
    )
    hosts = variables.read(listed, value, expand_hosts)
    if len(hosts) != nodes:
        raise variables.wrong(listed, value, f"{nodes} hosts, as {name} says")
    host = variables.host(listed, hosts[0])
    # the same on all nodes without asking anybody, and another one for each step
    port = _PORTS[(job_number + _STEP_STRIDE * step_number) % len(_PORTS)]
    variables.take("rdzv.endpoint", format_endpoint(host, port), f"{listed}, {job_name}")
    run = f"{job_number}.{step_number}"
    variables.take("rdzv.id", run, f"{job_name}, {step_name}")
    nproc = _gpus(variables, *_SLURM_GPUS)
    return Placement(nodes, nodes, rank, host, port, nproc, run, detected=tuple(variables.detected))


# In a step the second may be what the whole job asked for.
_SLURM_GPUS = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")


def _slurm_without_srun(variables: _Variables) -> Placement:
    """Return the one node of a batch script, or of a shell of ``salloc``.

    Raises:
        Unfit: the job has several, and this is the only process.
    """
    # srun sets the one anew for the shell that salloc opens on a node, the job's is in the other
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        _, value = variables.get(name)
        if not value:
            continue
        nodes = variables.count(name, value, "a number of nodes", range(1, MOST_NODES + 1))
        if nodes > 1:
            detail = f"{name} is {nodes}, but this process is alone: srun did not start it"
            raise _unfit(detail, f"start one on each node: {_ONE_TASK}")
        if not variables.detected:
            variables.take("nnodes", nodes, name)
    return _one(variables, _gpus(variables, *_SLURM_GPUS))


def _expect_one_task(variables: _Variables, nodes: int) -> None:
    """Raise if there are more processes than nodes: each would start all workers of its node."""
    name, value = variables.get("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if name:
        tasks = variables.count(name, value, "a number of tasks", range(1, 2**32))
        if tasks > nodes:
            text = "1 task, as there is one node" if nodes == 1 else f"{nodes} tasks, one per node"
            raise variables.wrong(name, value, text, f"write {_ONE_TASK}")
    name, value = variables.get("SLURM_LOCALID")
    if name and value != "0":
        raise variables.wrong(name, value, "0, as one task per node", f"write {_ONE_TASK}")


def _one(variables: _Variables, nproc: int | str | None) -> Placement:
    return Placement(nproc=nproc, detected=tuple(variables.detected))


_PET_OF_SEVERAL = (
    *("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    *("PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_RDZV_ID", "PET_RDZV_CONF"),
)


def _pet(variables: _Variables) -> Placement | None:
    name, value = variables.get("PET_NNODES")
    if not name:
        half, _ = variables.get(*_PET_OF_SEVERAL)
        if half:
            raise _unfit(f"PET_NNODES is not set, but {half} is", _SET_IT)
        return None
    least, most = variables.read(name, value, parse_nnodes)
    variables.take("nnodes", format_nnodes(least, most), name)
    if most == 1:
        return _one(variables, _pet_nproc(variables))
    backend = _pet_backend(variables)
    rank = _pet_rank(variables, most)
    host, port = _pet_endpoint(variables)
    run = _taken(variables, "rdzv.id", "PET_RDZV_ID")
    conf = _pet_conf(variables)
    nproc = _pet_nproc(variables)
    return Placement(
        *(least, most, rank, host, port, nproc, run),
        backend=backend,
        conf=conf,
        detected=tuple(variables.detected),
    )


def _pet_conf(variables: _Variables) -> Mapping[str, str | int | float | bool]:
    name, text = variables.get("PET_RDZV_CONF")
    if not name:
        return {}
    # the key of a certificate may be among them
    shown = ",".join(_without_secret(pair) for pair in text.split(","))
    variables.take("rdzv.conf", shown, name)
    return variables.read(name, text, parse_conf, shown)


def _without_secret(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}{equals}..." if is_secret_name(name.strip()) else pair


def _taken(variables: _Variables, setting: str, name: str) -> str:
    _, value = variables.get(name)
    if value:
        variables.take(setting, value, name)
    return value


def _pet_backend(variables: _Variables) -> RdzvBackend | None:
    name, value = variables.get("PET_RDZV_BACKEND")
    if not name:
        # torchrun would take static. Nodes that all run lllaunch need not: c10d does the same, and
        # knows when one is lost.
        return None
    for backend in RDZV_BACKENDS:
        if value.lower() == backend:
            variables.take("rdzv.backend", backend, name)
            return backend
    raise variables.wrong(name, value, ", ".join(RDZV_BACKENDS))


def _pet_rank(variables: _Variables, nodes: int) -> int | None:
    if variables.has("PET_RDZV_ENDPOINT") and not variables.has("PET_NODE_RANK"):
        # as a PyTorchJob with an elastic policy has it; static cannot do without
        return None
    counted = variables.get("PET_NNODES")[1]
    return variables.rank(["PET_NODE_RANK"], nodes, f"PET_NNODES is {counted}")


def _pet_endpoint(variables: _Variables) -> tuple[str, int | None]:
    name, value = variables.get("PET_RDZV_ENDPOINT")
    if name:
        host, port = variables.read(name, value, parse_endpoint)
    else:
        nodes = variables.get("PET_NNODES")[1]
        name, value = variables.need("PET_MASTER_ADDR", because=f"PET_NNODES is {nodes}")
        host = variables.host(name, value)
        with_port, text = variables.get("PET_MASTER_PORT")
        port = variables.read(with_port, text, parse_port) if with_port else None
        name = f"{name}, {with_port}" if with_port else name
    variables.take("rdzv.endpoint", format_endpoint(host, port), name)
    return host, port


def _pet_nproc(variables: _Variables) -> int | str | None:
    name, value = variables.get("PET_NPROC_PER_NODE")
    if not name:
        return None
    word = value.lower()
    if word in NPROC_WORDS:
        variables.take("nproc", word, name)
        return word
    expected = "a number of workers (1, 2, ... or auto, cpu, gpu)"
    number = variables.count(name, value, expected, range(1, 10**6))
    variables.take("nproc", number, name)
    return number


def _skypilot(variables: _Variables) -> Placement | None:
    of_several = ("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK")
    if not variables.has(*of_several):
        return None
    listed, text = variables.get("SKYPILOT_NODE_IPS")
    hosts = text.split()
    name, value = variables.get("SKYPILOT_NUM_NODES")
    if name:
        nodes = variables.count(name, value, "a number of nodes", range(1, MOST_NODES + 1))
    elif hosts:
        # older ones set no number
        name, nodes = listed, len(hosts)
    else:
        raise _unfit("SKYPILOT_NUM_NODES is not set, but SKYPILOT_NODE_RANK is", _SET_IT)
    variables.take("nnodes", nodes, name)
    gpus = "SKYPILOT_NUM_GPUS_PER_NODE"
    if nodes == 1:
        return _one(variables, _gpus(variables, gpus))
    rank = variables.rank(["SKYPILOT_NODE_RANK"], nodes, f"there are {nodes} nodes")
    listed, text = variables.need("SKYPILOT_NODE_IPS", because=f"{name} is {nodes}")
    if len(hosts) != nodes:
        shown = ", ".join(hosts)
        raise variables.wrong(listed, shown, f"{nodes} addresses, as {name} says")
    host = variables.host(listed, hosts[0])
    variables.take("rdzv.endpoint", format_endpoint(host, None), listed)
    run = _taken(variables, "rdzv.id", "SKYPILOT_TASK_ID")
    nproc = _gpus(variables, gpus)
    return Placement(nodes, nodes, rank, host, None, nproc, run, detected=tuple(variables.detected))


def _dstack(variables: _Variables) -> Placement | None:
    name, value = variables.get("DSTACK_NODES_NUM")
    if not name:
        half, _ = variables.get("DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP")
        if half:
            raise _unfit(f"DSTACK_NODES_NUM is not set, but {half} is", _SET_IT)
        return None
    nodes = variables.count(name, value, "a number of nodes", range(1, MOST_NODES + 1))
    variables.take("nnodes", nodes, name)
    gpus = "DSTACK_GPUS_PER_NODE"
    if nodes == 1:
        return _one(variables, _gpus(variables, gpus))
    rank = variables.rank(["DSTACK_NODE_RANK"], nodes, f"{name} is {nodes}")
    master, value = variables.need("DSTACK_MASTER_NODE_IP", because=f"{name} is {nodes}")
    host = variables.host(master, value)
    variables.take("rdzv.endpoint", format_endpoint(host, None), master)
    run_name, run = variables.get("DSTACK_RUN_ID", "DSTACK_RUN_NAME")
    if run:
        variables.take("rdzv.id", run, run_name)
    nproc = _gpus(variables, gpus)
    return Placement(nodes, nodes, rank, host, None, nproc, run, detected=tuple(variables.detected))


# What starts tasks within others comes first: it says most about this one.
_SYSTEMS: tuple[tuple[str, Callable[[_Variables], Placement | None]], ...] = (
    ("torchrun's environment (PET_*)", _pet),
    ("SkyPilot", _skypilot),
    ("dstack", _dstack),
    ("Slurm", _slurm),
)
