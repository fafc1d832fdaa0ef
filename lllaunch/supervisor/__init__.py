"""Takes one worker group through its attempts: a state machine, and what performs its actions."""
