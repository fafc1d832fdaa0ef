"""One experiment from its plan to its result: directories, attempts, events, result and causes.

`lllaunch.run.execute` is the entrance. The other modules are its parts: `judge` decides and knows
no files and no processes; what reads or writes files (`directory`, `events`, `excerpts`) decides
nothing.
"""
