"""The HTTP server of both programs: its configuration, authorization and limits.

:mod:`~laredo_service.http.settings` is the configuration and the address that it exposes,
:mod:`~laredo_service.http.guard` authorizes requests, and :mod:`~laredo_service.http.server`
serves them within limits. Each program adds its own endpoints.
"""
