"""Opens the checkpoint of transformer.cpp and lets its model, written in Python, write numbers backwards.

    python open_checkpoint.py CHECKPOINT.safetensors
"""

import sys

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

DIGITS, WIDTH, HEADS, TOKENS = 5, 48, 4, 11


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (each.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(2 * DIGITS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, rows):
        return self.head(self.norm(self.blocks(self.tokens(rows) + self.places(torch.arange(rows.shape[1])))))


def main():
    model = Transformer()
    saved = load_file(sys.argv[1])
    model.load_state_dict({name.removeprefix("model."): array for name, array in saved.items() if name.startswith("model.")})
    numbers = torch.randint(10, (1000, DIGITS))
    rows = torch.cat([numbers, torch.full((1000, 1), 10), numbers.flip(1)], 1)
    with torch.no_grad():
        is_right = model(rows[:, :-1])[:, DIGITS:].argmax(-1).eq(rows[:, DIGITS + 1 :]).all(1)
    print(f"{100 * is_right.double().mean().item():.1f} % of new numbers are right")


if __name__ == "__main__":
    main()
