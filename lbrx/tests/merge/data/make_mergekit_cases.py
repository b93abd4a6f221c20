"""Stores what mergekit makes of the cases in mergekit_cases.py.

python lbrx/tests/merge/data/make_mergekit_cases.py    # with mergekit 0.1.5, safetensors, ml_dtypes
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import yaml
from safetensors.numpy import save_file

sys.path.append(str(Path(__file__).parent.parent))
import mergekit_cases as cases

HERE = Path(__file__).parent


def main() -> None:
    stored: dict[str, np.ndarray] = {}
    for dtype, names in ((np.float32, [*cases.CASES]), (ml_dtypes.bfloat16, cases.HALVES)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cases.write(folder, cases.inputs(), dtype)
            for case in names:
                given = {**cases.placed(cases.CASES[case], folder), "dtype": np.dtype(dtype).name}
                print(yaml.safe_dump(given), flush=True)
                for tensor, values in cases.by_mergekit(given, folder / "merged").items():
                    stored[f"{np.dtype(dtype).name}/{case}/{tensor}"] = values
    save_file(stored, HERE / "mergekit_cases.safetensors")


if __name__ == "__main__":
    main()
