"""Many texts at once in the slots of one cache: the same answers as alone, whatever else runs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import lbrx
from lbrx.errors import LbrxError
from lbrx.models import LanguageModel, batch_engine
from lbrx.models.batch_engine import BatchEngine, Job, Piece, QueueFullError
from lbrx.models.drafts import LookUp
from lbrx.models.language_model import read_options
from lbrx.models.sampling import Sampling, adjusted
from lbrx.models.slots import Block, common_prefix

KINDS = {
    "llama": {},
    "phi3": {"sliding_window": 5},
    "qwen3_moe": {},
    "deepseek_v2": {},
    "mamba2": {},
    "lfm2": {},
}
CONTEXT = 1024
WORDS = ["Hello, world! It's", "naïve café", "12345 o'clock", " and so on", "\n\nThen", "x"]
SAMPLERS = (
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 20, "min_p": 0.02, "presence_penalty": 0.5},
    {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"logit_bias": {5: 3.0, 7: -100.0}},
)


@pytest.fixture(scope="module")
def models(make_model):
    opened: dict[str, LanguageModel] = {}

    def open_model(kind: str, **settings) -> LanguageModel:
        if kind not in opened:
            folder = make_model(kind, max_position_embeddings=1024, **KINDS[kind])
            opened[kind] = lbrx.language_model(folder, context=CONTEXT, **settings)
        return opened[kind]

    return open_model


class Listener:
    """Collects what a batch engine tells of one text."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def __call__(self, piece: Piece) -> None:
        self.pieces.append(piece)

    @property
    def shown(self) -> str:
        return "".join(piece.shown for piece in self.pieces)

    @property
    def end(self) -> Piece:
        assert all(p.finish_reason is None and p.error is None for p in self.pieces[:-1])
        return self.pieces[-1]


def job(model: LanguageModel, prompt: str, repeat: int = 0, **options) -> Job:
    wanted = read_options({"ignore_end": True, "max_tokens": 8, **options})
    tokens = model.tokenizer.encode(prompt)
    text = model.new_text(tokens, wanted, model.engine.context, repeat)
    return Job(text, model.end_tokens, Listener())


def finish(engine: BatchEngine) -> None:
    while engine.step():
        pass


def answer(one: Job) -> tuple[str, list[int], list[float]]:
    assert isinstance(one.listener, Listener)
    assert one.listener.end.finish_reason is one.text.finish_reason is not None
    return one.listener.shown, one.text.tokens, one.text.logprobs


def alone(model: LanguageModel, prompt: str, **options) -> tuple[str, list[int], list[float]]:
    """What an engine with one slot and an empty cache answers."""
    only = job(model, prompt, **options)
    engine = BatchEngine(model.engine, 1, deterministic=True)
    engine.submit(only)
    finish(engine)
    return answer(only)


class Guesses(LookUp):
    """Guesses that are right, wrong, or right for a while."""

    def __init__(self, expected: list[int], rng: np.random.Generator) -> None:
        super().__init__()
        self.expected, self.rng = expected, rng

    def guess(self, tokens, most):
        size, right = (int(self.rng.integers(0, 8)) for _ in range(2))
        coming = self.expected[len(tokens) : len(tokens) + min(size, most)]
        return [*coming[:right], *((token + 1) % 600 for token in coming[right:])]


@pytest.mark.parametrize("kind", ["llama", "phi3", "qwen3_moe", "deepseek_v2"])
def test_guesses_change_no_text(models, kind):
    """Texts with samplers and rules, beside each other, with guesses of which some are right: the
    same tokens as one by one."""
    model, rng = models(kind), np.random.default_rng([11, len(kind)])
    kinds = [*SAMPLERS, {"regex": "([ab]{3}|c)*"}, {}, {}]
    plan = [
        (
            random_prompt(rng),
            {**options, "seed": number, "logprobs": True, "max_tokens": int(rng.integers(2, 30))},
        )
        for number, options in enumerate(kinds)
    ]
    expected = [alone(model, prompt, **options) for prompt, options in plan]
    engine = BatchEngine(model.engine, 3, chunk=24, quantum=4, deterministic=True, look_up=True)
    jobs = [job(model, prompt, **options) for prompt, options in plan]
    for one, (_, tokens, _) in zip(jobs, expected, strict=True):
        one.look_up = Guesses([*one.tokens, *tokens], rng)
        engine.submit(one)
    finish(engine)
    assert [answer(one) for one in jobs] == expected
    assert 0 < engine.counts.right_tokens < engine.counts.guessed_tokens


