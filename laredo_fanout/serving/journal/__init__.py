"""The journal as a serving process follows it: once for all of its sessions."""
