"""Predict with an exported model from numpy, onnxruntime and tokenizers alone: no torch, no hill.

hill export runs/mine --onnx runs/mine-onnx
python predict_onnx.py runs/mine-onnx "a text" "another text"
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, texts = Path(sys.argv[1]), sys.argv[2:]
config, taxonomy = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("config", "taxonomy"))
if config["plain"] is None:
    sys.exit(f"it is an ensemble or decodes with strategy {config['decode']['strategy']}; use: hill predict {folder}")
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_truncation(config["max_length"])
tokenizer.enable_padding(pad_id=config["pad"])
encodings = tokenizer.encode_batch(texts)
ids, mask = (np.array([getattr(e, name) for e in encodings]) for name in ("ids", "attention_mask"))
session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
scores = session.run(None, {"ids": ids, "mask": mask})[0]  # (texts, labels), float32

chosen = scores > np.array(config["plain"]["thresholds"], dtype=np.float32)
row = {label["id"]: number for number, label in enumerate(taxonomy["labels"])}
edges = [(row[label["id"]], row[parent]) for label in taxonomy["labels"] for parent in label["parents"]]
while config["plain"]["spread"] != "off":  # until all that is chosen is consistent
    before = chosen.copy()
    for child, parent in edges:
        if config["plain"]["spread"] == "up":
            chosen[:, parent] |= chosen[:, child]
        else:
            chosen[:, child] &= chosen[:, parent]
    if np.array_equal(before, chosen):
        break
for text, found in zip(texts, chosen, strict=True):
    labels = [label for label, number in row.items() if found[number]]
    sys.stdout.write(json.dumps({"text": text, "labels": labels}, ensure_ascii=False) + "\n")
