"""The README's examples run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_python_blocks_print_what_their_comments_say():
    assert BLOCKS
    for block in BLOCKS:
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        promised = re.findall(r"^print\(.*\)\s+# (.*)$", block, re.MULTILINE)
        assert done.stdout.splitlines() == promised
