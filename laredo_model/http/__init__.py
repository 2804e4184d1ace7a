"""The HTTP side that both programs have: who may ask, from where, and how much it may take up.

:mod:`~laredo_model.http.exposure` chooses the address, :mod:`~laredo_model.http.settings` is the
configuration, :mod:`~laredo_model.http.guard` lets requests in or not, and
:mod:`~laredo_model.http.server` serves them within limits. What is asked and answered is each
program's own.
"""
