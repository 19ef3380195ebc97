"""The Grafana dashboards, one module each, made with Grafana's own SDK, which only making them anew needs."""
