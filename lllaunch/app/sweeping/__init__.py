"""What `hydra_plugins.lllaunch_launcher` does, and what is between Hydra and `lllaunch.sweep`.

`launcher` goes from the overrides of jobs to what Hydra is told of each, `jobs` is what the process
of a job does. `sweeper` expands a command line into a grid of jobs, also that of a resume; `probes`
tries some of them before any is started.
"""
