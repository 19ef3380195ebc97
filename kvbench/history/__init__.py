"""What recorded comparisons left behind, night after night: their rows, the trend, and what becomes of old runs.

The store lies in `history/` beside the runs. Nothing here records or judges a run.
"""
