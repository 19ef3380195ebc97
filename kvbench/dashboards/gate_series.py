"""Names of what `kvbench gate --serve` tells about itself at /metrics."""

from __future__ import annotations

VERDICT = "kvbench_gate_verdict"
RULE = "kvbench_gate_rule"
EFFECT = "kvbench_gate_rule_effect"
LIMIT = "kvbench_gate_rule_limit"
CI_LOW = "kvbench_gate_rule_ci_low"
CI_HIGH = "kvbench_gate_rule_ci_high"
SHARE_OVER = "kvbench_gate_share_over_budget"
FIRING_SHARE = "kvbench_gate_firing_share"
WINDOWS = "kvbench_gate_windows_total"
REQUESTS = "kvbench_gate_requests_total"
REPLICAS = "kvbench_gate_replicas"
SCRAPES = "kvbench_gate_scrapes_total"
SCRAPE_AGE = "kvbench_gate_scrape_age_seconds"
ACTION = "kvbench_gate_action"
