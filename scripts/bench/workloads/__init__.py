"""The workloads, one file per model family; `registry.all_workloads` imports every file here.

Models that installed packages lack are written here from their public descriptions, at the paper's sizes, keeping what
matters for graphs: tensors and masks made on the CPU, schedules, many tables, wide inputs, state changed in place.
"""
