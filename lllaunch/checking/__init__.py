"""All experiments of a tree of configs, composed and checked at once; nothing is started.

`check` reads and composes each, and holds plans against the reviewed ones; `findings` comes out.
"""
