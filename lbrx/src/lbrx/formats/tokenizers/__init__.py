"""Tokenizers as files keep them: Hugging Face's, SentencePiece's and GGUF's."""
