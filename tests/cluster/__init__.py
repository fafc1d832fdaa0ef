"""Runs of several nodes, which are network namespaces of this machine."""
