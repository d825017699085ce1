"""Tiny fleets and workloads, whose arrays cannot be written to, and fingerprints of what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace

import numpy as np

from morphling.fleet import Availability, Fleet
from morphling.fleet.published import fleet_from_arrays
from morphling.fleet.streams import stream
from morphling.interfaces.view import read_only
from morphling.types import FAR_NS, DType
from morphling.workload import Workload, model_from_config, training_step

__all__ = ["coming_and_going", "fingerprint", "tiny_fleet", "tiny_workload"]

HIDDEN, FFN, HEADS = 64, 256, 4


def tiny_fleet(
    devices: int = 4, seed: int = 0, *, memory_bytes: int = 1 << 30, availability: Availability | None = None
) -> Fleet:
    """A fleet of unlike devices with constant links; its arrays are read-only.

    Each computes 1 to 4 TFLOP/s in every dtype, downloads at 2 to 10 Mbit/s and uploads at 1 to 4 Mbit/s, with 1 ms
    of latency and 0.1 ms to start a kernel, and has ``memory_bytes``; the coordinator is free and its links unlimited.
    (So slow that the tiny workload takes longer than latency and launches.)
    """
    rng = stream(seed, "testing/tiny_fleet")
    fleet = fleet_from_arrays(
        flops=rng.uniform(1e12, 4e12, devices),
        down_bps=rng.integers(2_000_000, 10_000_000, devices),
        up_bps=rng.integers(1_000_000, 4_000_000, devices),
        memory_bytes=memory_bytes,
        latency_ns=1_000_000,
        launch_s=1e-4,
        dtypes=tuple(DType),
        name="tiny",
    )
    return read_only(fleet if availability is None else replace(fleet, availability=availability))


def tiny_workload(layers: int = 2, *, batch_size: int = 2, sequence_length: int = 24) -> Workload:
    """One training step of a small OPT in float16: width 64, FFN 256, 4 heads; 48 tokens by default; read-only."""
    config = {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": HIDDEN, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "ffn_dim": FFN, "vocab_size": 512, "max_position_embeddings": 512,
        "word_embed_proj_dim": HIDDEN, "do_layer_norm_before": True, "activation_function": "relu",
    }  # fmt: skip
    model = model_from_config(config, "tiny", "tiny_workload")
    return read_only(training_step(model, batch_size, sequence_length, DType.FLOAT16))


def coming_and_going(devices: int, span_ns: int) -> Availability:
    """Of ``devices`` (>= 2) within ``span_ns``: device 0 leaves for good after a quarter, device 1 is away for a while,
    device 2 comes late; the others stay.
    """
    quarter, gap = max(span_ns // 4, 1), (max(span_ns * 3 // 10, 1), max(span_ns // 2, 2))
    stays = [[(0, quarter)], [(0, gap[0]), (gap[1], FAR_NS)], [(max(span_ns * 2 // 5, 1), FAR_NS)]]
    always = [[(0, FAR_NS)] for _ in range(devices)]
    return Availability.of([*stays, *always[3:]][:devices])


def fingerprint(record: object) -> str:
    """SHA-256 (hex) of everything that a record of arrays, records and plain values holds."""
    sha = hashlib.sha256()
    for leaf in _leaves(record):
        if isinstance(leaf, np.ndarray):
            sha.update(f"{leaf.dtype}{leaf.shape}".encode() + np.ascontiguousarray(leaf).tobytes())
        else:
            sha.update(repr(leaf).encode() + b"\0")
    return sha.hexdigest()


def _leaves(value: object) -> Iterator[object]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
