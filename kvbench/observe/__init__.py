"""Scraping of engine metrics and sampling of the host during a round."""
