"""Shared parts of both programs' status pages: routes, headers, templates, script and charts."""
