"""The training of the built-in model: tokenizer, batches, drills, optimiser, export. Most tests need torch."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

jinja2 = pytest.importorskip("jinja2")

from localchat.serving.models.catalog import DEMO_PATH  # noqa: E402
from tools.train_demo import batches, drills  # noqa: E402
from tools.train_demo import tokenizer as tokenizer_module  # noqa: E402
from tools.train_demo.config import TrainConfig  # noqa: E402
from tools.train_demo.data import (  # noqa: E402
    tool_calls,
    tool_schemas,
)
from tools.train_demo.data.mixture import dialogues  # noqa: E402
from tools.train_demo.data.sample_tools import SAMPLE_TOOLS  # noqa: E402
from tools.train_demo.data.source import Source  # noqa: E402
from tools.train_demo.dialogue import render  # noqa: E402

ROOT = Path(__file__).parents[1]


def rendered_text(dialogue):
    return "".join(segment.text for segment in render(dialogue))


@pytest.fixture(scope="module")
def tokenizer():
    texts = (rendered_text(dialogue) for dialogue in itertools.islice(dialogues(seed=1), 300))
    return tokenizer_module.train(texts, 900)


def decoded(tokenizer, ids):
    """The text of ids without special tokens."""
    letters = {letter: byte for byte, letter in enumerate(tokenizer_module.byte_letters())}
    return bytes(letters[letter] for i in ids for letter in tokenizer.tokens[i]).decode("utf-8")


@pytest.mark.parametrize(
    "text", ["Hello there, 12 dogs!", "ça va? 你好 \U0001f600", " \n\n  x\t", "<|im_start|>user"], ids=range(4)
)
def test_tokenizer_keeps_every_text(tokenizer, text):
    """Byte-level tokens represent any text, and plain text has no special tokens."""
    assert decoded(tokenizer, tokenizer.encode(text)) == text


def test_tokenizer_knows_special_tokens_in_templates(tokenizer):
    """Markers of turns and tags in rendered text are single tokens."""
    ids = tokenizer.encode_template("<|im_start|>user\nHi<|im_end|>")
    assert ids[0] == tokenizer.ids["<|im_start|>"]
    assert ids[-1] == tokenizer.ids["<|im_end|>"]


@pytest.mark.parametrize("value", ["weather", "Shafiol", "4821", "anna@test.org"])
def test_values_have_the_same_tokens_everywhere(tokenizer, value):
    """A value has the same tokens after a space, a quote and an underscore, so that a model can copy it."""
    ids = tokenizer.encode(value)
    for before in (" ", '"', "_", "\n"):
        assert tokenizer.encode(before + value)[-len(ids) :] == ids


def test_vocabulary_has_the_requested_size(tokenizer):
    """The embedding of the model has a row for each token."""
    assert len(tokenizer.tokens) == len(set(tokenizer.tokens)) == 900


def test_weights_of_outputs_and_prompts(tokenizer):
    """The tokens of an output and its end have weight one, the first three more, and those of prompts less."""
    batch = next(iter(batches.BatchStream(tokenizer, TrainConfig(seed=5, batch_tokens=2048, prompt_weight=0.1))))
    weights = np.zeros(batch.inputs.size)
    weights[batch.positions] = batch.weights
    weights = weights.reshape(batch.inputs.shape)
    end = tokenizer.ids["<|im_end|>"]
    assert batch.inputs.size <= max(2048, batch.inputs.shape[1])
    assert np.count_nonzero(batch.targets[batch.weights >= 1] == end) >= len(weights)
    assert set(batch.weights.round(3)) == {np.float32(1), np.float32(0.3), np.float32(TrainConfig.opening_weight)}
    for row in weights:
        openings = np.flatnonzero(row == TrainConfig.opening_weight)
        starts = [i for i in openings if row[i - 1] < 1]
        assert starts
        assert set(openings) == {j for i in starts for j in range(i, i + 3) if row[i : j + 1].min() >= 1}


@pytest.mark.parametrize("time", [1, 32, 128, 129, 300])
def test_attention_in_blocks_equals_attention_of_pytorch(time):
    """The result and the gradients are the same."""
    torch = pytest.importorskip("torch")
    from tools.train_demo.model import causal_attention

    torch.manual_seed(0)
    q, weights = (torch.randn(3, 4, time, 8) for _ in range(2))
    k, v = (torch.randn(3, 2, time, 8) for _ in range(2))
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    found = causal_attention(q * 8**-0.5, k, v)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(found, expected, atol=1e-5)
    pairs = zip(torch.autograd.grad(found, inputs, weights), torch.autograd.grad(expected, inputs, weights))
    assert all(torch.allclose(ours, theirs, atol=1e-4) for ours, theirs in pairs)


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling the model needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler emits warnings about its own code.
def test_fused_model_has_the_same_losses_and_gradients():
    """This holds at any length of the input."""
    torch = pytest.importorskip("torch")
    from tools.train_demo.config import ModelConfig
    from tools.train_demo.model import DemoModel

    config = ModelConfig(vocab_size=64, layers=2, width=32, heads=4, kv_heads=2, feed_forward=48)
    torch.manual_seed(0)
    plain, fused = DemoModel(config), DemoModel(config)
    fused.load_state_dict(plain.state_dict())
    fused.fuse()
    for time in (20, 33):
        ids, targets = torch.randint(0, 64, (2, time)), torch.randint(0, 64, (2 * time,))
        losses = [model.losses(model(ids).flatten(0, 1), targets) for model in (plain, fused)]
        assert torch.allclose(*losses, atol=1e-5)
        wanted, found = (torch.autograd.grad(loss.sum(), [*m.parameters()]) for m, loss in zip((plain, fused), losses))
        assert all(torch.allclose(ours, theirs, atol=1e-4) for ours, theirs in zip(found, wanted))


def test_orthogonalise_makes_singular_values_about_equal():
    """Muon's updates change all directions of a matrix about equally."""
    torch = pytest.importorskip("torch")
    from tools.train_demo.muon import orthogonalise

    torch.manual_seed(0)
    for shape in ((2, 16, 32), (2, 32, 16)):
        singular = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert singular.min() > 0.3
        assert singular.max() < 1.5


