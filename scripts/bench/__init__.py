"""The benchmark: what the package claims, measured so that anyone with a GPU can repeat it.

`python -m scripts.bench` from the checkout is the command line; docs/benchmarks/SCHEMA.md describes the data.
"""
