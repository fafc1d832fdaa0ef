"""One experiment from its plan to its result: directories, attempts, events, result and causes.

`lllaunch.run.execute` is the entrance. The other modules are its parts: what is pure (causes,
postmortem, outcome, result) knows no files and no processes; what reads or writes files
(directory, logs, events, excerpts, returns) decides nothing.
"""
