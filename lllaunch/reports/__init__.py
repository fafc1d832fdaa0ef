"""What became of a run or a sweep, in the forms that CI systems read.

`lllaunch.reports.read.load` reads the files of a run or sweep into a `Report`
(`lllaunch.reports.cases`); `junit`, `github` and `text` make text of one, each of them pure. Hydra
is not imported.
"""