def test_repetitive_texts_take_fewer_steps(models):
    """A model that can only repeat "ab": most of its tokens are guessed."""
    model = models("llama")
    options = {"regex": "(abc abd ){30}", "max_tokens": 100}
    only = job(model, "Hello", **options)
    engine = BatchEngine(model.engine, 1, look_up=True)
    engine.submit(only)
    finish(engine)
    assert answer(only)[:2] == alone(model, "Hello", **options)[:2]
    assert engine.counts.steps < 0.6 * engine.counts.generated_tokens


def test_guesses_are_what_followed_before():
    look_up = LookUp()
    assert look_up.guess([1, 2, 3, 4, 5, 9, 1, 2, 3], 4) == [4, 5, 9, 1]
    assert look_up.guess([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], 2) == [5, 9]
    look_up.learn(2, 0)
    assert look_up.guess([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], 2) == []
    assert LookUp().guess([1, 2, 3], 4) == []
    assert LookUp().guess([], 4) == []
    assert LookUp().guess([7, 7, 7, 7], 3) == [7, 7, 7]
    assert LookUp().guess([1, 2, 3, 1, 2, 3, 1], 7) == [2, 3, 1, 2, 3, 1, 2]
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 3, 200).tolist()
    look_up = LookUp()
    for end in range(len(tokens)):
        assert look_up.guess(tokens[:end], 5) == slow_guess(tokens[:end], 5)


def slow_guess(tokens, most):
    for size in (4, 3, 2):
        places = range(len(tokens) - 1, size - 1, -1)
        for end in places if len(tokens) >= size else ():
            if tokens[end - size : end] == tokens[len(tokens) - size :]:
                return (tokens[end:] * most)[:most]
    return []


def test_recurrent_layers_refuse_guesses(models):
    with pytest.raises(LbrxError, match="leave out --draft"):
        BatchEngine(models("mamba2").engine, 1, look_up=True)


def random_prompt(rng: np.random.Generator) -> str:
    """Often with a long beginning that others have, too."""
    common = "".join(WORDS) * 2 if rng.random() < 0.5 else ""
    return common + "".join(rng.choice(WORDS, rng.integers(1, 12)))


@pytest.mark.parametrize("kind", KINDS)
def test_company_changes_no_bits(models, kind, monkeypatch):
    """Random prompts, samplers and arrival times; few slots, chunks and quanta of a few tokens, so
    that texts are preempted and read again; some go away. Log-probabilities are compared exactly."""
    monkeypatch.setattr(batch_engine, "READ_AGAIN", 16)
    model, rng = models(kind), np.random.default_rng([7, len(kind)])
    engine = BatchEngine(model.engine, 3, chunk=24, quantum=4, deterministic=True)
    arriving, jobs = [], []
    for number in range(14):
        options = {**SAMPLERS[number % len(SAMPLERS)], "seed": number, "logprobs": True}
        options["max_tokens"] = int(rng.integers(1, 14))
        arriving.append((random_prompt(rng), options))
    while arriving or engine.waiting or engine.running:
        for _ in range(min(int(rng.integers(0, 4)), len(arriving))):
            prompt, options = arriving.pop()
            jobs.append((job(model, prompt, **options), prompt, options))
            engine.submit(jobs[-1][0])
        if jobs and rng.random() < 0.03:
            engine.cancel(jobs[int(rng.integers(len(jobs)))][0])
        engine.step()
    kept = [one for one in jobs if not one[0].cancelled]
    assert len(kept) > 6
    assert engine.counts.preempted
    assert engine.counts.cached_tokens or engine.slots.is_recurrent
    for one, prompt, options in kept:
        assert answer(one) == alone(model, prompt, **options), (prompt, options)


