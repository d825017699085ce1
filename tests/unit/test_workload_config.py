"""Sizes from config.json mappings; counts are those of the public checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from morphling.errors import WorkloadError
from morphling.workload import model_from_config, model_named, parameters


def rotary(kind, h, layers, heads, kv, f, vocab, **other):
    return {
        "model_type": kind,
        "hidden_size": h,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": f,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        **other,
    }


def opt(h=768, layers=12, heads=12, **other):
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "hidden_size": h,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": 4 * h,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "activation_function": "relu",
        **other,
    }


def gpt2(h=768, layers=12, heads=12, **other):
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": h,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 1024,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
        **other,
    }


PUBLIC = [
    (gpt2(), 124_439_808),
    (gpt2(1024, 24, 16, n_inner=None), 354_823_168),
    (gpt2(1280, 36, 20), 774_030_080),
    (gpt2(1600, 48, 25), 1_557_611_200),
    (opt(word_embed_proj_dim=768), 125_239_296),
    (opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False), 331_196_416),
    (opt(5120, 40, 40), 12_853_473_280),
    (rotary("llama", 4096, 32, 32, None, 11008, 32000), 6_738_415_616),
    (rotary("llama", 8192, 80, 64, 8, 28672, 32000), 68_976_648_192),
    (rotary("llama", 2048, 22, 32, 4, 5632, 32000), 1_100_048_384),  # TinyLlama
    (rotary("llama", 2048, 16, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True), 1_235_814_400),
    (rotary("mistral", 4096, 32, 32, 8, 14336, 32000), 7_241_732_096),
    (rotary("qwen2", 896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True), 494_032_768),
    (rotary("qwen2", 3584, 28, 28, 4, 18944, 152064), 7_615_616_512),
    (rotary("qwen3", 1024, 28, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True), 596_049_920),
    (rotary("gemma", 2048, 18, 8, 1, 16384, 256000, head_dim=256, hidden_act="gelu"), 2_506_172_416),
    (rotary("gemma", 3072, 28, 16, 16, 24576, 256000, head_dim=256), 8_537_680_896),
    (rotary("gemma2", 2304, 26, 8, 4, 9216, 256000, head_dim=256), 2_614_341_888),
    (rotary("gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256), 999_885_952),
]


@pytest.mark.parametrize(("config", "count"), PUBLIC, ids=lambda v: v["model_type"] if isinstance(v, dict) else str(v))
def test_counts_of_public_checkpoints(config, count):
    assert parameters(model_from_config(config, "mine", "config.json")) == count


def test_a_config_gives_the_model_known_by_name():
    read = model_from_config(opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False), "opt-350m", "c")
    assert read == model_named("opt-350m")
    assert model_from_config(gpt2(), "gpt2", "c") == model_named("gpt2")
    llama = rotary("llama", 8192, 80, 64, 8, 28672, 32000, max_position_embeddings=4096)
    assert model_from_config(llama, "llama-2-70b", "c") == model_named("llama-2-70b")


def test_only_the_text_decoder_of_a_multimodal_model_is_read():
    inner = rotary("gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256)
    outer = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner}
    model = model_from_config(outer, "mine", "c")
    assert parameters(model) == 999_885_952
    assert "only the text decoder" in model.note
    untied = model_from_config({**outer, "tie_word_embeddings": False}, "mine", "c")
    assert parameters(untied) == 999_885_952 + 262144 * 1152


def test_biases_and_dropout_follow_the_config():
    base = rotary("llama", 64, 2, 4, 2, 128, 100)
    biased = model_from_config({**base, "attention_bias": True, "mlp_bias": True}, "mine", "c")
    extra = 2 * (64 + 2 * 32 + 64 + 2 * 128 + 64)
    assert parameters(biased) - parameters(model_from_config(base, "mine", "c")) == extra
    assert model_from_config(opt(), "mine", "c").dropout
    assert not model_from_config(opt(dropout=0.0), "mine", "c").dropout
    plain = model_from_config(opt(enable_bias=False), "mine", "c")
    assert plain == replace(model_from_config(opt(), "mine", "c"), qkv_bias=False, out_bias=False, mlp_bias=False)


LLAMA = rotary("llama", 64, 2, 4, 2, 128, 100)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "f.json: a mapping is needed, not list"),
        ({}, "f.json: model_type: missing; known: opt, gpt2"),
        ({"model_type": "bert"}, "f.json: model_type: unknown architecture 'bert'; known: opt, gpt2, llama"),
        ({"model_type": "llava", "text_config": 3}, "f.json: text_config: a mapping is needed, not int"),
        ({**LLAMA, "num_hidden_layers": 0}, "f.json: num_hidden_layers: must be at least 1, not 0"),
        ({**LLAMA, "vocab_size": -5}, "f.json: vocab_size: must be at least 1, not -5"),
        ({**LLAMA, "hidden_size": 64.0}, "f.json: hidden_size: a positive whole number is needed, not 64.0"),
        ({**LLAMA, "hidden_size": "64"}, "f.json: hidden_size: a positive whole number"),
        ({**LLAMA, "num_hidden_layers": True}, "f.json: num_hidden_layers: a positive whole number"),
        ({**LLAMA, "num_attention_heads": 5}, "f.json: num_attention_heads: 5 heads do not divide the hidden size 64"),
        ({**LLAMA, "num_key_value_heads": 3}, "f.json: num_key_value_heads: 4 heads cannot share 3 KV heads evenly"),
        ({**LLAMA, "intermediate_size": None}, "f.json: intermediate_size: missing"),
        (
            {**{k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocabsize": 9},
            r"vocab_size: missing \(did you mean",
        ),
        ({**LLAMA, "hidden_act": "tanh"}, "f.json: hidden_act: unknown activation 'tanh'"),
        ({**LLAMA, "tie_word_embeddings": "no"}, "f.json: tie_word_embeddings: true or false is needed, not 'no'"),
        ({**LLAMA, "num_local_experts": 8}, "f.json: num_local_experts: 8 is not supported: mixtures of experts"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "f.json: architectures: .* task head"),
        ({**LLAMA, "architectures": "LlamaForCausalLM"}, "f.json: architectures: a list is needed"),
        ({**LLAMA, "vocab_size": 10**30}, "f.json: vocab_size: .* is beyond any model"),
        (rotary("mistral", 64, 2, 4, None, 128, 100), "f.json: num_key_value_heads: missing"),
        (rotary("gemma", 64, 2, 4, 1, 128, 100), "f.json: head_dim: missing"),
        (gpt2(n_head=7), "f.json: n_head: 7 heads do not divide the hidden size 768 evenly"),
        (gpt2(add_cross_attention=True), "f.json: add_cross_attention: True is not supported"),
        (opt(dropout=2), "f.json: dropout: a probability is needed, not 2"),
        (opt(layer_norm_elementwise_affine=False), "f.json: layer_norm_elementwise_affine: False is not supported"),
    ],
)
def test_faults_name_file_and_key(config, message):
    with pytest.raises(WorkloadError, match=message):
        model_from_config(config, "mine", "f.json")
