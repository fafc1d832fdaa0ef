"""Sweeps: many runs that share one machine.

What runs when is decided purely (`schedule`); what a job holds while it runs is leased (`machine`);
what became of each job stands in a journal that survives any end of the launcher (`journal`).
"""
