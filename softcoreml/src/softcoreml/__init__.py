"""Core ML in software: reads ML programs and runs them with NumPy as the definition."""
