"""See DESIGN: spec."""
