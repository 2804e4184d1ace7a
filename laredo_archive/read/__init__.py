"""What an archive says: artifacts checked, folded, and found."""
