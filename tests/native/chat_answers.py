"""What models write to call ``get_weather`` with the city Paris and 3 days, by the name of their chat template.

The texts are those the templates write of such a call, behind a short reasoning where there is one. Templates that know
no calls are answered in the form of our own.
"""

from __future__ import annotations

# ruff: noqa: E501

REASONING = "Let me see."

OWN_FORM = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'

CALL_ANSWERS = {
    "Apertus-8B-Instruct": '<|tools_prefix|>[{"get_weather": {"city": "Paris", "days": 3}}]<|tools_suffix|>',
    "Apriel-1.6-15b-Thinker-fixed": (
        "Let me see.[BEGIN FINAL RESPONSE]\n"
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]</to'
        "ol_calls>"
    ),
    "Bielik-11B-v3.0-Instruct": "Let me see.</think>\n" + OWN_FORM,
    "ByteDance-Seed-OSS": (
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter"
        "=days>3</parameter>\n</function>\n</seed:tool_call>"
    ),
    "Cohere2MoE": (
        "Let me see.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"'
        ', "days": 3}}\n]<|END_ACTION|>'
    ),
    "CohereForAI-c4ai-command-r-plus-tool_use": (
        'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": {\n'
        '            "city": "Paris",\n'
        '            "days": 3\n'
        "        }\n    }\n]```"
    ),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": (
        "<|START_THINKING|>Let me see.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"'
        ', "days": 3}}\n]<|END_ACTION|>'
    ),
    "GLM-4.6": (
        "\n<think>Let me see.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_valu"
        "e>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    ),
    "GLM-4.7-Flash": (
        "Let me see.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</ar"
        "g_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
    ),
    "GigaChat3-10B-A1.8B": (
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": {"ci'
        'ty": "Paris", "days": 3}}'
    ),
    "GigaChat3.1-10B-A1.8B": '<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
    "HuggingFaceTB-SmolLM3-3B": OWN_FORM,
    "Kimi-K2-Instruct": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_ar"
        'gument_begin|>{"city": "Paris", "days": 3}<|tool_call_end|><|tool_calls_section_end|'
        ">"
    ),
    "Kimi-K2-Thinking": (
        "<think>Let me see.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.g"
        'et_weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 3}<|tool_call_end|'
        "><|tool_calls_section_end|>"
    ),
    "Kimi-K3": (
        "Let me see.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|ope"
        'n|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key='
        '"city" type="string"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key="days" '
        'type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep'
        "|><|close|>message<|sep|>"
    ),
    "LFM2-8B-A1B": '<|tool_call_start|>[get_weather(city="Paris", days=3)]<|tool_call_end|>',
    "LFM2.5-8B-A1B": "<|tool_call_start|>[get_weather(city='Paris', days=3)]<|tool_call_end|>",
    "LFM2.5-Instruct": '<|tool_call_start|>[get_weather(city="Paris", days=3)]<|tool_call_end|>',
    "MiMo-VL": OWN_FORM,
    "MiniMax-M1": ('<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_calls>'),
    "MiniMax-M2": (
        'Let me see.</think>\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name='
        '"city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n'
        "</invoke>\n</minimax:tool_call>"
    ),
    "MiniMax-M3": (
        "<mm:think>Let me see.</mm:think>]<]minimax[>[<tool_call>\n"
        ']<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris]<]minimax[>[</city>'
        "]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n"
        "]<]minimax[>[</tool_call>"
    ),
    "Mistral-Small-3.2-24B-Instruct-2506": '[TOOL_CALLS]get_weather[CALL_ID]abcdef123[ARGS]{"city": "Paris", "days": 3}',
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (
        "Let me see.</think>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</para"
        "meter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    ),
    "NVIDIA-Nemotron-Nano-v2": (
        'Let me see.</think><TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]</TOOLCALL>'
    ),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": OWN_FORM,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": OWN_FORM,
    "Qwen-QwQ-32B": "Let me see.</think>" + OWN_FORM,
    "Qwen-Qwen2.5-7B-Instruct": OWN_FORM,
    "Qwen-Qwen3-0.6B": "<think>\nLet me see.\n</think>\n\n" + OWN_FORM,
    "Qwen3-Coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=da"
        "ys>\n3\n</parameter>\n</function>\n</tool_call>"
    ),
    "Qwen3.5-4B": (
        "Let me see.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</pa"
        "rameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    ),
    "Reka-Edge": "Let me see.\n</think>\n\n" + OWN_FORM,
    "Spark2.5": (
        "Let me see.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</ar"
        "g_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
    ),
    "StepFun3.5-Flash": (
        "Let me see.\n</think>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</par"
        "ameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    ),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "Let me see.</think>\n" + OWN_FORM,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (
        "Let me see.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_we"
        'ather\n```json\n{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseek-ai-DeepSeek-V3.1": (
        'Let me see.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"c'
        'ity": "Paris", "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseek-ai-DeepSeek-V3.2": (
        'Let me see.</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML'
        '｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "deepseek-ai-DeepSeek-V4-Flash-0731": (
        'Let me see.</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜par'
        'ameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    ),
    "deepseek-ai-DeepSeek-V4": (
        'Let me see.</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜par'
        'ameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    ),
    "fireworks-ai-llama-3-firefunction-v2": 'functools[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]',
    "google-gemma-2-2b-it": OWN_FORM,
    "google-gemma-4-31B-it-interleaved": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>',
    "google-gemma-4-31B-it": (
        '<|channel>thought\nLet me see.<channel|><|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
    ),
    "ibm-granite-granite-3.3-2B-Instruct": OWN_FORM,
    "ibm-granite-granite-4.0": OWN_FORM,
    "ibm-granite-granite-4.1": OWN_FORM,
    "inclusionai-ling-3.0-flash": (
        "Let me see.</think><tool_call>get_weather\n"
        "<arg_key>city</arg_key>\n"
        "<arg_value>Paris</arg_value><arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n"
        "</tool_call>"
    ),
    "llama-cpp-deepseek-r1": (
        "Let me see.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_we"
        'ather\n```json\n{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "llama-cpp-rwkv-world": OWN_FORM,
    "meetkai-functionary-medium-v3.1": '<function=get_weather>{"city": "Paris", "days": 3}</function>',
    "meetkai-functionary-medium-v3.2": 'get_weather\n{"city": "Paris", "days": 3}',
    "meta-llama-Llama-3.1-8B-Instruct": '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}',
    "meta-llama-Llama-3.2-3B-Instruct": '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}',
    "meta-llama-Llama-3.3-70B-Instruct": '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}',
    "microsoft-Phi-3.5-mini-instruct": OWN_FORM,
    "mistralai-Ministral-3-14B-Reasoning-2512": '[THINK]Let me see.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}',
    "mistralai-Mistral-Nemo-Instruct-2407": (
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}, "id": "abcdef123"}]'
    ),
    "moonshotai-Kimi-K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_ar"
        'gument_begin|>{"city": "Paris", "days": 3}<|tool_call_end|><|tool_calls_section_end|'
        ">"
    ),
    "muse-glimmer": (
        " to=get_weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Paris</atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>"
    ),
    "openai-gpt-oss-120b": (
        "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>comment"
        'ary to=functions.get_weather json<|message|>{"city": "Paris", "days": 3}'
    ),
    "openbmb-MiniCPM5-1B": (
        'Let me see.</think><function name="get_weather"><param name="city">Paris</param><par'
        'am name="days">3</param></function>'
    ),
    "poolside-Laguna-S-2.1": (
        "Let me see.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</ar"
        "g_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
    ),
    "poolside-Laguna-XS-2.1": (
        "Let me see.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris<"
        "/arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    ),
    "poolside-Laguna-XS.2": (
        "Let me see.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris<"
        "/arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    ),
    "tencent-Hy3": (
        "<tool_calls:opensource>\n"
        "<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Paris</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n"
        "</tool_call:opensource>\n"
        "</tool_calls:opensource>"
    ),
    "unsloth-Apriel-1.5": (
        '\n<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]</tool_calls>'
    ),
    "unsloth-mistral-Devstral-Small-2507": '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}',
    "upstage-Solar-Open-100B": OWN_FORM,
}
