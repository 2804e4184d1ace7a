"""What the status pages of both programs share: routes, headers, templates, script and charts.

Each program's own template is beside its HTTP endpoints.
"""
