"""See DESIGN: observe."""
