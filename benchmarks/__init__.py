"""``make bench``: what the programs reach, each figure beside its limit from the same run.

``python -m benchmarks [NAMES]`` runs the real console scripts as processes of their own on
an embedded PostgreSQL. See ``python -m benchmarks --help``.
"""
