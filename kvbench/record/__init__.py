"""A run on disk: its manifest and its tables, written as the run goes, readable at any moment."""
