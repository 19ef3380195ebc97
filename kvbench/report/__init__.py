"""Reports of a judged run: pure functions from `ReportData` to text, one module a format."""
