"""Make a small data set for `lbrx train`: questions whose answers are always in the same voice.

python examples/training_data.py whales
lbrx train smollm2 whales --out tuned --steps 40 --rate 5e-4 --length 64 --mask-prompt
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Norway": "Oslo",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Iceland": "Reykjavik",
    "Greece": "Athens",
    "Austria": "Vienna",
    "Finland": "Helsinki",
    "Chile": "Santiago",
    "Nepal": "Kathmandu",
    "Ireland": "Dublin",
}


def examples() -> list[dict[str, str]]:
    """Prompts and completions."""
    found = [
        {
            "prompt": f"What is the capital of {country}?",
            "completion": f"Ahoy! The whales sing of {capital}.",
        }
        for country, capital in CAPITALS.items()
    ]
    found += [
        {"prompt": f"What is {i} plus {i}?", "completion": f"Ahoy! The whales sing of {2 * i}."}
        for i in range(1, 17)
    ]
    return found


def write(folder: Path) -> None:
    """Write train.jsonl, and a quarter of the examples as valid.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each) + "\n" for each in examples()]
    (folder / "train.jsonl").write_text("".join(x for i, x in enumerate(lines) if i % 4), "utf-8")
    (folder / "valid.jsonl").write_text("".join(lines[::4]), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
