"""See DESIGN: canary."""
