"""Files on local disks: durable replacement, private directories, sha256."""
