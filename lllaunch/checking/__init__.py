"""All experiments of a tree of configs, composed and checked at once; nothing is started.

`tree` reads it as text, so that nothing hostile reaches Hydra. `check` composes each experiment in
a fork, and holds plans against the reviewed ones. `findings` is what comes out.
"""
