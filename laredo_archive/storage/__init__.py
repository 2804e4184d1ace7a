"""Where objects are kept: directories and buckets, behind one door."""
