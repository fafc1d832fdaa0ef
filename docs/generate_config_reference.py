"""Writes docs/reference/config.md and the launch fields of sweep-config.md.

All of it follows from the table of `lllaunch.launch_settings`.

Run it as ``python docs/generate_config_reference.py`` after a change there; a test compares.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import yaml

from lllaunch import launch_settings
from lllaunch.config.kinds import PRESETS, WATCHDOG, written_policy
from lllaunch.macros import WORKER_NAMES
from lllaunch.spec import RESTART_CAUSES

PAGE = Path(__file__).parent / "reference" / "config.md"
OF_SWEEPS = PAGE.with_name("sweep-config.md")

HEAD = """\
# The launch node

<!-- Made by docs/generate_config_reference.py from lllaunch/launch_settings.py: change those. -->

The node `launch` describes a run: what to run, how many workers, where output goes, when to retry.
The rest of the config is yours. In the composed config a key that nobody set is null. In a sweep
it then has the value of [`hydra.launcher`](sweep-config.md), else the default below.

lllaunch checks everything before it starts anything. It reports all problems together, with file
and line, and exits with [2](exit-codes.md).

A `launch` mapping merges with the one it overrides, key by key, as in all of Hydra. To replace a
mask, write it as text.

| key | default |
|---|---|
"""

MASKS = """\
## Masks

`redirects` and `tee` name streams of workers:

| written as | means |
|---|---|
| `none`, `out`, `err`, `all` | nothing, standard output, standard error, or both |
| `0`, `1`, `2`, `3` | the same, in torchrun's numbers |
| `"0:all 1-7:out"`, `"0:3,1:0"` | by local rank or range, separated by commas or blanks |
| `{0: all, 1-7: out}` | the same as a mapping |
| `false` | nothing |

Other ranks have nothing. Ranges may not overlap, and a rank without a worker is an error. Quote
text with colons: YAML reads an unquoted `1:3` as the number 63.

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
`90s`, `10m`, `1h30m`, `1.5h`. Colons are refused, because `1:30` is ambiguous.
"""

SIZES = """\
## Sizes

A number of bytes, or a number with a unit. `kB`, `MB`, `GB`, `TB` and `PB` are powers of 1000;
`KiB`, `MiB`, `GiB`, `TiB` and `PiB` are powers of 1024. Examples: `8GiB`, `1.5GB`, `512MiB`.
"""

NODES = """\
## Nodes from the environment

