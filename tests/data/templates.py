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
