"""Models of Qwen2's shape with random weights and a tokenizer of bytes, made without a network."""

from __future__ import annotations

from pathlib import Path

SIZES = {
    "0.5B": {
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "intermediate_size": 4864,
        "vocab_size": 32768,
    },
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 512,
    },
}
"""Heads are 64 wide, as engines want them."""
PAD, END = "<|endoftext|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model(folder: Path, size: str) -> Path:
    """Write a model of `SIZES` into ``folder`` as a Hugging Face folder, in bfloat16; each id of
    its vocabulary has a text. Returns the folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    shape = SIZES[size]
    words = [PAD, END, "<|im_start|>", *pre_tokenizers.ByteLevel.alphabet()]
    words += [f" w{number}" for number in range(len(words), shape["vocab_size"])]
    raw = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=["<|im_start|>"],
        chat_template=TEMPLATE,
    )
    config = Qwen2Config(
        **shape,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
