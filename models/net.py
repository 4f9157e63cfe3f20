"""A plain Llama in PyTorch: RMSNorm, RoPE (base 500,000 as in Llama 3), SwiGLU, grouped-query attention, tied embeddings."""

import math

import torch
from torch import nn
from torch.nn import functional as F

EPS = 1e-5
ROPE_BASE = 500_000.0


class Layer(nn.Module):
    def __init__(self, e, h, g, f, depth):
        super().__init__()
        self.h, self.g, self.d = h, g, e // h
        self.attn_norm = nn.Parameter(torch.ones(e))
        self.ffn_norm = nn.Parameter(torch.ones(e))

        def matrix(rows, columns, scale=1.0):
            return nn.Parameter(torch.randn(rows, columns) * scale / math.sqrt(columns))

        out = 1 / math.sqrt(2 * depth)
        self.qkv = matrix((h + 2 * g) * self.d, e)
        self.o = matrix(e, h * self.d, out)
        self.gate_up = matrix(2 * f, e)
        self.down = matrix(e, f, out)

    def forward(self, x, rope, past=None, mask=None):
        """The layer's output `[b, t, e]` and its rotated queries and keys `[b, h or g, t, d]`."""
        b, t, e = x.shape
        y = F.rms_norm(x, (e,), self.attn_norm, EPS)
        qkv = F.linear(y, self.qkv).view(b, t, self.h + 2 * self.g, self.d).transpose(1, 2)
        qk, v = qkv[:, : self.h + self.g], qkv[:, self.h + self.g :]
        cos, sin = rope
        a, c = qk.chunk(2, -1)
        qk = torch.cat((a * cos - c * sin, c * cos + a * sin), -1)
        q, k = qk[:, : self.h], qk[:, self.h :]
        kept = q, k
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = [k, v]
        rep = self.h // self.g
        k, v = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and t > 1)
        x = x + F.linear(y.transpose(1, 2).reshape(b, t, self.h * self.d), self.o)
        gate, up = F.linear(F.rms_norm(x, (e,), self.ffn_norm, EPS), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down), kept


class Llama(nn.Module):
    """Shape: `vocab`, `e` model dim, `h` heads, `g` KV heads, `f` FFN dim, `layers`."""

    def __init__(self, vocab, e=128, h=4, g=2, f=352, layers=4, context=4096):
        super().__init__()
        self.shape = dict(vocab=vocab, e=e, h=h, g=g, f=f, layers=layers, context=context)
        self.embed = nn.Parameter(torch.randn(vocab, e) * 0.7 / math.sqrt(e))
        self.layers = nn.ModuleList(Layer(e, h, g, f, layers) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(e))
        d = e // h
        frequencies = ROPE_BASE ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies[None]
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids, positions, past=None, mask=None, keep=()):
        """Final hidden states `[b, t, e]` of `ids: [b, t]` at `positions: [b, t]`; with the queries and keys of the
        layers in `keep`, if any."""
        rope = self.cos[positions][:, None], self.sin[positions][:, None]
        x = self.embed[ids]
        kept = []
        for index, layer in enumerate(self.layers):
            x, pair = layer(x, rope, None if past is None else past[index], mask)
            if index in keep:
                kept.append(pair)
        x = F.rms_norm(x, (x.shape[-1],), self.norm, EPS)
        return (x, kept) if keep else x

    def logits(self, x):
        return F.linear(x, self.embed)


def save(model, path, **notes):
    torch.save({"shape": model.shape, "state": model.state_dict(), "notes": notes}, path)


def load(path):
    saved = torch.load(path, weights_only=True)
    model = Llama(**saved["shape"])
    model.load_state_dict(saved["state"])
    return model, saved["notes"]


