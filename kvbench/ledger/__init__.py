"""Where each request's prompt tokens came from, by the best evidence at hand. Pure; no I/O."""
