"""The pages of the Python reference: for each public name a line that mkdocstrings replaces by its
signature and docstring."""

from __future__ import annotations

from public_names import ReferencePage, pages

MODULE = "::: {}\n    options:\n      heading_level: 2\n      members: false\n"
NAME = "::: {}\n    options:\n      heading_level: {}\n{}"
METAL = "      show_root_full_path: false\n      show_if_no_docstring: true\n"

INTRODUCTIONS = {
    "tensor": "Tensors are values: no method changes its tensor. Methods that are operations of "
    "the table take part in [fusion](../../explanation/fusion.md).",
    "operations": "Operations of the table `lbrx.ops.TABLE`, which devices, methods and tests are "
    "built on. Most are also methods of `Tensor`.",
    "softmetal_metal": "The names of PyObjC's `Metal` and `MetalPerformanceShaders`, each with the "
    "selector of Metal that it stands for: what it does is in Apple's documentation of that "
    "selector. Where softmetal differs, the method says so; [deviations](../deviations.md) lists "
    "all differences.",
}


def markdown(page: ReferencePage) -> str:
    lines = [f"# {page.title}\n"]
    if page.file in INTRODUCTIONS:
        lines.append(f"{INTRODUCTIONS[page.file]}\n")
    options = METAL if page.file == "softmetal_metal" else ""
    for module, names in page.sections:
        if module:
            lines.append(MODULE.format(module))
        level = 3 if module else 2
        lines += [NAME.format(name, level, options) for name in names]
    return "\n".join(lines)


def generated() -> dict[str, str]:
    """The texts by their place in docs/."""
    return {f"reference/python/{page.file}.md": markdown(page) for page in pages()}
