"""What became of runs and sweeps: found on the disk, read, and told to people, programs and CI.

`lllaunch.results.find` finds their directories; `lllaunch.results.listing` says what became of each
of many, and turns what a user calls a run into its directory; `lllaunch.results.readback` makes of
a result.json the outcome that it was written from; `lllaunch.results.report` reads the files of one
run or sweep into a `Report` (`lllaunch.results.cases`), of which `junit`, `github` and `text` make
text, each of them pure. Whatever is read may be half written, of another version, or somebody
else's: nothing here trusts it. Hydra is not imported.
"""
