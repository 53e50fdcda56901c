"""Chat templates of the kinds that are about, written for these tests, each with a twin that marks what is the assistant's.

The twin is the oracle: transformers computes the mask from its markers, and the code under test gets the template without them.
"""

from __future__ import annotations

import re

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CHATML_WITHOUT_PROMPT = CHATML.partition("{% if add_generation_prompt %}")[0]

SYSTEM_BY_DEFAULT = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are of use.<|im_end|>\n{% endif %}" + CHATML

# Strips the thinking of answers before the last question; the last answer gets a think block, empty if it has none.
THINKING = (
    "{% set last = namespace(ask=-1) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set last.ask = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}"
    "{% set said = message.content %}{% set thought = message.reasoning_content or '' %}"
    "{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>assistant\n"
    "{% generation %}{% if loop.index0 > last.ask and (loop.last or thought) %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ said }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% elif message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

# The prompt opens a think block, which turns that did not think do not have.
PROMPT_OPENS_THINKING = THINKING.partition("{% if enable_thinking is")[0] + "<think>\n{% endif %}"

HEADERS = (
    "{{ bos_token }}{% for message in messages %}<|head|>{{ message.role }}<|body|>\n\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}<|eot|>{% endgeneration %}"
    "{% else %}{{ message.content | trim }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|body|>\n\n{% endif %}"
)

# No role header of its own, no generation prompt, and the system text moves into the last question.
INSTRUCTIONS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set lead = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set lead = '' %}{% set turns = messages %}{% endif %}"
    "{% set last = namespace(ask=0) %}"
    "{% for message in turns %}{% if message.role == 'user' %}{% set last.ask = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in turns %}{% if message.role == 'user' %}[INST] "
    "{% if lead and loop.index0 == last.ask %}{{ lead }}\n\n{% endif %}{{ message.content }} [/INST]"
    "{% else %}{% generation %} {{ message.content | trim }}</s>{% endgeneration %}{% endif %}{% endfor %}"
)

# The header is ordinary text that anybody may write.
PLAIN_HEADERS = (
    "{% for message in messages %}{% if message.role == 'assistant' %}ASSISTANT:"
    "{% generation %} {{ message.content }}</s>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message.role | upper }}: {{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)

# The assistant names a channel before it speaks, and the very last turn ends in a token of its own.
CHANNELS = (
    "{% for message in messages %}<|head|>{{ message.role }}"
    "{% if message.role == 'assistant' %}{% generation %}<|channel|>final<|body|>{{ message.content }}"
    "{% if loop.last %}</s>{% else %}<|eot|>{% endif %}{% endgeneration %}"
    "{% else %}<|body|>{{ message.content }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant{% endif %}"
)

# No token ends a turn: only what was said is the assistant's.
WITHOUT_END = (
    "{% for message in messages %}{% if message.role == 'assistant' %}### Answer\n"
    "{% generation %}{{ message.content | trim }}{% endgeneration %}{{ '\n\n' }}"
    "{% else %}### Question\n{{ message.content | trim }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Answer\n{% endif %}"
)
_TOOLS_IN_SYSTEM = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
)
_CALL = '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'

# Thinking as in THINKING; calls behind the content; the answers of tools together in one user turn.
QWEN3 = (
    "{% set last = namespace(ask=-1) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set last.ask = loop.index0 %}{% endif %}{% endfor %}"
    + _TOOLS_IN_SYSTEM
    + "{% for message in messages %}{% if message.content is string %}{% set said = message.content %}{% else %}{% set said = '' %}{% endif %}"
    "{% if message.role == 'user' %}<|im_start|>user\n{{ said }}<|im_end|>\n"
    "{% elif message.role == 'assistant' %}{% set thought = message.reasoning_content or '' %}"
    "{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>assistant\n"
    "{% if loop.index0 > last.ask and (loop.last or thought) %}<think>\n{{ thought.strip('\n') }}\n</think>\n\n{{ said.lstrip('\n') }}"
    "{% else %}{{ said }}{% endif %}"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}{% if not loop.first or said %}{{ '\n' }}{% endif %}"
    + _CALL
    + "{% endfor %}{% endif %}<|im_end|>\n"
    "{% elif message.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ said }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The newline behind the header stands before each call, and the content beside calls is left out.
