"""Writes the folder of a small model that no one has trained: byte-level tokens, random weights that are scaled so that its text
varies, a template for chats. Made here, the same each time; nothing is fetched.

    model.py FOLDER

Its KV is 32 KiB per token. Needs torch, safetensors and tokenizers: the Python of an installed engine has them.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

# What the tokenizer has learned its words from: it is in every copy and never changes.
TEXT = Path(__file__).resolve().parents[2] / "LICENSE"
SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
VOCABULARY = 2000
CONTEXT = 8192
TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(TEXT.read_text().splitlines(keepends=True), trainer)
    # Weights know VOCABULARY tokens, so each has a name.
    known = made.get_vocab_size()
    made.add_tokens([AddedToken(f"<{number}>", normalized=False) for number in range(known, VOCABULARY)])
    return made


def weights() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(7)
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    heads = CONFIG["num_attention_heads"] * CONFIG["head_dim"]

    def some(rows: int, columns: int, spread: float | None = None) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=random) * (columns**-0.5 if spread is None else spread)
        return drawn.to(torch.bfloat16).contiguous()

    def ones() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16)

    made = {
        "model.embed_tokens.weight": some(VOCABULARY, hidden, 1.0),
        "model.norm.weight": ones(),
        "lm_head.weight": some(VOCABULARY, hidden, 0.08),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        within = f"model.layers.{layer}."
        made[within + "input_layernorm.weight"] = ones()
        made[within + "post_attention_layernorm.weight"] = ones()
        for name, rows, columns in (("q", heads, hidden), ("k", heads, hidden), ("v", heads, hidden), ("o", hidden, heads)):
            made[within + f"self_attn.{name}_proj.weight"] = some(rows, columns)
        for name, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            made[within + f"mlp.{name}_proj.weight"] = some(rows, columns)
    return made


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    files = {
        "config.json": CONFIG,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    save_file(weights(), folder / "model.safetensors", {"format": "pt"})


main()
