"""The built-in model ``tiny``: a small Llama with random weights and a byte-level tokenizer.

Pure bytes from the standard library alone, so the files are identical on every machine, Python and library
version. Owns the content, not where it is stored. Sizes in elements unless the name says bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Iterator
from math import prod

BOS_ID, EOS_ID, VOCABULARY = 256, 257, 258
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 2, 256, 2, 2, 64
INTERMEDIATE = 512
MAX_POSITIONS = 32768

# Half-widths of the uniform distributions. Chosen so that attention picks out few tokens among thousands and the
# logits differ clearly: the greedy output then depends on the content and the place of every KV block. With the
# usual initialisation (0.02) swapped blocks give the same text, so equal outputs would prove nothing.
WEIGHT_SCALE = {
    "embed_tokens": 1.7,
    "lm_head": 0.6,
    "q_proj": 0.18,
    "k_proj": 0.18,
    "v_proj": 0.11,
    "o_proj": 0.11,
    "gate_proj": 0.11,
    "up_proj": 0.11,
    "down_proj": 0.06,
}

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@functools.cache
def digest() -> str:
    """Names the content of all files."""
    whole = hashlib.sha256()
    for name, content in sorted(files().items()):
        whole.update(name.encode() + b"\0" + content)
    return whole.hexdigest()[:12]


def files() -> dict[str, bytes]:
    """Every file of the model directory by name."""
    return {
        "config.json": _json(_config()),
        "model.safetensors": _safetensors(),
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(_tokenizer_config()),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode()


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,)
        yield prefix + "self_attn.q_proj.weight", (HEADS * HEAD_SIZE, HIDDEN)
        yield prefix + "self_attn.k_proj.weight", (KV_HEADS * HEAD_SIZE, HIDDEN)
        yield prefix + "self_attn.v_proj.weight", (KV_HEADS * HEAD_SIZE, HIDDEN)
        yield prefix + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_SIZE)
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,)
        yield prefix + "mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield prefix + "mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield prefix + "mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def _bfloat16(value: float) -> int:
    """The sixteen bits of a float in bfloat16, rounded to nearest."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def _weights(name: str, shape: tuple[int, ...]) -> bytes:
    """bfloat16, little endian: one of 256 evenly spaced levels for each byte of a hash stream of the name."""
    count = prod(shape)
    kind = next((kind for kind in WEIGHT_SCALE if kind in name), None)
    if kind is None:  # a norm
        return struct.pack("<H", _bfloat16(1.0)) * count
    levels = [_bfloat16((2 * i - 255) / 255 * WEIGHT_SCALE[kind]) for i in range(256)]
    noise = hashlib.shake_256(b"kvbench tiny 1 " + name.encode()).digest(count)
    out = bytearray(2 * count)
    out[0::2] = noise.translate(bytes(level & 0xFF for level in levels))
    out[1::2] = noise.translate(bytes(level >> 8 for level in levels))
    return bytes(out)


def _safetensors() -> bytes:
    """The format is: header length (8 bytes, little endian), JSON header, tensors; safetensors documentation."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    tensors: list[bytes] = []
    offset = 0
    for name, shape in _shapes():
        data = _weights(name, shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        tensors.append(data)
        offset += len(data)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(tensors)


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (the alphabet published with GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _special(token_id: int, text: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": text, **flags}


def _tokenizer() -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(BOS_ID, "<s>"), _special(EOS_ID, "</s>")],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: byte for byte, character in enumerate(_byte_alphabet())}
            | {"<s>": BOS_ID, "</s>": EOS_ID},
            "merges": [],
        },
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
    }