HERMES = (
    _TOOLS_IN_SYSTEM
    + "{% for message in messages %}{% if message.role == 'assistant' and message.tool_calls %}<|im_start|>assistant"
    "{% for call in message.tool_calls %}{{ '\n' }}" + _CALL + "{% endfor %}<|im_end|>\n"
    "{% elif message.role == 'tool' %}<|im_start|>tool\n<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n"
    "{% elif message.role != 'system' %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# One call a turn, in the place of the content; what a tool says is written as JSON under a role of its own.
LLAMA3 = (
    "{{ bos_token }}{% if tools %}<|head|>system<|body|>\n\n{% for tool in tools %}{{ tool | tojson }}\n\n{% endfor %}<|eot|>{% endif %}"
    "{% for message in messages %}{% if message.tool_calls %}"
    "{% if message.tool_calls | length != 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}<|head|>assistant<|body|>\n\n"
    '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot|>'
    "{% elif message.role == 'tool' %}<|head|>ipython<|body|>\n\n{{ message.content | tojson }}<|eot|>"
    "{% else %}<|head|>{{ message.role }}<|body|>\n\n{{ message.content | trim }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|body|>\n\n{% endif %}"
)

# No header; refuses the answer of a tool that nobody called, and calls without an id of nine letters.
MISTRAL = (
    "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }}[/INST]"
    "{% elif message.tool_calls %}[TOOL_CALLS] [{% for call in message.tool_calls %}"
    "{% if call.id is not defined or call.id | length != 9 %}{{ raise_exception('Tool call IDs should be nine letters long') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>"
    "{% elif message.role == 'tool' %}"
    "{% if message.tool_call_id is not defined or message.tool_call_id | length != 9 %}{{ raise_exception('Tool call IDs!') }}{% endif %}"
    '[TOOL_RESULTS] {"content": {{ message.content | tojson }}, "call_id": "{{ message.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %} {{ message.content | trim }}</s>{% endif %}{% endfor %}"
)

# Calls are written only where the content is null, as in DeepSeek's.
CALLS_FOR_NULL = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}{% if message.role == 'assistant' and message.content is none %}<|head|>assistant<|body|>"
    "{% for call in message.tool_calls %}<|channel|>{{ call.function.name }}<|body|>{{ call.function.arguments | tojson }}{% endfor %}</s>"
    "{% elif message.role == 'assistant' %}<|head|>assistant<|body|>{{ message.content }}</s>"
    "{% else %}<|head|>{{ message.role }}<|body|>{{ message.content }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|body|>{% endif %}"
)

# Thinking is left out of every answer, as in DeepSeek-R1's.
DROPS_THINKING = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% set said = message.content %}{% if '</think>' in said %}{% set said = said.split('</think>')[-1] | trim %}{% endif %}"
    "<|head|>assistant<|body|>{{ said }}</s>"
    "{% else %}<|head|>{{ message.role }}<|body|>{{ message.content }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|body|><think>\n{% endif %}"
)

ALL = {
    "chatml": CHATML,
    "chatml_without_prompt": CHATML_WITHOUT_PROMPT,
    "system_by_default": SYSTEM_BY_DEFAULT,
    "thinking": THINKING,
    "prompt_opens_thinking": PROMPT_OPENS_THINKING,
    "headers": HEADERS,
    "instructions": INSTRUCTIONS,
    "plain_headers": PLAIN_HEADERS,
    "channels": CHANNELS,
    "without_end": WITHOUT_END,
}


def unmarked(template: str) -> str:
    """The template without its generation markers."""
    return re.sub(r"\{% (end)?generation %\}", "", template)
