"""A run or a sweep as one file of HTML (docs/design/pages.md).

`run_page` and `sweep_page` say what is on it, the templates have its layout. `html` and `charts`
know nothing of runs: they escape texts, hold tables, draw curves, lanes and points as SVG.
"""
