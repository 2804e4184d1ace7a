"""The HTTP server of both programs: its configuration, authorization and limits.

:mod:`~laredo_model.http.settings` is the configuration, :mod:`~laredo_model.http.exposure` chooses
the address, :mod:`~laredo_model.http.guard` authorizes requests, and
:mod:`~laredo_model.http.server` serves them within limits. Each program adds its own endpoints.
"""
