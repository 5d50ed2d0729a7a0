"""The rig: that its tokenizer, batches and recorded client hand verl exactly the rows they were given."""

import asyncio
import copy
import pickle

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_ext.demo import rig
from verl_ext.demo.data import read_rows

ROWS = read_rows()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LENGTHS = {"prompt": 512, "response": 512}

# any Unicode but lone surrogates, which are no UTF-8; and the special tokens spelled out, whole and in pieces
TEXTS = st.lists(
    st.text(max_size=8)
    | st.sampled_from([*SPECIAL, "<|im_", "end|>", "\0", "\r\n", "  ", "\ufeff", "e\u0301", "\u00e9"]),
    max_size=5,
).map("".join)


@pytest.fixture(scope="module")
def config(model_dir):
    return rig.compose_config(model_dir)


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from verl.utils.tokenizer import hf_tokenizer

    return hf_tokenizer(str(model_dir))


def row(response="#### 4", prompt="2 + 2?", **more):
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "response": response,
        **more,
    }


def read_by_scorer(batch, tokenizer):
    """The responses as verl's reward managers decode them (`NaiveRewardManager.run_single`)."""
    length = batch.batch["responses"].shape[1]
    valid = batch.batch["attention_mask"][:, -length:].sum(dim=1)
    return [
        tokenizer.decode(ids[:count], skip_special_tokens=True)
        for ids, count in zip(batch.batch["responses"], valid, strict=True)
    ]


# --- the tokenizer ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_any_response_reaches_the_scorer_as_it_was_recorded(texts, config, tokenizer):
    batch = rig.scored_batch([row(text) for text in texts], config)
    assert read_by_scorer(batch, tokenizer) == texts


@given(text=TEXTS)
def test_a_token_is_a_byte_also_where_a_special_token_is_spelled_out(text, tokenizer):
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_the_special_tokens_are_beside_the_bytes_and_within_the_models_vocabulary(tokenizer, model_dir):
    from transformers import AutoConfig

    special = tokenizer.convert_tokens_to_ids(SPECIAL)
    assert sorted(special) == [256, 257, 258]
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert AutoConfig.from_pretrained(model_dir).vocab_size == len(tokenizer) == 259


# --- the batches -----------------------------------------------------------------------------------------------------


def test_a_scored_batch_is_padded_left_and_right_around_prompt_and_response(config, tokenizer):
    rows = [row("#### 4"), row("", "a longer question?"), row("x" * 511)]
    batch = rig.scored_batch(rows, config)
    tensors = batch.batch

    assert len(batch) == 3
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "prompts": (3, 512),
        "responses": (3, 512),
        "response_mask": (3, 512),
        "input_ids": (3, 1024),
        "attention_mask": (3, 1024),
        "position_ids": (3, 1024),
    }
    assert {tensor.dtype for tensor in tensors.values()} == {torch.int64}
    for index, one in enumerate(rows):
        prompt = tokenizer.apply_chat_template(one["prompt"], add_generation_prompt=True, return_dict=False)
        response = [*one["response"].encode(), tokenizer.eos_token_id]
        left, right = 512 - len(prompt), 512 - len(response)
        pad = tokenizer.pad_token_id
        assert tensors["prompts"][index].tolist() == [pad] * left + prompt
        assert tensors["response_mask"][index].tolist() == [1] * len(response) + [0] * right
        assert tensors["attention_mask"][index].tolist() == [0] * left + [1] * (len(prompt + response)) + [0] * right
        assert tensors["responses"][index, len(response) - 1 :].tolist() == [tokenizer.eos_token_id] + [pad] * right
        assert tokenizer.decode(tensors["responses"][index]).startswith(one["response"] + "<|im_end|>")
        positions = tensors["position_ids"][index].tolist()
        assert positions[left : 1024 - right] == list(range(len(prompt + response)))
    assert tensors["input_ids"].equal(torch.cat([tensors["prompts"], tensors["responses"]], dim=1))


def test_batches_hold_the_rows_columns_and_not_the_recorded_response(config):
    given_rows = [ROWS[0], {**ROWS[1], "extra_info": None}, {key: ROWS[2][key] for key in ROWS[2] if key != "ability"}]
    for batch in (rig.scored_batch(given_rows[:2], config), rig.prompt_batch(given_rows[:2])):
        columns = batch.non_tensor_batch
        assert "response" not in columns
        assert all(column.shape == (2,) for column in columns.values())
        assert columns["data_source"].tolist() == [ROWS[0]["data_source"], ROWS[1]["data_source"]]
        assert columns["raw_prompt"].tolist() == [ROWS[0]["prompt"], ROWS[1]["prompt"]]
        assert columns["extra_info"].tolist() == [ROWS[0]["extra_info"], {}]
        assert columns["index"].tolist() == [0, 0]
        assert len(set(columns["uid"])) == 2
    assert rig.scored_batch(given_rows[:2], config).non_tensor_batch["__num_turns__"].dtype == np.int32


