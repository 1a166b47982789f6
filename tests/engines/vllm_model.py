"""A tiny Llama with random weights that are the same wherever it is made, for tests of vLLM.

Weights of load_format=dummy are so small that a token's successor hardly depends on the tokens before it:
with them a test could not tell right K/V from wrong.  These are large enough that it does; the tests
assert so.
"""

import json
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 768,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(folder, seed=0):
    """Writes config.json and model.safetensors; returns the folder's name."""
    import torch
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generator = torch.Generator().manual_seed(seed)
    wide, inner, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    kv = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    tensors = {}

    def matrix(name, rows, columns, gain):
        tensors[name] = torch.randn(rows, columns, generator=generator) * (gain / columns**0.5)

    matrix("model.embed_tokens.weight", vocab, wide, wide**0.5)
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        matrix(layer + "self_attn.q_proj.weight", wide, wide, 1.3)
        matrix(layer + "self_attn.k_proj.weight", kv, wide, 1.3)
        matrix(layer + "self_attn.v_proj.weight", kv, wide, 3.0)
        matrix(layer + "self_attn.o_proj.weight", wide, wide, 2.0)
        matrix(layer + "mlp.gate_proj.weight", inner, wide, 1.0)
        matrix(layer + "mlp.up_proj.weight", inner, wide, 1.0)
        matrix(layer + "mlp.down_proj.weight", wide, inner, 1.0)
        tensors[layer + "input_layernorm.weight"] = torch.ones(wide)
        tensors[layer + "post_attention_layernorm.weight"] = torch.ones(wide)
    tensors["model.norm.weight"] = torch.ones(wide)
    matrix("lm_head.weight", vocab, wide, 1.0)
    save_file(tensors, str(folder / "model.safetensors"))
    return str(folder)
