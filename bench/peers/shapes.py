"""Shapes of presets (src/model/presets.cpp), as transformers' LlamaConfig names their parts."""


def _shape(vocabulary, hidden, layers, heads, kv_heads, ffn):
    return dict(vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, intermediate_size=ffn)


SHAPES = {
    "llama-tiny": _shape(256, 128, 4, 4, 2, 352),
    "llama-25m": _shape(256, 512, 8, 8, 8, 1344),
    "llama-125m": _shape(32000, 768, 12, 12, 12, 2048),
    "llama-1b": _shape(32000, 2048, 22, 32, 4, 5632),
    "llama-3b": _shape(32000, 3072, 28, 24, 24, 8704),
    "llama-7b": _shape(32000, 4096, 32, 32, 32, 11008),
}