[`nnodes: auto`](#nnodes) reads these variables for settings that the config does not have:

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

If one of Slurm's is not set, lllaunch reads another: `SLURM_NNODES`, then `SLURM_JOB_NUM_NODES`;
`SLURM_JOB_NODELIST`, then `SLURM_NODELIST`; `SLURM_JOBID`; `SLURM_STEPID`; `SLURM_GPUS_PER_NODE`.
In place of `DSTACK_RUN_ID` it reads `DSTACK_RUN_NAME`. `SLURM_STEP_NUM_TASKS`, else
`SLURM_NTASKS`, and `SLURM_LOCALID` show whether a node has more than one launcher.

`PET_RDZV_BACKEND` and `PET_RDZV_CONF` are read, too. The default backend is `c10d`, not torchrun's
`static`: set `rdzv.backend: static` if some nodes run torchrun.

Each node has one launcher. On Slurm use `srun --ntasks-per-node=1`. Without `srun`, a job on
several nodes is an error. So are missing or contradictory variables. Without any of them there is
one node.

See also: [several nodes](../howto/several-nodes.md), [Kubernetes](../howto/kubernetes.md),
[SkyPilot](../howto/skypilot.md), [dstack](../howto/dstack.md).
"""

PRESETS_HEAD = """\
## Watchdog presets

The value of each key of [`watchdog`](#watchdog). No preset limits time or memory. Null is no
limit.

"""

PRESETS_TAIL = """\

- `report` is the default: it reports a run that does nothing, or spins, for half an hour, with all
  stacks.
- `default` ends runs that do nothing for half an hour, and reports those that spin.
- `strict` is for workers that are never idle for long: one idle worker for five minutes is enough.
  It also ends runs that spin.
"""

CAUSES_HEAD = """\
## Causes of a restart

| cause | what happened |
|---|---|
"""

CAUSES = {
    "failure": "a worker failed: an exception, or an exit code other than 0",
    "signal": "a worker died of a signal that the launcher did not send",
    "oom": "a worker was killed for lack of memory, used more than `watchdog.memory`,"
    " or ran out of GPU memory",
    "hang": "a timer expired, the workers stalled, spun or were silent, or signs of life stopped",
    "timeout": "the attempt took longer than `watchdog.timeout`",
    "node": "a node was lost, and fewer are left than the minimum of `nnodes`",
    "preflight": "the [preflight](#preflight) failed, or took too long",
}

CAUSES_TAIL = """\

After `watchdog.run_timeout` nothing is started again.

## Progress of an attempt

An attempt made progress if it reached a higher step than any attempt before, or if the path
`restart.checkpoint` changed while it ran: a file was written, replaced or created, in a directory
at any depth, or a link leads elsewhere. Removal is no progress. With several nodes one that saw it
is enough.

Some attempts do not count as attempts without progress:

- those that a signal to the launcher ended, or other nodes that came or left
- one whose spawner was killed, once
- those that started no worker, for example after a failed preflight
- those whose checkpoint directory has more than 10,000 entries, or takes half a second to read;
  a warning names it
"""

WORKER_HEAD = """\
## Worker's facts

Some values are known only for each worker. `args`, `env`, `env_per_rank` and `log_line_prefix` may
contain them as `${worker:NAME}`, other keys may not. They are inserted as text.

| name | value |
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

lllaunch never writes two kinds of values to a plan, a result, an event or a report:

- values from the environment, by `${oc.env:NAME}` or a reference to one
- literals that look like a secret

They appear as `${oc.env:NAME}`. A literal looks like a secret in two cases:

- It has the form of a token or a login: `sk-…`, `hf_…`, `ghp_…`, `github_pat_…`, `glpat-…`,
  `xoxb-…`, `AKIA…`, `AIza…`, a JWT, a private key in PEM, `scheme://user:password@host`.
- Its key says secret, and it is long and random: at least 16 characters of small letters, capitals
  and digits, or 32 hexadecimal digits.

A key says secret by these words, in any spelling (`api_key`, `apiKey`, `API-KEY`):

- SECRET, PASSWORD, PASSWD, PASSPHRASE, CREDENTIAL, APIKEY, and their plurals
- KEY, TOKEN and their plurals after a word such as API, ACCESS or PRIVATE (`api_keys`)
- names that end in KEY or TOKEN (`hf_token`), except ordinary ones (`sort_key`, `pad_token`)
- in capitals, as variables have, KEY, TOKEN and their plurals anywhere (`OPENAI_KEYS`)

Such a literal is an error, also as a part of a text or as a default (`${oc.env:HF_TOKEN,hf_…}`).
Take it from the environment. If it is no secret, list its key in [`not_secret`](#not_secret). On
the command line it is always refused.

Other literals under PASSWORD, SECRET, `api_key` and the like (`password: hunter2`) are written to
files as they are. lllaunch warns about them once, and `check` shows them with file and line.

`lllaunch` and `lllaunch.main` refuse secrets before Hydra writes anything. A plain `@hydra.main`
app has written `multirun.yaml` before lllaunch is asked.

Output of workers is not changed in their files. Where lllaunch shows or copies it,
`${oc.env:NAME}` replaces the value of a variable if the name marks a secret. It also replaces
values that look like one: 16 characters or more, one word of capitals, small letters and digits,
and no path.

```yaml
launch:
  entrypoint: env
  env:
    HF_TOKEN: ${oc.env:HF_TOKEN,''}
```
"""


def page() -> str:
    """The whole page."""
    defaults = {each.name: each.default for each in launch_settings.SETTINGS}
    rows = "".join(f"| [`{key}`](#{key}) | `{_yaml(value)}` |\n" for key, value in defaults.items())
    docs = launch_settings.field_docs()
    sections = [f"## {key}\n\nDefault: `{_yaml(defaults[key])}`.\n\n{docs[key]}\n" for key in docs]
    facts = "".join(f"| `{name}` | {FACTS[name]} |\n" for name in WORKER_NAMES)
    values = [MASKS, DURATIONS, SIZES, NODES, _presets(), _causes(), WORKER_HEAD + facts]
    return "\n".join([HEAD + rows, *sections, *values, SECRETS])


def page_of_sweeps() -> str:
    """The page of ``hydra.launcher``, whose list of launch fields alone is made here."""
    names = (f"[`{name}`](config.md#{name})" for name in launch_settings.LAUNCH_FIELDS)
    listed = textwrap.fill(", ".join(names) + ".", 100)
    text = OF_SWEEPS.read_text(encoding="utf-8")
    return re.sub(r"(?<=\n\n)\[`nproc`\].*(\n.+)*", listed, text)


def _presets() -> str:
    said = {name: written_policy(policy) for name, policy in PRESETS.items()}
    names = "".join(f" `{name}` |" for name in said)
    rows = [f"| key |{names}", f"|---|{'---|' * len(said)}"]
    for key in WATCHDOG.fields:
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
    OF_SWEEPS.write_text(page_of_sweeps(), encoding="utf-8")