def grow(model, extra):
    """Adds layers that change nothing yet: copies of the last ones with output projections of zero."""
    layers = model.shape["layers"]
    grown = Llama(**{**model.shape, "layers": layers + extra})
    state = model.state_dict()
    for index in range(layers, layers + extra):
        for name in ("attn_norm", "ffn_norm", "qkv", "gate_up"):
            fresh = grown.layers[index].state_dict()[name]
            state[f"layers.{index}.{name}"] = fresh
        for name in ("o", "down"):
            state[f"layers.{index}.{name}"] = torch.zeros_like(grown.layers[index].state_dict()[name])
    grown.load_state_dict(state)
    return grown


def new_vocabulary(model, old, new):
    """The same body for another tokenizer: tokens of both vocabularies (token -> id) keep their embeddings, the
    others start as the mean embedding plus noise of the usual size."""
    state = model.state_dict()
    embed = state["embed"]
    fresh = embed.mean(0) + torch.randn(len(new), embed.shape[1]) * embed.std(0)
    for token, index in new.items():
        if token in old:
            fresh[index] = embed[old[token]]
    changed = Llama(**{**model.shape, "vocab": len(new)})
    changed.load_state_dict({**state, "embed": fresh})
    return changed


@torch.no_grad()
def seed_induction(model, match=25.0, note=3.0, copy_gain=4.0):
    """Starts the first three layers near an induction circuit; all of it goes on training.

    A shared direction of all embeddings lets the four heads of layer 0 look one to four tokens back and note what
    they saw in four subspaces; heads of layers 1 and 2 then compare the current token and the noted ones with what
    other places noted one step later, on the slow RoPE pairs, and copy the token that they find. What else adds to
    the residual stream starts at zero.
    """
    e, h, g = (model.shape[key] for key in ("e", "h", "g"))
    d, wide = e // h, 3 * e // 16
    half = d // 2
    basis = torch.linalg.qr(torch.randn(e - 1, e - 1))[0]
    basis = torch.cat((torch.zeros(1, e - 1), basis))  # Columns are orthogonal to the shared direction.
    model.embed[:, 0] = 0.2
    norm = model.embed.norm(dim=1).mean()
    shared = 0.2 * math.sqrt(e) / norm
    for layer in model.layers:
        layer.down.zero_()
        layer.o.zero_()

    # Subspace 0 is read from the token itself; subspace n notes the token n steps back.
    spaces = [basis[:, n * wide : (n + 1) * wide] for n in range(5)]
    q, k, v, o = parts(model, 0)
    frequencies = ROPE_BASE ** (-torch.arange(half) / half)
    strength = math.sqrt(8.0 * math.sqrt(d)) / shared * (frequencies > 0.02)
    k.zero_()
    k[:, :half, 0] = strength
    v[:, :wide] = spaces[0].T
    for head in range(h):
        back = 1 + head
        q[head] = 0
        q[head, :half, 0] = strength * (frequencies * back).cos()
        q[head, half:, 0] = -strength * (frequencies * back).sin()
        o[:, head, :wide] = spaces[back] * note * norm / math.sqrt(e)

    slow = torch.arange(half)[3 * half // 8 :]
    rows = torch.cat((slow, slow + half))
    gain = math.sqrt(match * math.sqrt(d) / len(rows))
    for index, depth in ((1, 2), (2, 3)):
        q, k, v, o = parts(model, index)
        for group in range(g):
            head = group * (h // g)
            q[head], k[group] = 0, 0
            for at, row in enumerate(rows):
                step, column = at % depth, (at // depth + group * d // 3) % wide
                q[head, row] = spaces[step][:, column] * gain
                k[group, row] = spaces[step + 1][:, column] * gain
            copy = torch.linalg.qr(torch.randn(e, d))[0]
            v[group] = copy.T
            o[:, head] = copy * norm / math.sqrt(e) * (copy_gain if index == 2 else 1.0)


def parts(model, index):
    """Views of a layer's attention matrices: q `[h, d, e]`, k and v `[g, d, e]`, o `[e, h, d]`."""
    e, h, g = (model.shape[key] for key in ("e", "h", "g"))
    heads = model.layers[index].qkv.view(h + 2 * g, e // h, e)
    return heads[:h], heads[h : h + g], heads[h + g :], model.layers[index].o.view(e, h, e // h)
