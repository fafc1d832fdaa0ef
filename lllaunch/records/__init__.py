"""Runs and sweeps that are on the disk: found, told apart, and read back.

`lllaunch.records.find` finds their directories, `lllaunch.records.listing` says what became of each
of many, `lllaunch.records.listing` turns what a user calls a run into its directory, and
`lllaunch.records.readback` makes of a result.json the outcome that it was written from. Whatever is
read may be half written, of another version, or somebody else's: nothing here trusts it.
"""
