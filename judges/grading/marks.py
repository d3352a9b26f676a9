"""Patterns of the marks by which model families write thinking, turns and tools into a prompt.

A tokenizer makes special tokens of them wherever they stand, so a text that holds one could end the
judge's turn and forge another. Marks are found by shape, which holds for families that nobody has
listed, and by name where the shape is also that of code, HTML or XML. Every branch consumes the
first characters of a mark, takes backslashes behind them for nothing, and looks no further ahead
than the mark goes, so that a backslash put there can be taken away again.
"""

from __future__ import annotations

from study.answers import NAMES

_BAR = "[|｜]"  # noqa: RUF001 - DeepSeek and Hunyuan write theirs with a full-width bar
_PREFIX = "(?:[a-z0-9_]{1,32}+:)?+"
"""A family's name before a mark, as in ``<seed:eos>``."""
_NUMBERED = (
    "(?:[a-z]{1,24}_){0,4}(?:special|reserved|unused?|extra_(?:id|token)|ctrl|madeupword)"
    "(?:_[a-z]{1,24}){0,3}_?[0-9]{1,6}"
)
"""Tokens that a family keeps for later or gave a meaning without a name: ``<SPECIAL_12>``."""
_PARTS = (
    "im|turn|bot|role|header_id|system|user|assistant|think|thought|reasoning|tool"
    "|tool_calls?(?:_section)?|action|plugin|vision|image|img|audio|video|vid|speech|sound"
)
_TAGS_BY_SHAPE = (
    rf"{_PREFIX}(?:bo[acdhips]|eo[a-eg-km-z]|eosys|so[hmpst]|unk|pad)",
    "(?:[a-z0-9]{1,24}+[_-]){1,6}+(?:[be]o[sdmt]|unk)",
    "(?:bos|eo[a-z]|pad|unk|mask|sep|cls)(?:_(?:token|id)|\\|[a-z][a-z0-9_-]{1,40})",
    _NUMBERED,
    "(?:start|begin(?:ning)?|end)[_-]of[_-][a-z_-]{1,40}",
    "(?:start|begin|end)of(?:text|turn|sentence|message|prompt|utterance|chunk|system|user)",
    rf"(?:{_PARTS})_(?:start|begin|end|sep)",
    "(?:start|begin|end)_(?:im|turn|role|header_id|think|assistant)",
    "(?-i:[a-z0-9]{1,16}_(?:User|Assistant|System|Human|Bot))",
    rf"{_PREFIX}(?:tool_(?:call|response|result|output)s?|available_tools|function_calls)",
    "(?:start|end)_function_[a-z]{1,16}",
    "fim[_-][a-z]{1,16}",
)
_TAGS_BY_NAME = (
    "(?-i:s|AI)|sys|用户",  # Llama 2, MiniCPM
    "(?-i:B_[A-Z]{2,6}|C_[AQ])",  # Baichuan-M1
    "_(?:user|bot|system|assistant|observation|start|end|pad)",  # TeleChat
    "(?:hy|longcat|osagent)_[a-z0-9_]{1,40}|sys_end",  # Hunyuan, LongCat, Kimi
    "(?:seed|minimax):[a-z0-9_]{1,40}",
    "arg_(?:key|value)|think_[a-z]{1,16}|(?-i:TOOLCALL)",  # GLM, Granite, Nemotron
    r"\[\\*+(?:[\w-]{0,32}▁[\w▁-]{1,40}|fim-[a-z]{1,16}|sys_[a-z0-9_]{1,60}"
    r"|PLHD[0-9]{1,4}_never_used)\]|[a-z_]{1,24}_never_used_[0-9a-f]{8,64}",  # Seed-Coder
    "file_sep|gh_stars|reponame|empty_output|issue_(?:start|comment|closed)",  # StarCoder
    "jupyter_(?:start|text|code|output|script|error)|commit_(?:before|after|msg)",
    "(?:im|img|image|audio|video|speech|sound)_?(?:patch|pad|soft_token|placeholder)",
    "fake_token_around_image|img_context|row_[0-9]{1,3}_col_[0-9]{1,3}|im_col|global-img",
    "tts_(?:pad|text_[a-z_]{1,16})|2mass|loc[0-9]{4}|seg[0-9]{3}",  # Qwen, Gemma
)
"""What stands alone between angle brackets, also behind a slash."""
_OPENERS = (
    "(?-i:cls|sep|mask|CLS|SEP|MASK|mask[:_][0-9]{1,3})>|(?:human|bot)>:"
    "|role>(?-i:HUMAN|ASSISTANT|SYSTEM|OBSERVATION)"
)
"""What does so too, and is a common element of HTML, SVG or XML in any other form."""
_SQUARE = (
    "think|gmask|(?-i:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT))"
    rf"|(?:start|end)_header_id|im_(?:start|end|sep)|control_[0-9]{{1,6}}|{_NUMBERED}"
)
_CAPITALS = (
    "[BE]O[STDPM]|PAD|UNK|CLS|SEP|MASK|sMASK|@[BE]OS@|(?:BEGIN|END) FINAL RESPONSE"
    "|ARGS|CALL_ID|MODEL_SETTINGS|IMG(?:_BREAK|_END)?|(?:BEGIN_)?AUDIO|TRANSCRIBE"
    "|PREFIX|SUFFIX|MIDDLE|STREAMING_(?:PAD|WORD)|(?:NEXT|REPEAT)_AUDIO_TEXT"
    "|REFERENCE_DOC_[0-9]{1,3}|(?:START|END)_(?:REF|DNA|SMILES|I_SMILES|AMINO|SUP|SUB)"
)
"""What stands between square brackets in capitals; in small letters it is the index of an array."""
_FALCON = "TITLE|ABSTRACT|INTRODUCTION|SUMMARY|COMMENT|ANSWER|QUESTION|DOMAIN|PREFIX|SUFFIX|MIDDLE"

