"""Tokenizers in files: Hugging Face's, SentencePiece's and GGUF's."""
