"""Language models as Core ML programs: exporting them, and reading prompts with them."""
