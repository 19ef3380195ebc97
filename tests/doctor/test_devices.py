"""Doctor looks at the GPUs that the engine will use, however they were chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvbench.doctor import diagnose
from kvbench.doctor.check import Check
from kvbench.doctor.cuda import CudaError, GpuCopies
from kvbench.doctor.devices import VISIBLE_DEVICES, chosen_gpus
from kvbench.doctor.examine import examine
from kvbench.doctor.host import Gpu, Host
from kvbench.doctor.reading import read_machine
from kvbench.spec.profile import Profile
from tests.doctor.good_host import GIB, GPU, HOST, profile

IMAGE = {"command": None, "image": "vllm@sha256:" + "0" * 64}
TWO = {"max-model-len": 8192, "tensor-parallel-size": 2}


def numbered(index: int, **changed: Any) -> Gpu:
    return replace(GPU, index=index, bus=f"0000:{index}8:00.0", uuid=f"GPU-{index}a{index}b-0000", **changed)


FOUR = replace(HOST, gpus=tuple(numbered(index, node=index // 2) for index in range(4)))


def of_image(gpus: Any, **engine: Any) -> Profile:
    return profile(container={"gpus": gpus}, args=TWO, **IMAGE, **engine)


def visible(devices: str, **engine: Any) -> Profile:
    return profile(env={VISIBLE_DEVICES: devices}, **({"args": TWO} | engine))


CHOICES: list[tuple[str, Profile, list[int], tuple[str, ...]]] = [
    ("nothing chosen", profile(args=TWO), [0, 1], ()),
    ("one rank", profile(), [0], ()),
    ("indices given to the container", of_image([2, 3]), [2, 3], ()),
    ("every GPU given to the container", of_image("all"), [0, 1], ()),
    ("no GPU given to the container", of_image("none"), [], ()),
    ("an index that is not here", of_image([3, 9]), [3], ("9",)),
    ("indices that CUDA shows", visible("2,3"), [2, 3], ()),
    ("in CUDA's own order", visible(" 3, 1 ,0"), [3, 1], ()),
    ("nothing shown", visible(""), [], ()),
    ("the other way to show nothing", visible("-1"), [], ()),
    ("UUIDs", visible("GPU-3a3b-0000,GPU-1a1b-0000"), [3, 1], ()),
    ("a UUID's beginning", visible("GPU-2a", args={}), [2], ()),
    ("a beginning that two have", visible("GPU-"), [], ("GPU-",)),
    ("an unknown index hides what follows", visible("1,7,2"), [1], ("7",)),
    ("an unknown UUID", visible("GPU-ffff,1"), [], ("GPU-ffff",)),
    ("twice the same", visible("1,1"), [1], ("1",)),
    ("a part of a GPU", visible("MIG-12345"), [], ("MIG-12345",)),
    ("numbered anew in the container", of_image([1, 3], env={VISIBLE_DEVICES: "1"}), [3], ()),
]


@pytest.mark.parametrize(("of", "used", "unknown"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_the_gpus_of_an_engine_are_those_that_were_chosen_for_it(
    of: Profile, used: list[int], unknown: tuple[str, ...]
) -> None:
    found = chosen_gpus(of, FOUR)
    assert ([gpu.index for gpu in found.used], found.unknown) == (used, unknown)


def test_what_kvbench_was_started_with_is_inherited_but_by_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE_DEVICES, "2")
    host = replace(FOUR, visible_devices=read_machine().visible_devices)
    told = profile(container={"env_from": [VISIBLE_DEVICES]}, **IMAGE)
    used = [chosen_gpus(of, host).used[0].index for of in (profile(), visible("3"), profile(**IMAGE), told)]
    assert used == [2, 3, 0, 2]


def rows(of: Profile, host: Host) -> dict[str, Check]:
    return {row.id: row for row in examine(of, host)}


SICK = {
    "pcie": {"lanes": 4},
    "host_to_device": {"to_device_bytes_per_s": 1e9},
    "device_to_host": {"from_device_bytes_per_s": 1e9},
    "gpu_memory": {"memory_free": GIB},
    "gpu_load": {"busy": 0.9},
    "budget_host": {"to_device_bytes_per_s": 1e8},
    "numa": {"node": 9},
}


@pytest.mark.parametrize("id_", SICK)
def test_what_ails_a_gpu_is_told_to_those_who_use_it_alone(id_: str) -> None:
    first = replace(FOUR, gpus=(replace(FOUR.gpus[0], **SICK[id_]), *FOUR.gpus[1:]))  # type: ignore[arg-type]
    last = replace(FOUR, gpus=(*FOUR.gpus[:3], replace(FOUR.gpus[3], **SICK[id_])))  # type: ignore[arg-type]
    for of in (of_image([3]), visible("3", args={}), visible("GPU-3a3b", args={})):
        one = of.model_copy(update={"engine": of.engine.model_copy(update={"args": {}})})
        assert (rows(one, first)[id_].status, rows(one, last)[id_].status != "ok") == ("ok", True), of.engine
    assert rows(profile(), first)[id_].status != "ok"


@pytest.mark.parametrize(
    ("of", "status", "words"),
    [
        (
            of_image([2, 3]),
            "ok",
            "4 × NVIDIA H100 80GB HBM3; the profile uses 2 of GPU 2, 3 (engine.container.gpus: ",
        ),
        (of_image([2]), "fail", "uses 2 of GPU 2 (engine.container.gpus: [2])"),
        (of_image([2, 3, 9]), "fail", "; 9 cannot be matched to a GPU here"),
        (of_image("none"), "skipped", "is given no GPU (engine.container.gpus: none)"),
        (visible("3"), "fail", "uses 2 of GPU 3 (CUDA_VISIBLE_DEVICES: 3)"),
        (visible("2,3,9"), "warn", "uses 2 of GPU 2, 3 (CUDA_VISIBLE_DEVICES: 2,3,9); 9 cannot be matched"),
        (visible("9"), "fail", "sees none of the 4 GPUs here (CUDA_VISIBLE_DEVICES: 9); 9 cannot be matched"),
        (visible(""), "fail", "sees none of the 4 GPUs here (CUDA_VISIBLE_DEVICES: empty)"),
        (visible("MIG-1"), "warn", "; MIG-1 cannot be matched"),
    ],
)
def test_a_choice_is_told_with_what_it_leaves(of: Profile, status: str, words: str) -> None:
    row = rows(of, FOUR)["gpu"]
    assert (row.status, words in row.text) == (status, True), row
    assert row.do or status in ("ok", "skipped")


def test_what_no_gpu_is_looked_at_for_says_why() -> None:
    row = rows(visible("MIG-1"), FOUR)["pcie"]
    assert (row.status, row.text) == (
        "skipped",
        "the engine sees none of the 4 GPUs here (CUDA_VISIBLE_DEVICES: MIG-1); MIG-1 cannot be matched to one",
    )


def test_the_copies_that_are_measured_are_those_of_the_chosen_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measured(_driver: object, bus: str, _look: object) -> GpuCopies:
        asked.append(bus)
        if bus.startswith("0000:28"):
            raise CudaError("cuInit answered 100")
        return GpuCopies(1e9, 2e9, (5, 16))

    monkeypatch.setattr(diagnose, "load_driver", lambda: None)
    monkeypatch.setattr(diagnose, "measure_copies", measured)
    host = replace(FOUR, disk=None, gpus=tuple(replace(gpu, to_device_bytes_per_s=None) for gpu in FOUR.gpus))
    found = diagnose.measured(visible("3,2"), host, lambda _: None)
    assert sorted(asked) == ["0000:28:00.0", "0000:38:00.0"]
    assert [gpu.to_device_bytes_per_s for gpu in found.gpus] == [None, None, None, 1e9]
    assert found.gpus[2].not_measured == "cuInit answered 100"
