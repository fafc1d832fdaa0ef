"""The watchdog: what is expired, stalled or over a limit, and where the workers stand then.

Decisions are pure (`stall`, `findings`, `stacks.blame`); what they need is read by `sampling` and
`stacks`. The agent's loop drives all of it.
"""
