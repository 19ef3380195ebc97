"""Grafana dashboards and Prometheus rules for what the engines, their hosts and the gate tell about themselves.

`rules` and `boards` make them; the repository's `dashboards/` holds what they made, and `export` hands it out.
"""
