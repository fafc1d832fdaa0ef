"""All experiments of a tree of configs, composed and checked at once; nothing is started.

`files` and `yaml_facts` read the tree as text, so that nothing hostile reaches Hydra; `experiments`
tells what in it is one. Each is composed in `examine`, and `locks` holds the plans against the
reviewed ones. What is found are `Found`s (`findings`), which `render` and `render_ci` write. What
decides is apart from what reads: only `files`, `examine`, `locks` and `check` touch anything.
"""
