"""Recorded traffic: readers of the public trace formats, all giving the same columns. Times in seconds."""
