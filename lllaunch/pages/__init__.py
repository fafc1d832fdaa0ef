"""A run or a sweep as one file of HTML (docs/design/pages.md).

`lllaunch.results.view` and `sweep_facts` read what a page is about. `run_page` and `sweep_page` say
what is on it; both are pure. The templates have its layout. `html` and `charts` know nothing of
runs: they escape texts, hold tables, draw curves, lanes and points as SVG. `page` has what all
pages share.
"""
