"""Merged diffs in a manifest: which are due, where their parts are listed, how they unfold."""
