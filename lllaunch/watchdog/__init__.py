"""The watchdog: what is expired, stalled or over a limit, and where the workers stand then.

What is known of a worker is one record (`evidence`), which `collector` gathers; `sampling` and
`progress` read what workers do. Decisions are pure: `stall` finds, `blame` says who hangs, and
`collectives` which operation ranks do not agree on. `lllaunch.supervisor.watchdog` drives all.
"""
