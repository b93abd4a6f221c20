"""Mistral: a Llama to llama.cpp, without the sliding window of the first ones."""

from dataclasses import replace

from lbrx.formats.architecture_tables import llama

ARCHITECTURE = replace(llama.ARCHITECTURE, model_type="mistral", class_name="MistralForCausalLM")
