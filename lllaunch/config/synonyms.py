"""Words for settings of ``launch`` that others would use. Data."""

from __future__ import annotations

# What people who know torchrun would write, and other common guesses.
SYNONYMS = {
    "nproc_per_node": "nproc",
    "num_workers": "nproc",
    "world_size": "nproc",
    "script": "entrypoint",
    "program": "entrypoint",
    "command": "entrypoint",
    "cmd": "entrypoint",
    "module": "entrypoint",
    "function": "entrypoint",
    "arguments": "args",
    "kwargs": "args",
    "environment": "env",
    "workdir": "cwd",
    "working_dir": "cwd",
    "output_dir": "log_dir",
    "shutdown_timeout": "grace_period",
    "signals_to_handle": "signals",
    "log_line_prefix_template": "log_line_prefix",
    "rdzv_id": "run_id",
    "retries": "max_restarts",
    "restarts": "max_restarts",
    **dict.fromkeys(("timeout", "walltime", "wall_time", "max_time"), "watchdog.timeout"),
    **dict.fromkeys(("time_limit", "attempt_timeout", "deadline"), "watchdog.timeout"),
    "run_timeout": "watchdog.run_timeout",
    **dict.fromkeys(("stall", "stall_timeout", "hang", "hang_timeout"), "watchdog.stall"),
    **dict.fromkeys(("idle_timeout", "stall_after"), "watchdog.stall"),
    "stall_scope": "watchdog.stall_scope",
    "warmup": "watchdog.warmup",
    **dict.fromkeys(("heartbeat", "heartbeat_timeout"), "watchdog.heartbeat"),
    **dict.fromkeys(("memory", "memory_limit", "mem_limit", "max_memory"), "watchdog.memory"),
    **dict.fromkeys(("timers", "enable_timers"), "watchdog.timers"),
    **dict.fromkeys(("watch", "guard", "preset"), "watchdog"),
    **dict.fromkeys(("restart_on", "restart_policy", "restart_causes"), "restart.on"),
    **dict.fromkeys(("restart_delay", "backoff", "restart_backoff"), "restart.delay"),
    **dict.fromkeys(("max_delay", "max_backoff", "restart_max_delay"), "restart.max_delay"),
    **dict.fromkeys(("gpus", "gpu", "num_gpus", "ngpus"), "resources.gpus_per_proc"),
    **dict.fromkeys(("gpus_per_proc", "gpus_per_worker"), "resources.gpus_per_proc"),
    **dict.fromkeys(("cpus", "cpu", "num_cpus", "cores"), "resources.cpus_per_proc"),
    **dict.fromkeys(("cpus_per_proc", "cpus_per_worker"), "resources.cpus_per_proc"),
    "cpus_per_task": "resources.cpus_per_proc",
    **dict.fromkeys(("resource", "requirements"), "resources"),
}

_ONE_NODE = "a run has one node; for several use lllaunch.agent"
_PORT = "the launcher chooses a free port of this machine for each attempt"
EXPLAINED = {
    **dict.fromkeys(("nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv"), _ONE_NODE),
    **dict.fromkeys(("rdzv_conf", "num_nodes", "standalone"), _ONE_NODE),
    **dict.fromkeys(("master_port", "port"), _PORT),
    **dict.fromkeys(("master_addr", "local_addr"), "workers of one node meet on this machine"),
}
"""What torchrun has and a run here has not, with what to do instead."""
