"""Language models as partners: what they read, how they are drawn from, and what their words mean."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from transformers import T5Config, T5ForConditionalGeneration

from env_servers import partners, prompts, tasks
from env_servers.partners import Answer, Exchange, Query, find_partner
from env_servers.play import episode_starts, play
from env_servers.prompts import Message, read_line, voice_of
from env_servers.tasks import make_env, make_policy
from trainers.load import hash_policy
from trainers.model_partner import ModelPartner
from trainers.scratch import new_model

# Made once: nothing below changes a tokenizer.
plain_tokenizer = functools.cache(tiny_models.plain_tokenizer)
chat_tokenizer = functools.cache(tiny_models.chat_tokenizer)
PLANE = {"word": ["Airplane", "Plane"]}
CAIRO = {"city": "Cairo", "country": "Egypt"}
BUYER = {
    "personality": "sarcastic", "brand": "a Tesla", "type": "truck",
    "features": ["third-row seating", "sunroof"], "budget": 90000, "strategy": "discount",
}  # fmt: skip
PAST = (Exchange("Good morning! Which brand?", "A Tesla, if you have one."), Exchange("$80,000.", "Too much."))


def query(task: str, text: str, *, secret: Any = None, seed: int = 1, exchanges: Any = (), prefix: str = "") -> Query:
    own = {"twenty_questions": PLANE, "guess_my_city": CAIRO, "car_dealer": BUYER}[task]
    return Query(task, secret or own, tuple(exchanges), text, seed, prefix)


def causal(task: str, *, chat: bool = False, positions: int = 2048, **options: Any) -> ModelPartner:
    tokenizer = chat_tokenizer() if chat else plain_tokenizer()
    model = new_model("tiny", tokenizer, positions)
    return ModelPartner(task, model, tokenizer, name="me/tiny", revision="abc", **options)


def t5(task: str, **options: Any) -> ModelPartner:
    tokenizer = plain_tokenizer()
    return ModelPartner(task, tiny_t5(tokenizer), tokenizer, name="me/t5", revision="def", **options)


def tiny_t5(tokenizer: Any) -> Any:
    config = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, initializer_factor=5.0,
        decoder_start_token_id=tokenizer.pad_token_id, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return T5ForConditionalGeneration(config)


def texts(answers: Any) -> list[str]:
    return [answer.text for answer in answers]


# Prompts -----------------------------------------------------------------------------------------------------------


def test_the_papers_prompts_to_the_letter() -> None:
    assert voice_of("twenty_questions").paper(query("twenty_questions", "Can it \nfly?")) == (
        "Answer the question about the object truthfully.\n"
        "object: (Airplane, Plane)\n"
        "question: Can it fly?\n"
        "answer (yes or no): "
    )
    assert voice_of("guess_my_city").paper(query("guess_my_city", "Is it hot?")) == (
        "Answer the question about the city truthfully.\n"
        "    object: cairo,egypt\n"
        "    question: Is it hot?\n"
        "    answer: "
    )
    paulo = query("guess_my_city", "Is it hot?", secret={"city": "São Paulo", "country": "Brazil"})
    assert "object: sao paulo,brazil\n" in voice_of("guess_my_city").paper(paulo), "as in the paper's list"
    assert voice_of("car_dealer").paper(query("car_dealer", "$70,000, my last word.", exchanges=PAST)) == (
        "Start\n"
        "Personality: sarcastic. Prefers a Tesla truck with third-row seating, sunroof. Budget: $90,000\n"
        "Good morning! Which brand?\n"
        "A Tesla, if you have one.\n"
        "$80,000.\n"
        "Too much.\n"
        "$70,000, my last word.\n"
    )
    asked = query("car_dealer", "Well?", prefix="Output: Decision=")
    assert voice_of("car_dealer").paper(asked).endswith("Budget: $90,000\nWell?\nOutput: Decision=")
    limits = [voice_of(task)[3:] for task in prompts.VOICES]
    assert limits == [(124, 4, 0.0), (124, 64, 0.0), (896, 127, 1.0)]
    with pytest.raises(
        ValueError, match="partner of task 'maze': its prompt is unknown; there are prompts for twenty_"
    ):
        voice_of("maze")


def test_chat_messages_tell_the_same() -> None:
    system, question = voice_of("twenty_questions").chat(query("twenty_questions", "Can it fly?", exchanges=PAST))
    assert "Airplane (also called Plane)" in system.content and question == Message("user", "Can it fly?")
    system, _ = voice_of("guess_my_city").chat(query("guess_my_city", "Is it hot?"))
    assert "Cairo, Egypt" in system.content and "Never write the name" in system.content
    system, *said = voice_of("car_dealer").chat(query("car_dealer", "$70,000.", exchanges=PAST))
    for word in (
        "sarcastic",
        "a Tesla truck",
        "third-row seating, sunroof",
        "$90,000",
        "Output: Decision=Accept MSRP=$N",
    ):
        assert word in system.content
    assert [message.role for message in said] == ["user", "assistant", "user", "assistant", "user"]
    assert said[1].content == "A Tesla, if you have one." and said[4].content == "$70,000."
    spoken = prompts.with_spoken_prefix(said, "Output: Decision=")
    assert spoken[:-1] == said[:-1] and spoken[-1].content.endswith(
        "(Begin your answer with exactly: Output: Decision=)"
    )
    assert prompts.with_spoken_prefix(said, "") == said


@pytest.mark.parametrize(
    ("task", "written", "expected"),
    [
        ("twenty_questions", "YES, it can", Answer("Yes.")),
        ("twenty_questions", "\n no.\nyes", Answer("No.")),
        ("twenty_questions", "Maybe yes", Answer("No.", understood=False)),
        ("twenty_questions", "", Answer("No.", understood=False)),
        ("guess_my_city", " It is hot.\nuser: more", Answer("It is hot.")),
        ("guess_my_city", "\n", Answer("I do not know.", understood=False)),
        ("car_dealer", "Fine. Output: Decision=Reject MSRP=$8\nStart", Answer("Fine. Output: Decision=Reject MSRP=$8")),
        ("car_dealer", "", Answer("")),
    ],
)
def test_what_a_models_words_mean(task: str, written: str, expected: Answer) -> None:
    assert voice_of(task).read(written, query(task, "Hm?")) == expected


def test_a_prefix_is_not_part_of_the_answer() -> None:
    asked = query("car_dealer", "Well?", prefix="Output: Decision=")
    for written in ("Output: Decision=Accept MSRP=$9", "Accept MSRP=$9\n", " Accept MSRP=$9"):
        assert voice_of("car_dealer").read(written, asked) == Answer("Accept MSRP=$9")
    assert read_line("Output: x", "") == "Output: x"


# Models ------------------------------------------------------------------------------------------------------------


def test_the_prompt_reaches_the_model_and_long_ones_lose_their_beginning() -> None:
    partner = causal("twenty_questions", prompt="paper")
    asked = query("twenty_questions", "Can it fly?")
    ids = partner.prompt_ids(asked)
    assert plain_tokenizer().decode(ids) == voice_of("twenty_questions").paper(asked)
    long = partner.prompt_ids(query("twenty_questions", "Can it fly? " * 100))
    assert len(long) == 124 and plain_tokenizer().decode(long).endswith("Can it fly?\nanswer (yes or no): ")
    spelled = partner.prompt_ids(query("twenty_questions", "Can it <|endoftext|> fly?"))
    assert plain_tokenizer().eos_token_id not in spelled
    talk = causal("car_dealer", prompt="paper")
    assert len(talk.prompt_ids(query("car_dealer", "Hm?", exchanges=PAST * 40))) == 896
    small = causal("car_dealer", prompt="paper", positions=200)
    assert len(small.prompt_ids(query("car_dealer", "Hm?", exchanges=PAST * 40))) == 200 - 127
    assert len(t5("twenty_questions").prompt_ids(query("twenty_questions", "Can it fly? " * 100))) == 124


def test_a_chat_template_is_taken_where_there_is_one() -> None:
    partner = causal("twenty_questions", chat=True)
    asked = query("twenty_questions", "Can it fly?")
    system, user = voice_of("twenty_questions").chat(asked)
    expected = (
        f"<|im_start|>system\n{system.content}<|im_end|>\n<|im_start|>user\n{user.content}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert partner.prompt_text(asked) == expected
    assert chat_tokenizer().decode(partner.prompt_ids(asked)) == expected
    end = chat_tokenizer().convert_tokens_to_ids("<|im_end|>")
    assert end in partner._stop_ids and chat_tokenizer().eos_token_id in partner._stop_ids
    talk = causal("car_dealer", chat=True)
    assert talk.prompt_text(query("car_dealer", "Well?", prefix="Output: Decision=")).endswith(
        "<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\nOutput: Decision="
    )
    assert causal("twenty_questions", chat=True, prompt="paper").prompt_text(asked).startswith("Answer the question")
    with pytest.raises(ValueError, match="has no chat template; leave prompt out, or set it to paper"):
        causal("twenty_questions", prompt="chat")


@pytest.mark.parametrize("chat", [False, True])
def test_at_the_limit_a_buyer_goes_on_with_its_own_last_line(chat: bool) -> None:
    """As the paper trained its buyer: the decision follows the line that it has just said, in the same answer."""
    partner = causal("car_dealer", chat=chat)
    asked: list[Query] = []

    class Undecided:
        name, revision = "undecided", "1"

        def answer(self, queries: Any) -> list[Any]:
            asked.extend(queries)
            return [Answer(f"I want it cheaper, {len(query.exchanges)}.") for query in queries]

    env = make_env("car_dealer")
    env.partner = Undecided()
    env.reset(1)
    steps = [env.step(f"It is {number}.") for number in range(1, 26)]
    assert [step.end_reason for step in steps[-1:]] == ["line_limit"] and len(asked) == 26
    before, once_more = map(partner.prompt_text, asked[-2:])
    assert once_more == f"{before}I want it cheaper, 24. Output: Decision="
    assert "I want it cheaper, 23." in before and "I want it cheaper, 24." not in before
    (answer,) = partner.answer(asked[-1:])
    assert isinstance(answer, Answer), "and it is answered"


QUESTIONS = ["Can it fly?", "Hm?", "Is it bigger than a car and does it have wings of metal?", "Is it alive?", "Why?"]


@pytest.mark.parametrize("task", ["twenty_questions", "guess_my_city", "car_dealer"])
@pytest.mark.parametrize("make", [causal, t5])
def test_an_answer_does_not_depend_on_what_is_asked_beside_it(make: Any, task: str) -> None:
    partner = make(task, prompt="paper", max_new_tokens=12)
    asked = [query(task, text, seed=seed) for seed, text in enumerate(QUESTIONS)]
    together = partner.answer(asked)
    assert [partner.answer([one])[0] for one in asked] == together
    assert partner.answer(asked[::-1]) == together[::-1]
    few = make(task, prompt="paper", max_new_tokens=12, batch_size=2)
    assert few.answer(asked) == together
    assert partner.answer([]) == []
    for answer, one in zip(together, asked, strict=True):
        assert answer.usage["prompt_tokens"] == len(partner.prompt_ids(one))
        assert 1 <= answer.usage["completion_tokens"] <= 12
    if task != "twenty_questions":
        assert len(set(texts(together))) > 1, "a model that says one thing shows nothing"


@pytest.mark.parametrize("make", [causal, t5])
def test_generation_is_what_the_model_says_step_by_step(make: Any) -> None:
    """Greedy answers against an own loop without cache, batches and generate."""
    partner = make("guess_my_city", prompt="paper", max_new_tokens=8)
    for text in QUESTIONS:
        asked = query("guess_my_city", text)
        prompt, said = partner.prompt_ids(asked), list[int]()
        while len(said) < 8 and not (said and said[-1] in partner._stop_ids):
            with torch.no_grad():
                if make is t5:
                    start = [plain_tokenizer().pad_token_id, *said]
                    out = partner._model(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([start]))
                else:
                    out = partner._model(input_ids=torch.tensor([[*prompt, *said]]))
            said.append(int(out.logits[0, -1].argmax()))
        line = plain_tokenizer().decode(said, skip_special_tokens=True).strip().partition("\n")[0].strip()
        (answer,) = partner.answer([asked])
        assert answer.text == (line or "I do not know.")
        assert answer.usage["completion_tokens"] == len(said)


def test_oracles_are_greedy_and_a_buyer_draws_from_its_query() -> None:
    oracle, buyer = causal("guess_my_city", max_new_tokens=12), causal("car_dealer", max_new_tokens=12)
    same = [query("guess_my_city", "Is it hot?", seed=seed) for seed in range(5)]
    assert len(set(texts(oracle.answer(same)))) == 1
    drawn = [query("car_dealer", "Hm?", seed=seed) for seed in range(5)]
    assert len(set(texts(buyer.answer(drawn)))) > 3
    assert buyer.answer(drawn) == buyer.answer(drawn)
    cold = causal("car_dealer", max_new_tokens=12, temperature=0)
    assert len(set(texts(cold.answer(drawn)))) == 1
    torch.manual_seed(3)
    before = torch.get_rng_state()
    buyer.answer(drawn)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_answer_ends_at_a_newline() -> None:
    """The weights are set so that the newline is always the likeliest token, or a letter that never ends."""
    tokenizer = plain_tokenizer()
    for wanted, length in (("\n", 1), ("a", 127)):
        model = new_model("tiny", tokenizer, 2048)
        with torch.no_grad():
            model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
            bias = torch.zeros(len(tokenizer))
            bias[tokenizer(wanted)["input_ids"][0]] = 50.0
        model.lm_head.register_forward_hook(lambda module, given, out, bias=bias: out + bias)
        partner = ModelPartner("car_dealer", model, tokenizer, name="m", revision="1")
        (answer,) = partner.answer([query("car_dealer", "Hm?")])
        assert answer.text == ("" if wanted == "\n" else "a" * 127)
        assert answer.usage["completion_tokens"] == length


def test_the_revision_tells_all_that_changes_an_answer() -> None:
    made = [
        causal("twenty_questions"), causal("twenty_questions", max_new_tokens=5),
        causal("twenty_questions", temperature=1), causal("twenty_questions", max_input_tokens=60),
        causal("twenty_questions", chat=True), causal("twenty_questions", chat=True, prompt="paper"),
    ]  # fmt: skip
    assert made[0].name == "model:me/tiny"
    assert made[0].revision == "abc+paper-1+float32+temperature=0+tokens=124/4"
    assert made[4].revision == "abc+chat-1+float32+temperature=0+tokens=2044/4"
    assert len({partner.revision for partner in made[:5]}) == 5 and made[5].revision == made[0].revision


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "papr"}, "prompt of model:me/tiny is 'papr'; allowed are paper, chat"),
        ({"batch_size": 0}, "batch_size of model:me/tiny is 0"),
        ({"temperature": -1}, "temperature is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 3000}, "has positions for 2048 tokens, 3000 are for an answer"),
        ({"max_input_tokens": 0}, "0 for a prompt; both need at least one"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        causal("twenty_questions", **options)


def test_episodes_with_a_model_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASKS", {**tasks.TASKS, "twenty_questions": "small_game:SmallGame"})
    monkeypatch.setattr(partners, "_made", {})
    tokenizer = plain_tokenizer()
    for name, model in (("gpt", new_model("tiny", tokenizer, 256)), ("t5", tiny_t5(tokenizer))):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        option = {"partner": f"model:{tmp_path / name}", "partner_options": {"device": "cpu", "batch_size": 4}}
        partner = find_partner("twenty_questions", option["partner"], option["partner_options"], lambda: None)
        assert partner.name == f"model:{name}" and partner.revision.startswith(hash_policy(tmp_path / name))
        sizes: list[int] = []
        own = partner.answer
        monkeypatch.setattr(
            partner, "answer", lambda asked, own=own, sizes=sizes: sizes.append(len(asked)) or own(asked)
        )
        starts = episode_starts("twenty_questions", "test", range(6), option)
        played = list(play("twenty_questions", make_policy("twenty_questions", "behavior"), starts, slots=6))
        assert sizes[0] == 6, "one batch for all episodes"
        for one in played:
            info = one.trajectory.info
            assert (info["partner"], info["partner_revision"]) == (partner.name, partner.revision)
            assert info["answer_usage"]["prompt_tokens"] > 20 * one.trajectory.num_turns
            assert {turn.observation for turn in one.trajectory.turns[1:]} <= {"Yes.", "No."}
    (tmp_path / "chat").mkdir()
    chat_tokenizer().save_pretrained(tmp_path / "chat")
    with pytest.raises(FileNotFoundError, match=r"holds no model \(no config\.json\)"):
        find_partner("twenty_questions", f"model:{tmp_path / 'chat'}", {}, lambda: None)
    with pytest.raises(ValueError, match="'model' has no option 'prompts'"):
        find_partner("twenty_questions", f"model:{tmp_path / 'gpt'}", {"prompts": "chat"}, lambda: None)
