"""See DESIGN: workload."""
