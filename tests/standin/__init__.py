"""A stand-in server for faults that no healthy engine shows, and for attached comparisons that last seconds."""
