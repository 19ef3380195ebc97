"""See DESIGN: judge."""
