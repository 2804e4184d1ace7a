"""One client's stream: snapshot, journal, verified positions."""
