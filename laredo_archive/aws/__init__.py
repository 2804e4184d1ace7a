"""Calls to AWS's services: credentials, clients, and explanations of failures.

profile.py describes credentials, credentials.py finds them; clients.py makes the clients;
explain.py classifies failures. boto3 is an extra, so it is imported where it is used.
"""
