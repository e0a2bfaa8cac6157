#!/usr/bin/env python3
"""Conversations that `sluice data tokenize --chat auto` has written, beside `transformers`: ids and masks, token by token.

    bench/peers/chat.py [N [SLUICE]]      N random conversations a template (default 300); SLUICE: the command

Needs transformers. The conversations, small tokenizers and templates are those of tests/fixtures/make_chat.py.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def read_tokens(path):
    """Documents of a token file of version 3 or 4, as lists of (token, counts)."""
    with open(path, "rb") as f:
        data = f.read()
    magic, version, width, _, count, documents, flags, _, _ = struct.unpack_from("<8sIIQQQQQQ", data)
    assert magic == b"SLUICTOK" and version in (3, 4) and flags == 1, (magic, version, flags)
    begin = 64 if version < 4 else 72
    tokens = struct.unpack_from(f"<{count}{ {1: 'B', 2: 'H', 4: 'I'}[width] }", data, begin)
    table = (begin + count * width + 7) // 8 * 8
    ends = struct.unpack_from(f"<{documents}Q", data, table)
    mask = data[table + documents * 8:]
    counts = [mask[i // 8] >> i % 8 & 1 for i in range(count)]
    return [list(zip(tokens[b:e], counts[b:e])) for b, e in zip((0,) + ends, ends)]


def main():
    number = sys.argv[1] if len(sys.argv) > 1 else "300"
    sluice = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "build/release/bin/sluice")
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        make = os.path.join(ROOT, "tests/fixtures/make_chat.py")
        subprocess.run([sys.executable, make, "--many", number, folder], check=True, stdout=subprocess.DEVNULL)
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".json"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                made = json.load(f)
            model = os.path.join(folder, made["template"])
            out = os.path.join(folder, "out.tokens")
            run = subprocess.run([sluice, "data", "tokenize", os.path.join(model, "chat.jsonl"), "--tokenizer", model,
                                  "--chat", "auto", "--output", out, "--json"], check=True, stdout=subprocess.PIPE)
            assert json.loads(run.stdout)["template"] == made["template"], run.stdout
            header = {t["content"]: t["id"] for t in made["added_tokens"]}.get("<|assistant|>")
            documents = read_tokens(out)
            assert len(documents) == len(made["cases"]), (len(documents), len(made["cases"]))
            ids = masks = tokens = 0
            for case, document in zip(made["cases"], documents):
                # Phi 3's header takes white space along that an answer begins with; the reference counts it then.
                wanted = [0 if i == header else int(m) for i, m in zip(case["ids"], case["mask"])]
                ids += [t for t, _ in document] != case["ids"]
                masks += [m for _, m in document] != wanted
                tokens += len(document)
            worst = max(worst, ids, masks)
            print(f"{made['template']:10}  {len(documents)} conversations, {tokens} tokens: "
                  f"{ids} with other ids, {masks} with another mask")
    sys.exit(1 if worst else 0)


if __name__ == "__main__":
    main()