def test_repeated_tokens_have_a_period():
    """The tokens of the warm start are determined after the first period."""
    torch = pytest.importorskip("torch")
    from tools.train_demo.warm_start import repeated_tokens

    for row in repeated_tokens(torch.Generator().manual_seed(1), 50, rows=4, length=100).tolist():
        assert any(row[period:] == row[:-period] for period in range(4, 41))


def marks_of(tokenizer):
    return {token for mark in drills.MARKS for token in tokenizer.encode_template(mark)}


def test_learned_tokens_of_drills_occur_before(tokenizer):
    """Each learned token is a mark or occurs earlier in its row; the same seed gives the same rows."""
    rows, follows = drills.drill_rows(np.random.default_rng(3), tokenizer, 60)
    assert rows.shape == follows.shape == (60, drills.LENGTH + 1)
    marks = marks_of(tokenizer)
    for tokens, learned in zip(rows.tolist(), follows.tolist()):
        assert 0.05 < sum(learned) / len(learned) < 0.99
        assert all(tokens[i] in {*tokens[:i], *marks} for i, is_learned in enumerate(learned) if is_learned)
    again, _ = drills.drill_rows(np.random.default_rng(3), tokenizer, 60)
    assert (rows == again).all()


def drill_text(tokenizer, kind, seed):
    """The uncut row of a drill as text. A random token that is not a digit is a character of the private use area."""
    writer = drills._Writer(np.random.default_rng(seed), tokenizer, drills._letters(tokenizer))
    kind(writer)
    special = tokenizer_module.SPECIAL_TOKENS
    known = marks_of(tokenizer) | set(tokenizer.encode("0123456789"))
    plain = {i: tokenizer.tokens[i] if tokenizer.tokens[i] in special else decoded(tokenizer, [i]) for i in known}
    return "".join(plain.get(token) or chr(0xE000 + token) for token in writer.tokens)


LETTERS = "[0-9\ue000-\uf8ff]+"
TOOL = re.compile(rf"^(.+): (?:({LETTERS}) (?:the|a|my) ({LETTERS})\. )?\1\((.+)\)\n", re.MULTILINE)
REQUESTED = re.compile(rf"({LETTERS}) (?:the|a|my) ({LETTERS})(.*)", re.DOTALL)
ROUND = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>\n<\|im_start\|>assistant\n(.*?)<\|im_end\|>\n", re.DOTALL)


def listed(signature):
    """The fields of a signature with their types or options. The name of the field must follow each option."""
    fields = {}
    for field, kind in (one.split(": ") for one in signature.split(", ")):
        fields[field] = kind
        if kind not in ("string", "integer"):
            pairs = [pair.split("=") for pair in kind.split("|")]
            assert all(follows == field for _, follows in pairs)
            fields[field] = [option for option, _ in pairs]
    return fields


