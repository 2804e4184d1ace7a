"""AWS's services as this archive uses them: who calls, with which client, and what an answer means.

profile.py says who; clients.py makes the clients; explain.py tells failures apart.
Only modules that are imported lazily import boto3, which is an extra.
"""
