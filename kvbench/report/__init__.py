"""See DESIGN: report."""
