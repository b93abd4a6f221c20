"""The README's examples run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README.read_text(), re.DOTALL)


def test_python_blocks_print_what_follows_them():
    """A text block with all of it, or a comment behind each `print`."""
    assert BLOCKS
    for block, text in BLOCKS:
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        promised = re.findall(r"^print\(.*\)\s+# (.*)$", block, re.MULTILINE)
        assert done.stdout.splitlines() == (text.splitlines() or promised)
