"""The parts of merged diffs in a writer: their lists, and a base that begins at one of them."""
