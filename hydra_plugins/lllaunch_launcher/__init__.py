"""lllaunch as Hydra's launcher: ``hydra/launcher=lllaunch``, ``hydra/sweeper=lllaunch``.

Hydra imports the modules of this package at the start of every app, so they import next to nothing
themselves, and make no config; what a sweep needs is in `lllaunch.app.launcher`.
"""
