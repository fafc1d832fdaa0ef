"""Writes docs/reference/config.md from the docstrings of `lllaunch.config.schema`.

Run it as ``python docs/generate_config_reference.py`` after a change there; a test compares.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from lllaunch.config import schema
from lllaunch.config.schema import PRESETS
from lllaunch.config.watchdog import WATCHDOG_KEYS, written_policy
from lllaunch.macros import WORKER_NAMES
from lllaunch.spec import RESTART_CAUSES

PAGE = Path(__file__).parent / "reference" / "config.md"

HEAD = """\
# The `launch` node

<!-- Made by docs/generate_config_reference.py from lllaunch/config/schema.py: change those. -->

One node of the config, `launch`, says what a run is. The rest of the config is the experiment's
own. Whatever the primary config is, keys that nobody sets have the defaults below. In the composed
config they are null, and a key that is null is one that nobody has set; with `-m` it then has what
[`hydra.launcher`](sweep-config.md) says.

Everything is checked before anything starts. What is wrong is told all at once, each line with the
file and the line where it stands, unless the command line said it, the key, the value, what was
expected and, where it can be told, what was meant; the exit code is then 2
([exit codes](exit-codes.md)).

A `launch` node that is a mapping merges with the one it overrides, key by key, as all mappings in
Hydra do. To replace a mask instead of adding to it, write it as text.

| key | default |
|---|---|
"""

MASKS = """\
## Masks

`redirects` and `tee` say which streams of which workers are meant:

| written as | means |
|---|---|
| `none`, `out`, `err`, `all` | nothing, standard output, standard error, or both |
| `0`, `1`, `2`, `3` | the same, in torchrun's numbers |
| `"0:all 1-7:out"`, `"0:3,1:0"` | by local rank or range, separated by commas or blanks |
| `{0: all, 1-7: out}` | the same as a mapping |
| `false` | nothing |

Ranks that are not named have nothing. Ranges may not overlap, and a rank that no worker has is an
error. YAML reads an unquoted `1:3` as the number 63, so text with colons is best quoted.

```yaml
launch:
  entrypoint: env
  nproc: 8
  redirects: all
  tee: "0:all 1-7:err"
```
"""

DURATIONS = """\
## Durations

A number of seconds, or parts with the units `d`, `h`, `m`, `s` and `ms`, the largest first: `90`,
`90s`, `10m`, `1h30m`, `1.5h`. Colons are refused, since `1:30` could be two things.
"""

SIZES = """\
## Sizes

A number of bytes, or a number with a unit: `kB`, `MB`, `GB`, `TB` and `PB` are powers of 1000,
`KiB`, `MiB`, `GiB`, `TiB` and `PiB` powers of 1024. `8GiB`, `1.5GB`, `512MiB`.
"""

NODES = """\
## Nodes from the environment

