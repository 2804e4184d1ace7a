"""New bases: from the live stream, or from a second one."""
