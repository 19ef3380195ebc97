"""See DESIGN: drill."""
