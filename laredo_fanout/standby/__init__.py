"""Several servers of one slot: claims to it, what may be confirmed, and takeover.

docs/standby-protocol.md has the rules.
"""
