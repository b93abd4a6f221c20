"""The examples in the READMEs run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "softmetal/README.md", "softcoreml/README.md", "lbrx/README.md"]
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_print_what_follows_them(page):
    """The output is in a text block, or in a comment behind each `print`."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    for block, text in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        promised = re.findall(r"^ *print\(.*\)\s+# (.*)$", block, re.MULTILINE)
        assert done.stdout.splitlines() == (text.splitlines() or promised)
