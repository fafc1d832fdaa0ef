"""What became of a run or a sweep, in the forms that CI systems read.

`lllaunch.report.read.load` reads the files of a run or sweep into a `lllaunch.report.cases.Report`;
`junit`, `github`, `text` and `plain` make text of one, each of them pure. Hydra is not imported.
"""
