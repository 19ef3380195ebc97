"""What a token costs from each source, measured by single requests that are made to hit one source each."""
