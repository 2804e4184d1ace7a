"""Shared parts of both programs' status pages: routes, headers, templates, script and charts.

Each program's own template is with its HTTP endpoints.
"""
