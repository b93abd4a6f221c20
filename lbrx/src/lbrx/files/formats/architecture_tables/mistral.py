"""Mistral: in GGUF a llama, without the sliding window of the first Mistral models."""

from dataclasses import replace

from lbrx.files.formats.architecture_tables import llama
from lbrx.files.formats.architecture_tables.table import register

ARCHITECTURE = register(
    replace(llama.ARCHITECTURE, model_type="mistral", class_name="MistralForCausalLM")
)