def test_what_verl_writes_into_a_batch_does_not_reach_the_rows(config):
    rows = copy.deepcopy(ROWS[:2])
    for batch in (rig.scored_batch(rows, config), rig.prompt_batch(rows)):
        for column in ("extra_info", "reward_model"):
            batch.non_tensor_batch[column][0]["written"] = True
        batch.non_tensor_batch["raw_prompt"][0].append("written")
    assert rows == ROWS[:2]


@pytest.mark.parametrize("part", ["prompt", "response"])
def test_a_row_that_is_too_long_is_refused_by_number_data_source_and_limit(part, config):
    rows = [row(), row(**{part: "x" * 600})]
    count = {"prompt": r"6\d\d", "response": "601"}[part]
    said = (
        rf"^row 1 \(data source 'openai/gsm8k'\): the {part} has {count} tokens, "
        rf"and {part}_length is 512; override data.max_{part}_length$"
    )
    for use in (rig.scored_batch, rig.RecordedClient):
        with pytest.raises(ValueError, match=said):
            use(rows, config)


def test_a_response_of_just_the_limit_with_its_end_of_text_is_accepted(config):
    assert rig.scored_batch([row("x" * 511)], config).batch["response_mask"].sum() == 512
    with pytest.raises(ValueError, match="the response has 513 tokens"):
        rig.scored_batch([row("x" * 512)], config)


# --- the recorded client ---------------------------------------------------------------------------------------------


def ask(client, prompt_ids, **more):
    return asyncio.run(client.generate("request", prompt_ids=prompt_ids, sampling_params={}, **more))


def prompt_ids(one, tokenizer):
    return tokenizer.apply_chat_template(one["prompt"], add_generation_prompt=True, return_dict=False)


def test_the_recorded_client_answers_each_prompt_with_its_response_also_after_pickling(config, tokenizer):
    client = pickle.loads(pickle.dumps(rig.RecordedClient(ROWS[:6], config, global_steps=3)))  # noqa: S301
    for one in ROWS[:6]:
        answer = ask(client, prompt_ids(one, tokenizer))
        assert tokenizer.decode(answer.token_ids, skip_special_tokens=True) == one["response"]
        assert answer.token_ids[-1] == tokenizer.eos_token_id
        assert answer.log_probs is None
        assert answer.extra_fields["min_global_steps"] == answer.extra_fields["max_global_steps"] == 3


def test_a_prompt_that_was_recorded_several_times_is_answered_by_the_rows_number(config, tokenizer):
    rows = [row(f"#### {number}") for number in range(3)]
    client = rig.RecordedClient(rows, config)
    answers = [ask(client, prompt_ids(rows[0], tokenizer), priority=number).token_ids for number in range(5)]
    texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    assert texts == ["#### 0", "#### 1", "#### 2", "#### 0", "#### 1"]


def test_every_token_has_a_log_probability_where_they_are_asked_for(config, tokenizer):
    client = rig.RecordedClient([row("ab")], config)
    asked = client.generate("r", prompt_ids=prompt_ids(row(), tokenizer), sampling_params={"logprobs": True})
    assert asyncio.run(asked).log_probs == [0.0] * 3


def test_a_prompt_that_was_not_recorded_is_a_lookup_error_that_counts_what_is(config, tokenizer):
    client = rig.RecordedClient(ROWS[:6], config)
    unknown = prompt_ids(row(prompt="who?"), tokenizer)
    with pytest.raises(LookupError, match=rf"prompt of {len(unknown)} tokens; 6 prompts are on record"):
        ask(client, unknown)


# --- verl's configuration --------------------------------------------------------------------------------------------


def test_overrides_come_last_and_win(model_dir):
    config = rig.compose_config(model_dir, ["reward.num_workers=5", "data.max_response_length=7"])
    assert config.reward.num_workers == 5
    assert config.actor_rollout_ref.rollout.response_length == 7
    assert config.actor_rollout_ref.model.path == str(model_dir)


def test_a_hydra_that_was_not_initialized_is_not_so_afterwards(model_dir):
    assert not GlobalHydra.instance().is_initialized()
    rig.compose_config(model_dir)
    assert not GlobalHydra.instance().is_initialized()


def test_a_hydra_that_was_initialized_is_found_as_it_was_also_after_a_wrong_override(model_dir):
    with initialize_config_module("verl.trainer.config", version_base=None):
        found = GlobalHydra.instance().hydra
        rig.compose_config(model_dir)
        assert GlobalHydra.instance().hydra is found
        with pytest.raises(HydraException):
            rig.compose_config(model_dir, ["no.such.key=1"])
        assert GlobalHydra.instance().hydra is found
        assert compose("ppo_trainer", overrides=["data.max_prompt_length=9"]).data.max_prompt_length == 9
    assert not GlobalHydra.instance().is_initialized()
