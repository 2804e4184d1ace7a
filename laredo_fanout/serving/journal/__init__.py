"""A serving process's readers of the journal, shared by all of its sessions."""