FAMILY_MARKS = (
    # "<|word|>" and Gemma's "<|word>", "<word|>", and quotation mark between bars; "f <| x |> g" is
    # code. DeepSeek joins the words of its marks by lower blocks, K2 writes "<|ifm|word|>".
    rf"<{_BAR}(?=\\*+(?:/?+(?:ifm\|)?+[\w▁][\w▁@.:/+-]{{0,80}}+{_BAR}?+>|[\"']{_BAR}>"
    rf"|\s*+/?+\s*+[a-z]{{1,24}}+(?:_[a-z]{{1,24}}+){{1,4}}+\s*+{_BAR}>))"
    rf"|<(?=\\*+/?+[a-z][\w:-]{{1,40}}+{_BAR}>)"
    # "[|word|]"; one or two letters are a quantity, such as E[|X|].
    r"|\[(?=\\*+\|(?:[a-z][\w-]{2,40}+|ai)\|\])"
    rf"|<(?=\\*+\s*+/?+\s*+(?:{_PREFIX}(?:{NAMES})\b|(?:{'|'.join(_TAGS_BY_SHAPE)})>"
    rf"|(?:{'|'.join(_TAGS_BY_NAME)})>))"
    rf"|<(?=\\*+(?:{_OPENERS}))"
    rf"|\[(?=\\*+\s*+/?+\s*+(?:{_SQUARE})\s*+\])"
    rf"|\[(?=\\*+/?+(?-i:{_CAPITALS})\])"
    # Skywork's; behind a name it is an index.
    r"|\[(?<!\w.)(?=\\*+(?-i:USER)\])"
    r"|◁(?=\\*+\s*+/?+\s*+(?:think|\w{1,32}+▷))"
    # MiniMax has brackets that open and close the wrong way round: "]~b]", "[e~[", "]<]image[>[".
    r"|\](?=\\*+(?:~[a-z]\]|~![a-z]\[|![a-z]~\[|<\\*+\][\w .-]{1,40}+\[\\*+>\\*+\[))"
    r"|\[(?=\\*+[a-z]~\[)"
    rf"|>(?=\\*+>(?-i:{_FALCON}|UNUSED_[0-9]{{1,4}})<<)"
    r"|｜(?=\\*+DSML｜)"  # noqa: RUF001
)
"""Branches of a pattern that takes capitals and small letters for the same."""
