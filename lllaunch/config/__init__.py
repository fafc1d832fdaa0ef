"""From a composed Hydra config to a `lllaunch.spec.LaunchSpec`, or to all that is wrong with it."""
