"""What became of runs and sweeps: found on the disk, read, and shown to people, programs and CI.

`lllaunch.results.store` finds their directories and says what became of each of many runs,
`lllaunch.results.sweeps` of sweeps. `lllaunch.results.locate` turns what a user calls a run into
its directory, `lllaunch.results.index` knows of those that are elsewhere.
`lllaunch.results.report` reads the files of one run or sweep into a `Report` and renders it. What
result.json and sweep.json say is read in `lllaunch.run.result` and `lllaunch.sweep.history`, where
they are written. Whatever is read may be half written, of another version, or somebody else's:
nothing here trusts it. Hydra is not imported.
"""
