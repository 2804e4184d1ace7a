"""Calls to AWS's services: credentials, clients, and explanations of failures.

profile.py has credentials; clients.py makes the clients; explain.py classifies failures.
Only modules that are imported lazily import boto3, which is an extra.
"""
