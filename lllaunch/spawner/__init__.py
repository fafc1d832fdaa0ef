"""The helper process that starts all workers, and the launcher's handle on it.

Why it is as it is
==================

**Why a helper process at all.** Importing torch takes seconds and hundreds of megabytes. A process
that has imported it once can fork workers in milliseconds, and they share its pages. The launcher
cannot be that process: it would have to import torch itself, it runs Hydra and threads, and a
process that forks must not have threads that hold locks. The spawner is exec'd once, has one thread
of ours, imports what ``preload`` lists, and forks.

**Who ends what.** A worker has its own session, so that signals can reach all its process group and
a terminal's Ctrl-C reaches none of it. It has a parent-death signal, so that it dies with the
spawner. Its own children do not inherit that; when they are orphaned they become the spawner's
(it is a child subreaper), and the spawner ends them. When the launcher dies, the spawner sees its
socket close, or its pidfd become readable, kills all that descends from it, and exits. When the
spawner is killed, its orphans become the launcher's, which is a subreaper too and ends those that
carry its mark (`orphans`). When both are killed in the same moment, workers still die, by the
parent-death signal, but what they had started may survive; only a cgroup or a PID namespace around
the launcher prevents that.

**Who waits.** Neither side waits in its loop. A function is checked by a worker that only imports
it; the launcher ends a spawner that has died in steps (`client`). What is given up, a check, a
worker that SIGKILL does not end, a cleanup of orphans, is no matter of the next run on the same
spawner: answers carry the number of what they answer, and what nobody waits for is not told.

**Who signals.** The spawner is the parent, so a worker's number is not reused before the spawner
has waited for it. With each start the launcher gets a pidfd, and uses it when the spawner does not
confirm a signal within a second. Everything else in the tree is signalled through a pidfd opened
and then checked against the process's start time (`orphans`).

**What a forked worker looks like.** Default signal dispositions (what was ignored when the launcher
started stays ignored), an empty signal mask, standard input from /dev/null, output appended
straight to its files, the launcher's original limit of open files, ``__main__``, ``sys.argv`` and
``sys.path`` as ``python -u`` would have them (`worker`), and an end that loses nothing (`finish`).

**Start method ``fork``.** For closures the spawner is not exec'd: the launcher is forked to be one
(`server.fork_server`), and all else is as ever.

**What cannot be forked.** OpenMP thread pools do not survive a fork; they are paused before each
(`preloading`), and if a forked canary cannot compute, workers get fresh interpreters. Variables
that act when an interpreter starts or a library loads are set in the spawner before it does so;
ranks that need other values than the rest get fresh interpreters (`interpreter`).

Modules: `protocol` is what both sides send, `client` the launcher's side, `server` the spawner's
loop, `child` the way from fork to worker, `worker` the Python code in it, `preloading` imports and
OpenMP, `orphans` what workers leave behind.
"""
