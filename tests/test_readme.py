"""The examples in the READMEs and on the pages of docs/ run as they are printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "softmetal/README.md",
    "softcoreml/README.md",
    "lbrx/README.md",
    "docs/index.md",
    "docs/start/linux.md",
    "docs/start/mac.md",
    "docs/tutorials/custom_kernel.md",
    "docs/tutorials/profile_and_fuse.md",
    "docs/howto/share_memory.md",
    "docs/howto/gradients.md",
    "docs/howto/extend.md",
    "docs/howto/layers.md",
    "docs/howto/mlx_kernels.md",
    "docs/howto/overlap.md",
    "docs/howto/choose_variants.md",
    "docs/explanation/fusion.md",
    "docs/explanation/memory.md",
    "docs/explanation/synchronization.md",
]
ELSEWHERE = {  # the tests of these pages
    "docs/howto/checking.md": "softmetal/tests/checking/test_docs.py",
    "docs/howto/formats.md": "lbrx/tests/formats/test_formats_docs.py",
    "docs/howto/merging.md": "lbrx/tests/merge/test_merging_page.py",
    "docs/howto/models.md": "lbrx/tests/models/test_models_page.py",
    "docs/howto/quantization.md": "lbrx/tests/quant/test_quant_docs.py",
    "docs/howto/serve_clients.md": "lbrx/tests/models/test_server_clients.py",
    "docs/softcoreml.md": "tests/test_documentation.py",
    "docs/video.md": "lbrx-video/tests/test_video_page.py",
    "docs/tutorials/continuous_integration.md": "tests/test_documentation.py",
}
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
END = "---- end of a block ----"
# One process for the blocks of a page, each with its own names.
RUN = f"""
import json, sys
for block in json.load(sys.stdin):
    exec(compile(block, "block", "exec"), {{"__name__": "__main__"}})
    print({END!r}, flush=True)
"""


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_print_what_follows_them(page):
    """The output is in a text block, or in a comment behind each `print`."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    given = json.dumps([block for block, _ in blocks])
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{END}\n")[:-1]
    for (block, text), output in zip(blocks, printed, strict=True):
        promised = re.findall(r"^ *(?:print\(.*)?\)\s+# (.*)$", block, re.MULTILINE)
        assert output.splitlines() == (text.splitlines() or promised)


def test_every_page_with_an_example_has_a_test():
    pages = (path for path in ROOT.glob("docs/**/*.md") if "reference" not in path.parts)
    found = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()}
    assert found - set(PAGES) == set(ELSEWHERE)
    assert all(Path(page).name in (ROOT / test).read_text() for page, test in ELSEWHERE.items())
