"""All experiments of a tree of configs, composed and checked at once; nothing is started.

`tree` reads it as text, so that nothing hostile reaches Hydra, and tells what in it is an
experiment. Each is composed in `examine`, and `locks` holds the plans against the reviewed ones;
`lint` tells what has no effect. What is found are `CheckedDiagnostic`s (`findings`), which `render`
writes. What decides is apart from what reads: only `tree`, `examine`, `locks` and `check` touch
anything.
"""
