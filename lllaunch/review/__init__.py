"""What runs is what was reviewed: plans are compared with locks and measured by an allowlist.

`lock` keeps the reviewed plan in ``conf/locks``, `policy` reads what a project allows, and `allow`
holds a run against that. `annotated` shows a plan to who reviews it.
"""