def test_answers_of_generate(models):
    """The engine for one text at a time is another implementation."""
    model = models("llama")
    jobs = [job(model, prompt, **SAMPLERS[i % 3], seed=i) for i, prompt in enumerate(WORDS)]
    engine = BatchEngine(model.engine, 4)
    for one in jobs:
        engine.submit(one)
    finish(engine)
    for i, prompt in enumerate(WORDS):
        options = {"ignore_end": True, "max_tokens": 8, **SAMPLERS[i % 3], "seed": i}
        assert answer(jobs[i])[1] == model.generate(prompt, **options).tokens


def test_one_forward_pass_for_all(models):
    model = models("llama")
    engine = BatchEngine(model.engine, 4)
    for _ in range(4):
        engine.submit(job(model, "x", max_tokens=10))
    finish(engine)
    assert engine.counts.generated_tokens == 40
    assert engine.counts.steps <= 12


def test_prefixes_are_copied(models, monkeypatch):
    model, prompt = models("llama"), "".join(WORDS) * 3
    engine = BatchEngine(model.engine, 3, deterministic=True)
    options = {"temperature": 0.9, "seed": 3}
    jobs = [job(model, prompt, repeat, **options) for repeat in range(3)]
    for one in jobs:
        engine.submit(one)
    finish(engine)
    length = len(model.tokenizer.encode(prompt))
    assert [one.cached_tokens for one in jobs] == [0, length - 1, length - 1]
    first, *others = [answer(one)[0] for one in jobs]
    assert first == alone(model, prompt, **options)[0]
    assert first not in others


def test_a_short_prompt_passes_a_long_one(models):
    """It is read within two chunks, and the long one goes on meanwhile."""
    model = models("llama")
    engine = BatchEngine(model.engine, 2, chunk=20)
    prompt = "".join(WORDS) * 5
    long, short = job(model, prompt), job(model, WORDS[0], max_tokens=1)
    engine.submit(long)
    engine.step()
    engine.submit(short)
    steps = 0
    while short.text.finish_reason is None:
        assert engine.step()
        steps += 1
    assert steps <= 3
    assert not long.text.tokens
    finish(engine)
    assert long.text.tokens == model.generate(prompt, max_tokens=8, ignore_end=True).tokens


def test_texts_take_turns(models):
    """With one slot, no text waits for all of another one."""
    model = models("llama")
    engine = BatchEngine(model.engine, 1, quantum=5)
    jobs = [job(model, prompt, max_tokens=30) for prompt in WORDS[:3]]
    for one in jobs:
        engine.submit(one)
    while engine.step() and not jobs[2].text.tokens:
        assert max(len(one.text.tokens) for one in jobs[:2]) <= 6
    finish(engine)
    assert [answer(one)[1] for one in jobs] == [
        model.generate(prompt, max_tokens=30, ignore_end=True).tokens for prompt in WORDS[:3]
    ]


def test_cancelled_while_it_is_read(models):
    model = models("llama")
    engine = BatchEngine(model.engine, 1, chunk=20)
    long, next_one = job(model, "".join(WORDS) * 5), job(model, "x")
    engine.submit(long)
    engine.submit(next_one)
    engine.step()
    engine.cancel(long)
    finish(engine)
    assert long.listener.pieces == []
    assert len(next_one.text.tokens) == 8
    assert engine.counts.cancelled == 1
    assert len(engine.slots.tokens[0]) < 20


def test_a_listener_that_raises_ends_its_text_alone(models):
    model = models("llama")
    engine = BatchEngine(model.engine, 2)
    good, bad = job(model, "x"), job(model, "x")

    def fail(piece: Piece) -> None:
        raise OSError("the client is gone")

    bad.listener = fail
    for one in (bad, good):
        engine.submit(one)
    finish(engine)
    assert len(good.text.tokens) == 8
    assert len(bad.text.tokens) == 1
    assert (engine.counts.finished, engine.counts.failed) == (1, 1)


def test_an_error_of_the_device_is_told(models, monkeypatch):
    model = models("llama")
    engine = BatchEngine(model.engine, 2)
    lost = job(model, "x")
    engine.submit(lost)
    problem = LbrxError("the device is lost")

    def fail(tokens):
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(engine.slots, "decode", fail)
        assert not engine.step()
    assert lost.listener.end.error is problem
    engine.submit(after := job(model, "x"))
    finish(engine)
    assert after.text.tokens == model.generate("x", max_tokens=8, ignore_end=True).tokens


