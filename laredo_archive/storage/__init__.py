"""Storage of objects: directories and S3 buckets behind one interface."""
