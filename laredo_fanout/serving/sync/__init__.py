"""The sessions of the Sync call: snapshot, journal, verified positions."""
