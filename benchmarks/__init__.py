"""How fast and how large is one private step? Run `python -m benchmarks --help`.

The way of the data: workloads x contestants -> speed, memory, scaling -> JSON records -> report;
and models, as people have them -> survey -> its page (docs/models-table.md).
"""
