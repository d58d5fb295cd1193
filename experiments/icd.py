"""Train on ICD-10-CM at three depths: blocks (319 labels), categories (2,237) and full (98,505 labels).

Training texts are the official descriptions of all codes; dev and test are their inclusion terms. There are two
commands, because only the first needs the package with the codes:
`python experiments/icd.py full --prepare DIR`, then
`python experiments/icd.py full --data DIR [--model hill] [--out FILE.json] [--set group.key=value ...]`.
Settings are those of hill/research/settings/icd/MODEL.toml.
"""

import argparse
import json
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from hill.classifier import GROUPS, HillClassifier
from hill.data import Documents, read_data
from hill.data.icd import icd_all, icd_taxonomy
from hill.research.rows import PUBLISHED
from hill.settings import read_settings
from hill.taxonomy import Taxonomy, read_taxonomy
from hill.train import Epoch, Step
from hill.train.progress import training_progress

SETTINGS = PUBLISHED / "icd"
DEPTHS = {"blocks": {}, "categories": {"categories": True}, "full": {"codes": True}}
MODELS = ("hill", "flat", "linear")
SHOWN = ("micro_f1", "macro_f1", "hierarchical_f1", "path_micro_f1", "violations", "precision_at_1", "precision_at_5")


def prepare(depth: str, folder: Path) -> None:
    """Write a data folder: the taxonomy as a table, and for each document its most specific label."""
    taxonomy = icd_taxonomy(**DEPTHS[depth])
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["id\tname\tparent", *("\t".join((each.id, each.name, "|".join(each.parents))) for each in taxonomy)]
    (folder / "taxonomy.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for split, documents in icd_all(taxonomy).items():
        write_split(documents, taxonomy, folder / f"{split}.jsonl")
        print(f"{split:6} {len(documents):7,} documents", flush=True)
    print(f"{len(taxonomy):,} labels in {len(taxonomy.levels)} levels")


def write_split(documents: Documents, taxonomy: Taxonomy, file: Path) -> None:
    """Write one document per line; ancestors are added when the file is read."""
    starts, rows = documents.labels.indptr.tolist(), documents.labels.indices
    with file.open("w", encoding="utf-8") as lines:
        for number, text in enumerate(documents.texts):
            own = rows[starts[number] : starts[number + 1]]
            label = taxonomy[int(own[taxonomy.depth[own].argmax()])].id
            record = {"id": documents.ids[number], "text": text, "labels": [label]}
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")


def train(depth: str, model: str, folder: Path, assignments: list[str]) -> dict[str, Any]:
    """Train, evaluate on test, save and load; returns metrics, times and memory."""
    settings = read_settings(SETTINGS / f"{model}.toml", assignments, GROUPS)
    assert settings["model"].pop("name") == model
    taxonomy = read_taxonomy(folder / "taxonomy.tsv")
    data = read_data(folder, taxonomy)
    classifier = HillClassifier(taxonomy, model, settings, preset=None)
    curve, steps, start = [], 0, time.perf_counter()
    with TemporaryDirectory() as scratch, training_progress(classifier.train_config.metric) as bar:
        for report in classifier.training(data, Path(scratch) / "run"):
            bar.show(report)
            steps += isinstance(report, Step)
            if isinstance(report, Epoch):
                curve.append({key: round(report.metrics[key], 4) for key in SHOWN[:3] if key in report.metrics})
        trained = time.perf_counter()
        test = classifier.evaluate(data["test"], include_seen=True)
        asked = time.perf_counter()
        classifier.save(Path(scratch) / "model")
        size = sum(file.stat().st_size for file in (Path(scratch) / "model").rglob("*") if file.is_file())
        saved = time.perf_counter()
        HillClassifier.load(Path(scratch) / "model")
        loaded = time.perf_counter()
    return {
        "what": f"ICD-10-CM, {depth}: {len(taxonomy):,} labels, {len(data['train']):,} descriptions to train on, "
        f"{len(data['test']):,} inclusion terms as test, read once",
        "depth": depth,
        "model": model,
        "settings": classifier.settings() | {"model": classifier.settings()["model"] | {"encoder": "minilm"}},
        "dev_curve_at_0.5": curve,
        "test": {key: value for key, value in test.items() if key != "levels"},
        "levels": test["levels"],
        "seconds": {
            "training, dev included": round(trained - start, 1),
            "a document of test": round((asked - trained) / len(data["test"]), 5),
            "save": round(saved - asked, 1),
            "load": round(loaded - saved, 1),
        },
        "steps": steps,
        "mib": {"folder": round(size / 2**20), **memory()},
        "machine": machine(),
    }


def memory() -> dict[str, int]:
    """The peak memory of this process and of the GPU, if there is one, in MiB."""
    found = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.max_memory_allocated() // 2**20
    return found


def machine() -> str:
    """The device and the versions of torch and transformers."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{device}, torch {torch.__version__}, transformers {transformers.__version__}"


def main() -> None:
    """Prepare a folder, or train on one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("depth", choices=list(DEPTHS))
    parser.add_argument("--prepare", type=Path, help="write the data to this folder and exit")
    parser.add_argument("--data", type=Path, help="train on the data of this folder")
    parser.add_argument("--model", choices=MODELS, default="hill")
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    parser.add_argument("--set", nargs="+", action="extend", default=[], help="settings, such as train.epochs=1")
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare(arguments.depth, arguments.prepare)
        return
    if not arguments.data:
        parser.error("give --prepare DIR, or --data DIR with a folder that was prepared")
    result = train(arguments.depth, arguments.model, arguments.data, arguments.set)
    for key in SHOWN:
        print(f"{key:18}{100 * result['test'][key]:7.2f}")
    print(json.dumps({key: result[key] for key in ("seconds", "steps", "mib", "machine")}))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
