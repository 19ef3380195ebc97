"""See DESIGN: load."""
