"""A profile: one engine, its model and its KV-cache tiers, as the user writes it.

Sizes in bytes, times in seconds after loading. Nothing here touches the world; `fitness` says what cannot be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from kvbench.spec.access import Access, Api, EnvName, Headers, bare_text
from kvbench.spec.bounds import MOST_COUNT, between
from kvbench.spec.container import ContainerSpec
from kvbench.spec.emulation import Emulation, Injections
from kvbench.spec.fitness import LMCACHE_CHUNK_TOKENS, misfits
from kvbench.spec.model import Misfit, Name, SpecFile, SpecModel
from kvbench.spec.paths import UserPath, with_known_home
from kvbench.spec.quantity import Bandwidth, ByteSize, Count, CountFromZero, Fraction, PositiveSeconds, Whole
from kvbench.spec.secondary import Backpressure, SecondaryTier, Threads

__all__ = [
    "DeviceTier",
    "DiskTier",
    "EngineSpec",
    "EnvName",
    "HostTier",
    "Profile",
    "SpecModel",
    "Tiers",
    "check_address",
]


def _flag_form(value: object) -> str | None:
    forms = {
        bool: "switch",
        int: "whole",
        float: "number",
        str: "text",
        list: "list",
        tuple: "list",
        dict: "mapping",
    }
    return forms.get(type(value))


FlagValue = Annotated[
    Annotated[bool, Tag("switch")]
    | Annotated[int, Tag("whole")]
    | Annotated[float, Field(allow_inf_nan=False), Tag("number")]
    | Annotated[str, Tag("text")]
    | Annotated[list[str | int | float], Tag("list")]
    | Annotated[dict[str, object], Tag("mapping")],
    Discriminator(
        _flag_form,
        custom_error_type="form",
        custom_error_message="expected a value; a switch takes true or false",
    ),
]


def check_address(value: str, named_in: str = "api_key_env") -> None:
    """ValueError for what no server can be reached at, and for secrets in an address.

    `named_in` is the key that names the variable with the secret.
    """
    try:
        parts = urlsplit(value)
        _ = parts.port  # parsed, and refused, on access
        host = (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise ValueError(f"{value!r} is not a URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"a name or password does not belong in an address; name the key's variable in {named_in}")
    if parts.scheme not in ("http", "https") or not host or not value.isascii() or not value.isprintable():
        raise ValueError(f"expected a URL such as http://127.0.0.1:8000, got {value!r}")


class EngineSpec(SpecModel):
    """What to launch, or what is already running (`kind: attached`)."""

    kind: Literal["vllm", "tensorrt-llm", "attached", "emulated"]
    environment: str | None = None
    image: str | None = None
    container: ContainerSpec | None = None
    """With `image` only: how its container is run."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    version: str | None = None
    model: Annotated[str, Field(min_length=1), AfterValidator(with_known_home)]
    revision: str | None = None
    served_name: str | None = None
    args: dict[str, FlagValue] = Field(default_factory=dict)
    """Flag (without leading dashes, spelled as the engine's help does) → value."""
    env: dict[EnvName, Annotated[str, BeforeValidator(bare_text)]] = Field(default_factory=dict)
    ready_timeout: PositiveSeconds = 600.0
    base_url: str | None = None
    metrics_url: str | None = None
    api_key_env: EnvName | None = None
    headers: Headers = Field(default_factory=dict)
    """Attached servers: sent with every request, of the load and of everything that looks at the server."""
    ca_file: UserPath | None = None
    """Attached servers: PEM file of the authority that signed the certificate; default: the system's."""
    api: Api = "completions"
    """Attached servers: where prompts are sent. `chat` puts each into one user message."""
    token_id_range: tuple[CountFromZero, CountFromZero] | None = None
    tokenizer: UserPath | None = None
    """Attached servers that take only text: the served model's tokenizer.json, where the server has no
    `/tokenize`."""
    emulation: Emulation | None = None
    """Emulated engine only: what its work costs and how that varies."""
    inject: Injections | None = None
    """Emulated engine only: known truths, to try out what a comparison makes of them."""

    @field_validator("base_url", "metrics_url")
    @classmethod
    def _http_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_address(value)
        return value

    @field_validator("base_url")
    @classmethod
    def _without_v1(cls, value: str | None) -> str | None:
        if value is not None and ("?" in value or "#" in value):
            raise ValueError(f"expected a server's address such as http://127.0.0.1:8000, got {value!r}")
        return value.rstrip("/").removesuffix("/v1").rstrip("/") if value else value

    @property
    def access(self) -> Access:
        """What every request to an attached server carries and whom it trusts."""
        return Access(api_key_env=self.api_key_env, headers=self.headers, ca_file=self.ca_file)

    @field_validator("token_id_range")
    @classmethod
    def _rising(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not 0 <= value[0] < value[1]:
            raise ValueError(f"expected [first, last] with 0 <= first < last, got {list(value)}")
        return value


class DeviceTier(SpecModel):
    """KV blocks in GPU memory (on the CPU engine: its KV arena). One of the two sizes, or the engine's default."""

    memory_utilization: Annotated[Fraction, Field(gt=0)] | None = None
    blocks: Annotated[Whole, Field(ge=2), between(2, MOST_COUNT)] | None = None
    kv_dtype: str = "auto"


class HostTier(SpecModel):
    """KV blocks in DRAM. `size` is the total over all ranks of one engine."""

    size: ByteSize
    policy: Literal["lru", "arc"] = "lru"
    via: Literal["native", "offloading", "lmcache"] = "native"
    in_process: bool = False
    """LMCache only: inside the engine, instead of in a server beside it."""
    chunk_tokens: Count | None = None
    blocks_per_chunk: Count | None = None
    store_threshold: CountFromZero = 0
    max_tracker_size: Count | None = None
    """Prefixes that `store_threshold` counts at most."""
    offload_prompt_only: bool = True
    canonical_layout: bool = False
    """Blocks whose bytes do not depend on how the model is spread over ranks."""
    min_priority: Annotated[Whole, Field(ge=0, le=100)] | None = None
    throttle: Bandwidth | None = None
    """Embedded engine only: slows host-to-device copies, to test that a gate refuses a bad tier."""

    def tokens_per_chunk(self, block_tokens: int) -> int:
        """What is kept, found and dropped as one, behind device blocks of `block_tokens` tokens."""
        if self.chunk_tokens is not None:
            return self.chunk_tokens
        if self.blocks_per_chunk is not None:
            return self.blocks_per_chunk * block_tokens
        return LMCACHE_CHUNK_TOKENS if self.via == "lmcache" else block_tokens


class DiskTier(SpecModel):
    """KV blocks in files behind the host tier. kvbench puts a directory of its own under `path` for each launch."""

    path: Path
    read_threads: Threads = 16
    write_threads: Threads = 16
    size_limit: ByteSize | None = None
    locality: Literal["LOCAL", "REMOTE"] | None = None
    """What requests may name it by; a file system on the network is REMOTE."""
    backpressure: Backpressure | None = None
    throttle: Bandwidth | None = None
    """Embedded engine only: slows reads from the tier, to test that a gate refuses a bad tier."""

    @field_validator("path")
    @classmethod
    def _plain(cls, value: Path) -> Path:
        with_known_home(str(value))
        if str(value) == "." or "$" in str(value) or "\0" in str(value):
            raise ValueError(
                f"expected a directory, got {str(value)!r}; environment variables are not replaced here"
            )
        return value


class Tiers(SpecModel):
    """Hot to cold; a tier left out is off."""

    device: DeviceTier = DeviceTier()
    host: HostTier | None = None
    disk: DiskTier | None = None
    secondary: list[SecondaryTier] = Field(default_factory=list)
    """Further tiers behind the host, of vLLM alone: object stores, peers."""

    @property
    def behind_host(self) -> bool:
        """Whether any tier stands behind the host, which a request can ask to be left out."""
        return self.disk is not None or bool(self.secondary)


class Profile(SpecFile):
    """One YAML file: an arm of a comparison."""

    name: Name
    engine: EngineSpec
    tiers: Tiers = Tiers()

    @field_validator("engine")
    @classmethod
    def _flags_spelled_once(cls, engine: EngineSpec) -> EngineSpec:
        """`--max_model_len` and `max-model-len` are one flag; stored as the engine's help spells it."""
        spelled: dict[str, FlagValue] = {}
        for written, value in engine.args.items():
            flag = written.lstrip("-").replace("_", "-")
            flag = flag.replace("-", "_") if engine.kind == "tensorrt-llm" else flag
            if flag in spelled:
                raise Misfit((("args", written), f"the flag {flag} is given twice"))
            spelled[flag] = value
        return engine.model_copy(update={"args": spelled})

    @model_validator(mode="after")
    def _fits(self) -> Profile:
        if problems := list(misfits(self.engine, self.tiers)):
            raise Misfit(*problems)
        return self

    @property
    def served_name(self) -> str:
        """The model name that requests carry."""
        return self.engine.served_name or self.engine.model

    @property
    def tier_names(self) -> tuple[str, ...]:
        """The tiers that are on, hot to cold. What an object store serves counts as from the disk."""
        stored = any(tier.type in ("obj", "kvcr") for tier in self.tiers.secondary)
        on = {
            "device": True,
            "host": self.tiers.host is not None,
            "disk": self.tiers.disk is not None or stored,
        }
        return tuple(name for name, is_on in on.items() if is_on)
