"""Where the workers stand: the stacks of all ranks, taken before anything is signalled."""
