"""The Hydra side of lllaunch: the app behind ``python -m lllaunch`` and `lllaunch.main`.

Modules: `command` is the app, `main_decorator` the decorator for a user's own; both compose with
`schema_store`, and run their jobs with `job`, whose `Jobs.run_app` puts all at once what stands in
Hydra's place; `boundary` is how an app ends. `search_path` puts ``./conf`` on the app's search
path. `own_worker` carries a composed config into the workers of a user's own app.
"""
