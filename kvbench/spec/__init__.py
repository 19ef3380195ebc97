"""What users write: profiles, workloads and rules; loading with file and line in every error."""
