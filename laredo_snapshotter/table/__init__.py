"""One table's writer, from the claim to its last flush."""
