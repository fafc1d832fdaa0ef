"""Several nodes: what the environment says of them, how they meet, what they tell each other."""
