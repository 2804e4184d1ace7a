"""The HTTP server of both programs: its configuration, authorization and limits.

:mod:`~laredo_model.http.settings` is the configuration, :mod:`~laredo_model.http.settings` chooses
the address, :mod:`~laredo_model.http.guard` authorizes requests, and
:mod:`~laredo_model.http.connection` serves them within limits. Each program adds its own endpoints.
"""
