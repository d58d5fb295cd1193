"""Write ICD-10-CM blocks, the data of `hill demo`, as a folder: `python benchmarks/peers/prepare_icd.py DIR/icd`."""

import argparse
import json
from pathlib import Path

from hill.data.icd import icd_data, icd_taxonomy


def main() -> None:
    """Write taxonomy.tsv, train.jsonl, dev.jsonl and test.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    taxonomy = icd_taxonomy()
    lines = ["id\tname\tparent", *("\t".join((each.id, each.name, "|".join(each.parents))) for each in taxonomy)]
    (folder / "taxonomy.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for split, documents in icd_data(taxonomy).items():
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for number, text in enumerate(documents.texts):
                labels = taxonomy.decode(documents.labels[[number]].indices.tolist())
                file.write(json.dumps({"id": str(number), "text": text, "labels": labels}, ensure_ascii=False) + "\n")
        print(f"{split:6} {len(documents):7,} documents")


if __name__ == "__main__":
    main()
