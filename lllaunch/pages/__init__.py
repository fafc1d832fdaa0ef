"""A run or a sweep as one file of HTML (docs/design/pages.md).

`lllaunch.pages.html` and `lllaunch.pages.charts` know nothing of runs: elements, tables and the
page's shell; curves, lanes and points as SVG. `run_facts` and `sweep_facts` read what a page is
about, `run_page` and `sweep_page` make it and are pure.
"""
