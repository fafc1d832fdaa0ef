"""What runs is what was reviewed: plans are compared with locks and measured by an allowlist.

`difference` tells in what two plans differ, `lock` keeps the reviewed one in ``conf/locks``,
`policy` reads what a project allows, and `allow` holds a run against that. Files are read by
`document`, which runs nothing and takes no more than it can bear; `objects` tells where a name is
defined without importing it.
"""
