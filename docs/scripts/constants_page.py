"""The page of Metal's constants that softmetal has, by enumeration."""

from __future__ import annotations

from softmetal.api import enums

HEAD = """# Metal's constants

The enumerations of compute, with the names and values that PyObjC gives them. `import Metal` has
all of them.

"""


def generated() -> dict[str, str]:
    """The text by its place in docs/."""
    names = [name for name in vars(enums) if name.startswith("MTL")]
    kinds = sorted((name for name in names if callable(getattr(enums, name))), key=len)
    groups: dict[str, list[str]] = {}
    for name in names:
        if name not in kinds:
            fitting = [kind for kind in kinds if name.startswith(kind)]
            groups.setdefault(fitting[-1] if fitting else "Others", []).append(name)
    parts = []
    for kind, members in sorted(groups.items(), key=lambda item: (item[0] == "Others", item[0])):
        rows = "".join(f"| `{name}` | `{getattr(enums, name)!r}` |\n" for name in members)
        parts.append(f"## {kind}\n\n| constant | value |\n|---|---|\n{rows}")
    return {"reference/metal_constants.md": HEAD + "\n".join(parts)}
