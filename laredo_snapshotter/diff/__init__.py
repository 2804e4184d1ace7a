"""From a table's stream to diffs: buffered, cut, frozen."""
