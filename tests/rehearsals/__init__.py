"""Faults made for real: the alert fires, the runbook's cure is followed, the alert is over."""
