"""Chat templates by name, for `chat_template` of a configuration."""

from __future__ import annotations

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}
"""

MISTRAL = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}{{ ' ' + message['content'] | trim + eos_token }}
{%- else -%}{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}{%- endif -%}
{%- endfor -%}
"""

ALPACA = """\
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{{ message['content'] + '\\n\\n' }}
{%- elif message['role'] == 'assistant' -%}
{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}
{%- else -%}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '### Response:\\n' }}{%- endif -%}
"""

TEMPLATES = {"alpaca": ALPACA, "chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL}
