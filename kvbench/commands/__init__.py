"""One module a command: its options, one call, what it prints, its exit code. `kvbench.cli` puts them together."""
