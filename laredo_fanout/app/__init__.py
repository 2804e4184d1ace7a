"""The server as a whole: ingest in the main process, serving processes beside it, HTTP, metrics.

The main process is the only writer of the store and the only one that talks to
PostgreSQL. Serving processes are fresh interpreters; what they share with it goes
over two socket pairs each: *control* (registry, pins, drain; ``control_wire``)
and *wake* (one byte for each durable commit; ``wake``). Both ends see the other
die at once, and a serving process without its main process ends itself.
"""
