"""See DESIGN: record."""
