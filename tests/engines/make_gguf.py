"""Writes tiny models with random weights, so that tests need no download: the same file every time.

    python3 make_gguf.py OUT [--arch llama] [--layers 3] [--heads 4] [--kv-heads 2] [--head-dim 64] ...

A model knows nothing, but it computes like a large one: what it says next depends on every token before.
Its tokenizer has a token for each byte, and the ends and roles of a chat.  Architectures: llama; gemma3
(some layers see a window); qwen2vl (positions of several dimensions); mamba (a state, no K/V).
"""
import argparse
import random
import struct
from typing import BinaryIO, List, Sequence, Tuple, Union

F32, F16 = 0, 1
U32, FLOAT, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
I32 = 5
ALIGN = 32
POOL = 130043  # prime: rows taken from it do not line up
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
            "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
            "{% endif %}")


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def byte_names() -> List[str]:
    """A printable character for each byte, as byte-level tokenizers write them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, more = {}, 256
    for byte in range(256):
        if byte in plain:
            names[byte] = chr(byte)
        else:
            names[byte] = chr(more)
            more += 1
    return [names[byte] for byte in range(256)]


class Model:
    """Metadata and tensors, in the order in which they are written."""

    def __init__(self, arch: str, seed: int) -> None:
        self.arch = arch
        self.random = random.Random(seed)
        self.metadata: List[bytes] = []
        self.tensors: List[Tuple[str, Sequence[int], int, float]] = []
        self.pool = [self.random.gauss(0, 1) for _ in range(POOL)]
        self.put("general.architecture", arch)
        self.put("general.name", "random")

    def put(self, key: str, value: Union[str, bool, int, float]) -> None:
        if isinstance(value, str):
            body = struct.pack("<I", STRING) + string(value)
        elif isinstance(value, bool):
            body = struct.pack("<I?", BOOL, value)
        elif isinstance(value, int):
            body = struct.pack("<II", U32, value)
        else:
            body = struct.pack("<If", FLOAT, value)
        self.metadata.append(string(key) + body)

    def set(self, key: str, value: Union[str, bool, int, float]) -> None:
        self.put(f"{self.arch}.{key}", value)

    def put_array(self, key: str, kind: int, values: Sequence[Union[str, int]]) -> None:
        items = b"".join(string(v) if isinstance(v, str) else struct.pack("<i", v) for v in values)
        self.metadata.append(string(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + items)

    def weights(self, name: str, shape: Sequence[int], std: float) -> None:
        self.tensors.append((name, shape, F16, std))

    def numbers(self, name: str, shape: Sequence[int], value: float = 1.0) -> None:
        """Of one value, in full precision: norms and the like."""
        self.tensors.append((name, shape, F32, value))

    def data(self, shape: Sequence[int], kind: int, value: float) -> bytes:
        n = 1
        for size in shape:
            n *= size
        if kind == F32:
            return struct.pack("<f", value) * n
        start = self.random.randrange(POOL)
        scaled = struct.pack(f"<{POOL}e", *[v * value for v in self.pool])
        turned = scaled[2 * start:] + scaled[:2 * start]
        return (turned * (n // POOL + 1))[:2 * n]

    def write(self, file: BinaryIO) -> None:
        infos, offset = [], 0
        for name, shape, kind, _ in self.tensors:
            n = 4 if kind == F32 else 2
            for size in shape:
                n *= size
            infos.append(string(name) + struct.pack("<I", len(shape)) +
                         struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset))
            offset += -(-n // ALIGN) * ALIGN
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata)))
        file.write(b"".join(self.metadata) + b"".join(infos))
        file.write(bytes(-file.tell() % ALIGN))
        for _, shape, kind, value in self.tensors:
            data = self.data(shape, kind, value)
            file.write(data + bytes(-len(data) % ALIGN))


def put_tokenizer(model: Model) -> int:
    """Return: number of tokens."""
    tokens = byte_names() + SPECIAL
    model.put("tokenizer.ggml.model", "gpt2")
    model.put("tokenizer.ggml.pre", "gpt-2")
    model.put_array("tokenizer.ggml.tokens", STRING, tokens)
    model.put_array("tokenizer.ggml.token_type", I32, [1] * 256 + [3] * len(SPECIAL))
    model.put_array("tokenizer.ggml.merges", STRING, [])
    model.put("tokenizer.ggml.bos_token_id", 256)
    model.put("tokenizer.ggml.eos_token_id", 259)
    model.put("tokenizer.ggml.add_bos_token", False)
    model.put("tokenizer.chat_template", TEMPLATE)
    return len(tokens)


def put_attention(model: Model, options: argparse.Namespace, block: str) -> None:
    width, query = options.width, options.heads * options.head_dim
    kv = options.kv_heads * options.head_dim
    std = width ** -0.5
    model.numbers(block + "attn_norm.weight", [width])
    # Twice as large: attention that looks at everything alike would tell nothing about K.
    model.weights(block + "attn_q.weight", [width, query], 2 * std)
    model.weights(block + "attn_k.weight", [width, kv], 2 * std)
    model.weights(block + "attn_v.weight", [width, kv], std)
    model.weights(block + "attn_output.weight", [query, width], query ** -0.5)
    if model.arch == "qwen2vl":
        for name, size in (("q", query), ("k", kv), ("v", kv)):
            model.numbers(f"{block}attn_{name}.bias", [size], 0.0)
    if model.arch == "gemma3":
        model.numbers(block + "post_attention_norm.weight", [width])
        model.numbers(block + "post_ffw_norm.weight", [width])
        model.numbers(block + "attn_q_norm.weight", [options.head_dim])
        model.numbers(block + "attn_k_norm.weight", [options.head_dim])
    model.numbers(block + "ffn_norm.weight", [width])
    model.weights(block + "ffn_gate.weight", [width, options.inner], std)
    model.weights(block + "ffn_up.weight", [width, options.inner], std)
    model.weights(block + "ffn_down.weight", [options.inner, width], options.inner ** -0.5)


def put_state_space(model: Model, options: argparse.Namespace, block: str) -> None:
    width, inner, state, rank = options.width, 2 * options.width, 16, 16
    model.numbers(block + "attn_norm.weight", [width])
    model.weights(block + "ssm_in.weight", [width, 2 * inner], width ** -0.5)
    model.numbers(block + "ssm_conv1d.weight", [4, inner], 0.25)
    model.numbers(block + "ssm_conv1d.bias", [inner], 0.0)
    model.weights(block + "ssm_x.weight", [inner, rank + 2 * state], inner ** -0.5)
    model.weights(block + "ssm_dt.weight", [rank, inner], rank ** -0.5)
    model.numbers(block + "ssm_dt.bias", [inner], 0.1)
    model.numbers(block + "ssm_a", [state, inner], -1.0)
    model.numbers(block + "ssm_d", [inner], 1.0)
    model.weights(block + "ssm_out.weight", [inner, width], inner ** -0.5)


def put_settings(model: Model, options: argparse.Namespace, vocabulary: int) -> None:
    model.set("context_length", options.context)
    model.set("embedding_length", options.width)
    model.set("block_count", options.layers)
    model.set("vocab_size", vocabulary)
    model.set("attention.layer_norm_rms_epsilon", 1e-5)
    if options.arch == "mamba":
        model.set("feed_forward_length", 0)
        model.set("attention.head_count", 0)
        model.set("ssm.conv_kernel", 4)
        model.set("ssm.inner_size", 2 * options.width)
        model.set("ssm.state_size", 16)
        model.set("ssm.time_step_rank", 16)
        return
    model.set("feed_forward_length", options.inner)
    model.set("attention.head_count", options.heads)
    model.set("attention.head_count_kv", options.kv_heads)
    model.set("attention.key_length", options.head_dim)
    model.set("attention.value_length", options.head_dim)
    model.set("rope.dimension_count", options.head_dim)
    model.set("rope.freq_base", options.rope_base)
    if options.long_rope:
        # Positions turn by one table up to that many tokens of context, by another beyond.
        model.set("rope.scaling.type", "longrope")
        model.set("rope.scaling.original_context_length", options.long_rope)
    if options.arch == "gemma3":
        model.set("attention.sliding_window", options.window)
    if options.arch == "qwen2vl":
        half = options.head_dim // 2
        model.put_array("qwen2vl.rope.dimension_sections", I32, [half // 4, half * 3 // 8, half * 3 // 8, 0])


def build(options: argparse.Namespace) -> Model:
    model = Model(options.arch, options.seed)
    model.put("general.file_type", 1)
    vocabulary = put_tokenizer(model)
    put_settings(model, options, vocabulary)
    model.weights("token_embd.weight", [options.width, vocabulary], 1.0)
    model.numbers("output_norm.weight", [options.width])
    model.weights("output.weight", [options.width, vocabulary], options.width ** -0.5)
    if options.long_rope:
        model.numbers("rope_factors_long.weight", [options.head_dim // 2], 4.0)
        model.numbers("rope_factors_short.weight", [options.head_dim // 2], 1.0)
    for layer in range(options.layers):
        if options.arch == "mamba":
            put_state_space(model, options, f"blk.{layer}.")
        else:
            put_attention(model, options, f"blk.{layer}.")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny model with random weights.")
    parser.add_argument("out")
    parser.add_argument("--arch", default="llama", choices=["llama", "gemma3", "qwen2vl", "mamba"])
    parser.add_argument("--seed", type=int, default=1)
    for name, value in (("layers", 3), ("width", 256), ("heads", 4), ("kv-heads", 2), ("head-dim", 64),
                        ("inner", 512), ("context", 16384), ("window", 32), ("long-rope", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--rope-base", type=float, default=10000.0)
    options = parser.parse_args()
    with open(options.out, "wb") as file:
        build(options).write(file)


if __name__ == "__main__":
    main()