def after_request(text, field, value, may_be_bare):
    """The text after the mention of a value."""
    alone = [before + value for before in drills._BEFORE_A_VALUE] if may_be_bare else []
    named = [before + field + between + value for before, between in drills._AROUND_A_FIELD]
    mention = max((one for one in alone + named if text.startswith(one)), key=len)
    return text[len(mention) :]


@pytest.mark.parametrize("seed", range(12))
def test_calls_of_drills_are_those_requested(tokenizer, seed):
    """Each call of a drill has a listed tool and the values of the request, in their order."""
    text = drill_text(tokenizer, drills.calls, seed)
    tools = {name: (verb, noun, listed(fields)) for name, verb, noun, fields in TOOL.findall(text)}
    rounds = ROUND.findall(text)
    assert tools
    assert rounds
    for request, answer in rounds:
        bodies = re.findall(r"<tool_call>\n(.+)\n</tool_call>", answer)
        assert answer == "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
        for i, body in enumerate(bodies):
            call = json.loads(body)
            verb, noun, fields = tools[call["name"]]
            if i:
                (between,) = {one for one in drills._BETWEEN_REQUESTS if REQUESTED.fullmatch(request.removeprefix(one))}
                request = request.removeprefix(between)
            verb_of_request, noun_of_request, request = REQUESTED.fullmatch(request).groups()
            if verb:
                assert (verb_of_request, noun_of_request) == (verb, noun)
            else:
                assert verb_of_request + noun_of_request == re.sub("[_-]", "", call["name"])
            for field, value in call["arguments"].items():
                kind = fields[field]
                assert isinstance(value, int) == (kind == "integer")
                assert kind in ("string", "integer") or value in kind
                request = after_request(request, field, str(value), isinstance(kind, list) or len(fields) == 1)
        assert not request


@pytest.mark.parametrize("seed", range(5))
def test_arguments_of_option_drills_have_the_right_fields(tokenizer, seed):
    """The arguments have each option of the request with its own field, in order."""
    text = drill_text(tokenizer, drills.options, seed)
    fields = listed(text.partition(")\n")[0])
    rounds = ROUND.findall(text)
    assert rounds
    for request, answer in rounds:
        for field, value in json.loads(answer[:-1], object_pairs_hook=list):
            assert value in fields[field]
            request = after_request(request, field, value, True)
        assert not request


@pytest.mark.parametrize("wanted", SAMPLE_TOOLS, ids=lambda tool: f"{tool.name}_{len(tool.params)}")
def test_sample_tool_is_kept_beside_a_tool_of_the_same_name(monkeypatch, wanted):
    """If a made-up tool has the same name by chance, the request is for the sample tool."""
    alike = tool_schemas.ToolSpec(wanted.name, wanted.verb, wanted.noun, wanted.params)
    monkeypatch.setattr(tool_calls, "tool_set", lambda source, n: [alike, alike, alike][:n])
    monkeypatch.setattr(tool_calls, "SAMPLE_TOOLS", (wanted,))
    for n_tools in (2, 3):
        dialogue = tool_calls.one_call(Source(random.Random(1)), n_tools, sample=True)
        assert len(dialogue.tools) == 1
        assert dialogue.tools[0].get("function", dialogue.tools[0]).get("description") == wanted.description


def test_first_layer_starts_with_previous_token_heads():
    """The heads that are set by hand attend to the previous token, for all tokens."""
    torch = pytest.importorskip("torch")
    from tools.train_demo.config import ModelConfig
    from tools.train_demo.model import DemoModel, rotate
    from tools.train_demo.warm_start import set_previous_token_heads

    torch.manual_seed(0)
    c = ModelConfig(vocab_size=64, layers=1)
    model = DemoModel(c)
    set_previous_token_heads(model)
    embedded = model.embedding[torch.randint(0, 64, (1, 20))]
    normed = torch.nn.functional.rms_norm(embedded, (c.width,), eps=c.norm_eps)
    states = torch.nn.functional.linear(normed, model.qkv[0]).unflatten(-1, (-1, c.head_dim))
    turned = rotate(states[:, :, : c.heads + c.kv_heads], model.cos[:20], model.sin[:20])
    scores = turned[0, 10, 0] @ turned[0, :11, c.heads].T
    assert int(scores.argmax()) == 9


def _write_shared_values(folder: Path) -> None:
    import torch

    from tools.train_demo import workers

    gradient = torch.tensor([float(workers.rank())])
    workers.average([gradient])
    seen = (gradient.item(), workers.total(3), workers.agreed(workers.rank()))
    (folder / str(workers.rank())).write_text(repr(seen), encoding="utf-8")


