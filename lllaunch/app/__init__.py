"""The Hydra side of lllaunch: the apps behind ``python -m lllaunch`` and `lllaunch.main`; sweeps.

`app` has both apps and runs their jobs, `planning` decides what a run is, `gate` judges it,
`boundary` is how an app ends. `own_worker` carries a composed config into the workers of a user's
own app. `submitting` sends runs and sweeps to a cluster; `batch` and `packed` run them there.

`sweeper` expands a command line into jobs, also that of a resume; `launcher` goes from their
overrides to what Hydra is told of each; `jobs` composes, plans and runs one in its process, and
tries some before any is started.
"""
