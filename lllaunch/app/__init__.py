"""The Hydra side of lllaunch: the app behind ``python -m lllaunch`` and `lllaunch.main`.

Modules: `command` is the app, `main_decorator` the decorator for a user's own; both compose with
`schema_store`, run a job with `job` and end with `ending`. `search_path` puts ``./conf`` on the
app's search path. `config_state`, `hydra_worker` and `user_script` carry a composed config into the
workers of a user's own app.
"""