def test_workers_share_their_gradients(tmp_path):
    pytest.importorskip("torch")
    from tools.train_demo import workers

    workers.run(2, _write_shared_values, tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "0": "(0.5, 6.0, 0)",
        "1": "(0.5, 6.0, 0)",
    }


def _update(folder: Path) -> None:
    import torch

    from tools.train_demo import muon, workers

    torch.manual_seed(1)
    weights = torch.nn.Parameter(torch.randn(3, 8, 16))
    weights.grad = torch.randn(3, 8, 16)
    muon.Muon([(weights, (2, 6))], lr=0.1).step()
    torch.save(weights.detach(), folder / str(workers.rank()))


def test_workers_share_the_updates_of_matrices(tmp_path):
    """Two workers, each with some of the layers, get the same result as one."""
    torch = pytest.importorskip("torch")
    from tools.train_demo import workers

    updated = []
    for n in (1, 2):
        workers.run(n, _update, tmp_path)
        updated += [torch.load(tmp_path / str(rank)) for rank in range(n)]
    assert torch.equal(updated[1], updated[2])
    assert torch.allclose(updated[0], updated[1], atol=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not signal the end of a parent")
def test_workers_end_with_their_command():
    """Workers of a background job ignore Ctrl-C. If they went on, they would overwrite the next run's checkpoints."""
    pytest.importorskip("torch")
    work = "import os, time; os.kill(os.getppid(), 9); time.sleep(600)"
    code = f"""
import signal
from tools.train_demo import workers
signal.signal(signal.SIGINT, signal.SIG_IGN)
workers.run(2, exec, {work!r})
"""
    # `run` waits until the last process with the pipes has ended.
    command = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=120)
    assert command.returncode == -9


def test_training_continues_from_an_exported_file(tmp_path):
    """A file that is exported from rounded weights has the same vocabulary and nearly the same weights."""
    pytest.importorskip("torch")
    from tools.train_demo.config import ModelConfig, TrainConfig
    from tools.train_demo.export import export
    from tools.train_demo.from_gguf import from_gguf

    trainer = from_gguf(DEMO_PATH, ModelConfig(), TrainConfig())
    file = tmp_path / "again.gguf"
    export(trainer, file)
    again = from_gguf(file, ModelConfig(), TrainConfig())
    assert again.tokenizer.tokens == trainer.tokenizer.tokens
    assert again.tokenizer.merges == trainer.tokenizer.merges
    for (name, weights), read in zip(trainer.model.named_parameters(), again.model.parameters()):
        # Rounded weights stay the same, apart from the scales, which have 16 bits.
        assert (weights - read).norm() < 1e-3 * weights.norm(), name
    with pytest.raises(SystemExit, match="sizes in config"):
        from_gguf(DEMO_PATH, ModelConfig(width=128), TrainConfig())


def test_deeper_model_has_the_output_of_the_file():
    """Additional layers do not change the output before they are trained. A model must not have fewer layers."""
    torch = pytest.importorskip("torch")
    from tools.train_demo.config import ModelConfig, TrainConfig
    from tools.train_demo.from_gguf import from_gguf

    ids = torch.arange(300, 340)[None]
    n_layers = ModelConfig.layers
    with torch.no_grad():
        output, output_deeper = (
            from_gguf(DEMO_PATH, ModelConfig(layers=n), TrainConfig()).model(ids) for n in (n_layers, n_layers + 3)
        )
    assert torch.equal(output, output_deeper)
    with pytest.raises(SystemExit, match=f"{n_layers} layers, config.py {n_layers - 1}"):
        from_gguf(DEMO_PATH, ModelConfig(layers=n_layers - 1), TrainConfig())


def test_weights_are_averaged_with_those_of_the_file():
    """The share of the file is 0.25."""
    torch = pytest.importorskip("torch")
    from tools.train_demo.config import ModelConfig, TrainConfig
    from tools.train_demo.from_gguf import from_gguf, keep

    trainer = from_gguf(DEMO_PATH, ModelConfig(), TrainConfig())
    before = [weights.detach().clone() for weights in trainer.model.parameters()]
    with torch.no_grad():
        for weights in trainer.model.parameters():
            weights += 1
    keep(trainer, DEMO_PATH, 0.25)
    for (name, weights), old in zip(trainer.model.named_parameters(), before):
        between = old + 0.75
        if name == "output_norm":
            assert (weights > between).all()
            between *= weights[0] / between[0]
        assert torch.allclose(weights, between, atol=1e-5), name
