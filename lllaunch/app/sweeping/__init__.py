"""What `hydra_plugins.lllaunch_launcher` does, and what is between Hydra and `lllaunch.sweep`.

`launcher` goes from the overrides of jobs to what Hydra is told of each, `jobs` composes, plans and
runs a job in its process. `sweeper` expands a command line into a grid of jobs, also that of a
resume; `probes` tries some of them before any is started. `submitted` has the jobs of a cluster,
`packed` several of them in one allocation.
"""
