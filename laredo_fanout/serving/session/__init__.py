"""The session of a Sync call, from its handshake to the live journal."""
