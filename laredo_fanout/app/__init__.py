"""The server program: ingest in the main process, serving processes, HTTP, metrics.

The main process is the only writer of the store and the only one that talks to
PostgreSQL. Serving processes are fresh interpreters; what they share with it goes
over two socket pairs each: *control* (registry, pins, drain; ``control_wire``)
and *wake* (one byte for each durable commit; ``wake_up``). Both ends see at once when the
other ends, and a serving process without its main process ends itself.
"""