def test_limits(models):
    model = models("llama")
    engine = BatchEngine(model.engine, 1, most_waiting=2)
    for _ in range(2):
        engine.submit(job(model, "x"))
    with pytest.raises(QueueFullError, match="2 texts are waiting"):
        engine.submit(job(model, "x"))
    with pytest.raises(LbrxError, match="texts of 1,024 tokens need a cache"):
        BatchEngine(model.engine, 10**9)
    with pytest.raises(LbrxError, match="the context is 1,024"):
        engine.submit(job(model, "".join(WORDS) * 40))
    full = job(model, "".join(WORDS) * 23, max_tokens=1000)
    engine = BatchEngine(model.engine, 1)
    engine.submit(full)
    finish(engine)
    assert len(full.tokens) == model.engine.context
    made = model.generate("".join(WORDS) * 23, max_tokens=1000, ignore_end=True)
    assert full.text.tokens == made.tokens


def test_submitted_from_threads(models):
    model = models("llama")
    engine = BatchEngine(model.engine, 4)
    computing = threading.Thread(target=engine.run)
    computing.start()
    ended = threading.Semaphore(0)
    jobs = [job(model, WORDS[i % 6]) for i in range(12)]
    collect = Listener.__call__

    def submit(one: Job) -> None:
        def listener(piece: Piece, kept=one.listener) -> None:
            collect(kept, piece)
            if piece.finish_reason is not None:
                ended.release()

        one.listener = listener
        engine.submit(one)

    threads = [threading.Thread(target=submit, args=[one]) for one in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    computing.join()
    assert all(ended.acquire(blocking=False) for _ in jobs)
    assert engine.counts.finished == 12
    with pytest.raises(QueueFullError):
        engine.submit(job(model, "x"))


def test_blocks():
    """Against a search of all aligned blocks."""
    for count in (1, 3, 6, 8):
        every = [(first, size) for size in (1, 2, 4, 8) for first in range(0, count, size)]
        for bits in range(1, 1 << count):
            slots = [slot for slot in range(count) if bits >> slot & 1]
            block = Block.around(slots, count)
            fitting = [b for b in every if b[0] <= slots[0] and slots[-1] < sum(b)]
            first, size = min(fitting, key=lambda pair: pair[1])
            assert (block.first, block.size) == (first, min(size, count - first))


def test_common_prefix():
    rng = np.random.default_rng(1)
    for _ in range(300):
        a, b = (rng.integers(0, 2, rng.integers(0, 20)).tolist() for _ in range(2))
        differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
        assert common_prefix(a, b) == next(differing, min(len(a), len(b)))


def test_penalties_and_biases():
    """Against OpenAI's formula: logits - count * frequency - (count > 0) * presence + bias."""
    rng = np.random.default_rng(2)
    logits = rng.standard_normal(20).astype(np.float32)
    generated = [3, 3, 7, 19]
    wanted = Sampling(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={0: 2, 3: -1})
    expected = logits.copy()
    expected[3] -= 2 * 0.25 + 0.5 + 1
    expected[[7, 19]] -= 0.75
    expected[0] += 2
    np.testing.assert_allclose(adjusted(logits, [1, 1], generated, wanted), expected, rtol=1e-6)
    for bad in ({"presence_penalty": 3}, {"logit_bias": {-1: 0}}, {"logit_bias": {1: "x"}}):
        with pytest.raises(LbrxError, match=next(iter(bad))):
            read_options(bad)


def test_top_logprobs(models):
    """Against the logits of the whole text."""
    model = models("llama")
    made = model.generate("x", max_tokens=3, logprobs=True, top_logprobs=4, ignore_end=True)
    tokens = model.tokenizer.encode("x") + made.tokens
    scores = model.engine.all_logits(tokens).log_softmax().numpy()
    for place, likely in enumerate(made.top_logprobs):
        row = scores[len(tokens) - len(made.tokens) - 1 + place]
        assert [token for token, _ in likely] == np.argsort(-row)[:4].tolist()
        np.testing.assert_allclose([value for _, value in likely], np.sort(row)[::-1][:4], 1e-3)
        assert made.logprobs[place] == likely[0][1]
