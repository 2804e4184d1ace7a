"""A prefix of a bucket as a destination: Amazon S3, or whatever speaks its API.

bucket.py is its location; destination.py the interface; upload.py writes, reading.py
reads; requests.py sends the requests and classifies failures; probe.py finds out
whether the store can compare and swap.
"""
