"""Carrying out a comparison: rounds of every arm in turn, recorded as they go, judged as they come."""