What [`nnodes: auto`](#nnodes) reads, where the config does not say it:

| | Slurm, with `srun` | torchrun's environment, as a TrainJob has it | SkyPilot | dstack |
|---|---|---|---|---|
| `nnodes` | `SLURM_STEP_NUM_NODES` | `PET_NNODES` | `SKYPILOT_NUM_NODES` | `DSTACK_NODES_NUM` |
| `node_rank` | `SLURM_NODEID` | `PET_NODE_RANK` | `SKYPILOT_NODE_RANK` | `DSTACK_NODE_RANK` |
| `rdzv.endpoint` | the first of `SLURM_STEP_NODELIST`, \
with a port made from the numbers of job and step | \
`PET_MASTER_ADDR` and `PET_MASTER_PORT`, or `PET_RDZV_ENDPOINT` | \
the first of `SKYPILOT_NODE_IPS` | `DSTACK_MASTER_NODE_IP` |
| `rdzv.id` | `SLURM_JOB_ID` and `SLURM_STEP_ID` | `PET_RDZV_ID` | `SKYPILOT_TASK_ID` | \
`DSTACK_RUN_ID` |
| `nproc` | `SLURM_GPUS_ON_NODE` | `PET_NPROC_PER_NODE` | `SKYPILOT_NUM_GPUS_PER_NODE` | \
`DSTACK_GPUS_PER_NODE` |

Where one of Slurm's is not set, another says the same: `SLURM_NNODES`, then
`SLURM_JOB_NUM_NODES`; `SLURM_JOB_NODELIST`, then `SLURM_NODELIST`; `SLURM_JOBID`;
`SLURM_STEPID`; `SLURM_GPUS_PER_NODE`. So does `DSTACK_RUN_NAME` for `DSTACK_RUN_ID`. By
`SLURM_STEP_NUM_TASKS`, else `SLURM_NTASKS`, and by `SLURM_LOCALID` it is seen whether a node has
more than one launcher.

Of torchrun's environment `PET_RDZV_BACKEND` and `PET_RDZV_CONF` are read, too. Without the former
the backend is `c10d`, as everywhere here, and not torchrun's `static`: say `rdzv.backend: static`
where some of the nodes run torchrun.

Each node has one launcher: on Slurm that is `srun --ntasks-per-node=1`. Without `srun`, in a batch
script or the shell of `salloc`, a job on several nodes is an error; so are variables that are
missing or contradict each other. Where none of them is set there is one node.

How to run on [several nodes](../howto/several-nodes.md), on
[Kubernetes](../howto/kubernetes.md), with [SkyPilot](../howto/skypilot.md) and
[dstack](../howto/dstack.md).
"""

PRESETS_HEAD = """\
## Watchdog presets

What they say for each key of [`watchdog`](#watchdog). None of them limits time or memory, which
only you can know; null is no limit.

"""

PRESETS_TAIL = """
`report` holds where nothing is said: when a run does nothing for half an hour, or is busy and gets
nowhere, that is said, with the stacks of all workers, and the run goes on. `default` ends runs that
do nothing for half an hour, and reports those that spin. `strict` is for runs whose workers are
never idle for long: five minutes, and one idle worker is enough; it ends runs that spin as well.
"""

CAUSES_HEAD = """\
## Causes of a restart

| cause | what happened |
|---|---|
"""

CAUSES = {
    "failure": "a worker failed: an exception, or an exit code that is not 0",
    "signal": "a worker died of a signal that the launcher did not send",
    "oom": "a worker was killed for lack of memory, used more than `watchdog.memory`,"
    " or found none on a GPU",
    "hang": "a timer ran out, the workers stalled, spun or were silent, or heartbeats stopped",
    "timeout": "the attempt took longer than `watchdog.timeout`",
    "node": "a node was lost, and fewer are left than the least that `nnodes` says",
    "preflight": "the [preflight](#preflight) failed, or took longer than it may",
}

CAUSES_TAIL = """
When `watchdog.run_timeout` is over nothing is started again, whatever `on` says.

## Progress of an attempt

An attempt made progress if it showed a higher step than any attempt before it, or if the path
`restart.checkpoint` changed while it ran: a file that is new, or was written or replaced; in a
directory any file below it. A link, such as `latest`, counts by where it leads. What is removed is
no progress. Of several nodes it is enough if one saw it.

An attempt that ended for a signal to the launcher, because other nodes came or left, or once
because the process that forks the workers was killed, does not count as one without progress.
Neither does one in which no worker was started, such as one whose preflight failed, nor one after
which a directory holds more than can be looked at: 10,000 files and directories, in half a second.
Then a warning says so.
"""

WORKER_HEAD = """\
## Worker's facts

Some things are known only for each worker. `args`, `env`, `env_per_rank` and `log_line_prefix` may
name them as `${worker:NAME}`; other keys may not. They are always put in as text.

| name | is |
|---|---|
"""

FACTS = {
    "role_name": "`launch.role`",
    "rank": "rank among all workers",
    "local_rank": "rank among the workers of the node",
    "world_size": "number of workers",
    "local_world_size": "number of workers of the node",
    "group_rank": "rank of the node's group of workers",
    "group_world_size": "number of such groups",
    "role_rank": "rank among the workers with the same role",
    "role_world_size": "number of workers with the same role",
    "hostname": "name of the host",
    "restart_count": "how often the group has been started again",
    "attempt": "number of the attempt, as in the directory `attempt_N`",
    "run_id": "`launch.run_id`",
    "master_addr": "address of rank 0, as `MASTER_ADDR`",
    "master_port": "port of rank 0, as `MASTER_PORT`",
}

SECRETS = """\
## Secrets

Two kinds of values are never written to a plan, a result, an event or a report:

- what comes from the environment, by `${oc.env:NAME}` or by a reference that leads to one, and
- what stands under a key whose name says that it is a secret.

`${oc.env:NAME}` stands for them instead. A name says so by one of these words, in any spelling:
`api_key`, `apiKey`, `API-KEY`.

- SECRET, PASSWORD, PASSWD, PASSPHRASE, CREDENTIAL, APIKEY, and their plurals.
- KEY and TOKEN, but not beside a word that makes something ordinary of them, as in `sort_key`,
  `primary_key`, `public_key`, `pad_token`, `num_key_value_heads`.
- KEYS and TOKENS after a word such as API or ACCESS (`api_keys`), and in names in capitals
  (`OPENAI_KEYS`); not `cnn_keys`, `max_tokens`.

Values of the second kind must come from the environment: as plain text, anywhere in the config or
on the command line, they are an error, also joined with an interpolation (`sk-live-${name}`) or as
the default of a variable (`${oc.env:HF_TOKEN,abc}`). Numbers under KEY or TOKEN (`key: 512`), a
word in small letters under KEY (`obs_key: image`), and special tokens (`pad_token: <pad>`) are
no secrets. `python -m lllaunch` and `lllaunch.main` refuse the others before Hydra prints or writes
anything. In a plain `@hydra.main` app Hydra has written `multirun.yaml` when lllaunch's launcher is
asked, and literals outside of `launch` and `hydra.launcher` are only left out of what lllaunch
writes.

What workers write themselves is not changed, except for what lllaunch shows or keeps of it: there
`${oc.env:NAME}` replaces the value of a variable if the name of the variable or of the key says
secret, or if the value can hardly be anything else: 16 characters or more, one word of capitals,
small letters and digits, and no path. Names of users, hosts and directories stay as they are.

```yaml
launch:
  entrypoint: env
  env:
    HF_TOKEN: ${oc.env:HF_TOKEN,''}
```
"""


def page() -> str:
    """The whole page."""
    defaults = schema.defaults()
    rows = "".join(f"| [`{key}`](#{key}) | `{_yaml(value)}` |\n" for key, value in defaults.items())
    docs = schema.field_docs()
    sections = [f"## {key}\n\nDefault: `{_yaml(defaults[key])}`.\n\n{docs[key]}\n" for key in docs]
    facts = "".join(f"| `{name}` | {FACTS[name]} |\n" for name in WORKER_NAMES)
    values = [MASKS, DURATIONS, SIZES, NODES, _presets(), _causes(), WORKER_HEAD + facts]
    return "\n".join([HEAD + rows, *sections, *values, SECRETS])


def _presets() -> str:
    said = {name: written_policy(policy) for name, policy in PRESETS.items()}
    names = "".join(f" `{name}` |" for name in said)
    rows = [f"| key |{names}", f"|---|{'---|' * len(said)}"]
    for key in WATCHDOG_KEYS:
        rows.append(f"| `{key}` |" + "".join(f" {_yaml(each[key])} |" for each in said.values()))
    return PRESETS_HEAD + "\n".join(rows) + "\n" + PRESETS_TAIL


def _causes() -> str:
    rows = "".join(f"| `{cause}` | {CAUSES[cause]} |\n" for cause in RESTART_CAUSES)
    return CAUSES_HEAD + rows + CAUSES_TAIL


def _yaml(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).strip()
    return text.removesuffix("...").strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
