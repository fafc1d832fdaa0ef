"""What `hydra_plugins.lllaunch_launcher` does, and what is between Hydra and `lllaunch.sweep`.

`launching` is a launcher from its first job to its last, `jobs` what the process of a job does,
`returns` what Hydra is told of it. `sweeper` expands a command line into a `grid` of jobs;
`probes` tries some of them before any is started. `resume` reads a command line that resumes.
"""
