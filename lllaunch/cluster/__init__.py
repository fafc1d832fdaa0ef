"""Several nodes: what the environment says of them, and how they find each other."""
