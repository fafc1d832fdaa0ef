"""The Hydra side of lllaunch: the apps behind ``python -m lllaunch`` and `lllaunch.main`.

`app` has both apps and runs their jobs, `planning` decides what a run is, `gate` judges it,
`boundary` is how an app ends. `own_worker` carries a composed config into the workers of a user's
own app; `batch` has both sides of a run on a cluster.
"""
