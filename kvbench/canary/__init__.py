"""The gate over live metrics: reads series, judges them as a stored run is judged, and acts on a breach."""
