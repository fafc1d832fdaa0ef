"""The helper process that starts all workers, and the launcher's handle on it.

docs/design has the reasons: spawner-and-fork.md for a helper that imports what ``preload`` lists
and forks, nothing-outlives-the-launcher.md for who ends what, how-a-worker-ends.md for `finish`.
What the code relies on:

**Who waits.** The spawner never waits for the launcher. That waits for the confirmation of a
signal, a second at most, and for the end of a spawner that has died. A function is checked by a
worker that only imports it. What is given up, a check, a worker that SIGKILL does not end, a
cleanup of orphans, is no matter of the next run on the same spawner: answers carry the number of
what they answer, and what nobody waits for is not told.

**Who signals.** The spawner is the parent, so a worker's number is not reused before the spawner
has waited for it. With each start the launcher gets a pidfd, and uses it when the spawner does not
confirm a signal within a second. Everything else in the tree is signalled through a pidfd opened
and then checked against the process's start time (`orphans`).

**What a forked worker looks like.** Default signal dispositions (what was ignored when the launcher
started stays ignored), an empty signal mask, standard input from /dev/null, output appended
straight to its files, the launcher's original limit of open files, ``__main__``, ``sys.argv`` and
``sys.path`` as ``python -u`` would have them (`worker`), and an end that loses nothing (`finish`).
For closures (start method ``fork``) the launcher is forked to be the spawner (`fork_server`).

Modules: `protocol` is what both sides send, `client` the launcher's side, `server` the spawner's
loop, `interpreter` its variables and imports, `forks` the way from fork to worker, `worker` the
Python code in it, `evidence` what that tells of itself, `orphans` what workers leave behind.
"""
