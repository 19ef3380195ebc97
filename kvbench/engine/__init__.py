"""See DESIGN: engine."""
