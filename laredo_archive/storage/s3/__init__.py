"""A prefix of a bucket as a destination: Amazon S3, or any service with its API.

bucket.py is its location; destination.py is the interface, and finds out whether the store can
compare and swap; upload.py writes, reading.py reads; requests.py sends the requests and
classifies failures.
"""
