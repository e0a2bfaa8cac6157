#!/usr/bin/env python3
"""PyTorch's bf16 matmul and causal attention on the CPU, in the shapes of bench_matmul and bench_attention.

    python3 bench/peers/torch_kernels.py [--threads 2] [--repetitions 6]

Random data; best of the repetitions, GFLOP/s. Attention counts the scores that are seen, its backward 2.5 times as many.
Keys have as many heads as queries: scaled_dot_product_attention takes no groups here. Needs torch.
"""
import argparse
import time

import torch
import torch.nn.functional as functional


def best_seconds(repetitions, call):
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    random = lambda *shape: torch.randn(*shape).bfloat16()
    for m, n, k in [(2048, 2048, 2048), (2048, 5632, 2048), (2048, 2048, 5632)]:
        x, w, dy = random(m, k), random(n, k), random(m, n)
        rates = [2e-9 * m * n * k / best_seconds(arguments.repetitions, call)
                 for call in (lambda: x @ w.t(), lambda: dy @ w, lambda: dy.t() @ x)]
        print(f"matmul {m} {n} {k}: forward {rates[0]:.0f}, input {rates[1]:.0f}, weight {rates[2]:.0f}")
    for name, batch, heads, tokens, size in [("gpt2-124m", 1, 12, 1024, 64), ("llama-1b", 2, 32, 1024, 64),
                                             ("llama-7b", 1, 32, 2048, 128)]:
        q, k, v = (random(batch, heads, tokens, size).requires_grad_() for _ in range(3))
        d_out = random(batch, heads, tokens, size)
        gflop = 2e-9 * batch * heads * tokens * tokens * size
        attend = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        forward = best_seconds(arguments.repetitions, attend)
        backward = float("inf")
        for _ in range(arguments.repetitions):
            out = attend()
            backward = min(backward, best_seconds(1, lambda: out.backward(d_out)))
        print(f"attention {name}: forward {gflop / forward:.0f}, backward {2.5 * gflop / backward:.0f}")


if __name__ == "__main__":
    main()
