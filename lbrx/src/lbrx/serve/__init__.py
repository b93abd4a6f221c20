"""An HTTP server for language models that speaks the APIs of OpenAI, Anthropic and Ollama.

It needs the packages of the extra `serve`, which only `app` and `running` import.
"""
