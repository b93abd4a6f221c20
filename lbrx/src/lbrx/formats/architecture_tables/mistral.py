"""Mistral: a Llama to llama.cpp, without the sliding window of the first ones."""

from dataclasses import replace

from lbrx.formats.architecture_tables import llama
from lbrx.formats.architecture_tables.table import register

ARCHITECTURE = register(
    replace(llama.ARCHITECTURE, model_type="mistral", class_name="MistralForCausalLM")
)
