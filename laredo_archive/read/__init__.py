"""Reading an archive: finding it, checking its artifacts, merging base and diffs."""
