"""Pages of metrics from plain values, so that a test says only what it is about."""

from __future__ import annotations

TEXT = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a b"} 12.0
vllm:prompt_tokens_total{engine="1",model_name="a b"} 30.0
# TYPE vllm:kv_offload_load_bytes_total counter
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{le="1.0"} 3.0
vllm:iteration_tokens_total_sum 5.0
other_metric 7
"""
"""Two ranks, a family without a sample, a histogram whose name ends like a counter's, an undeclared sample."""


def page(kind: str, name: str, *samples: tuple[str, str]) -> str:
    """One family; `samples` are (labels with their braces, value)."""
    return f"# TYPE {name} {kind}\n" + "".join(f"{name}{labels} {value}\n" for labels, value in samples)


def counters(values: dict[str, float], **labels: str) -> str:
    """One counter each, by family, every one with these labels."""
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return "".join(
        page("counter", f"{name}_total", (f"{{{inside}}}", str(value))) for name, value in values.items()
    )


def by_label(family: str, label: str, values: dict[str, float], kind: str = "counter") -> str:
    """One family with a series for each value of a label."""
    name = f"{family}_total" if kind == "counter" else family
    return page(kind, name, *((f'{{engine="0",{label}="{key}"}}', str(value)) for key, value in values.items()))
