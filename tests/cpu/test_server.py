"""The model server by itself, as verl calls it: real transformers and a real tiny model, without Ray."""

import asyncio

import pytest
import torch

pytest.importorskip("verl.plugin.platform", reason="the rig needs verl >= 0.9")

from verl_ext.cpu.model import build_model
from verl_ext.cpu.server import SamplingError, Server

PROMPT = [10, 20, 30]
LENGTH = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server(model):
    return Server(str(model), LENGTH)


def _answer(server, request="1", **sampling):
    return asyncio.run(server.generate(request, prompt_ids=PROMPT, sampling_params={"logprobs": True, **sampling}))


def test_a_request_has_one_answer_however_often_it_is_asked(server):
    first, _, again = _answer(server), _answer(server, "2"), _answer(server)
    assert again.token_ids == first.token_ids
    assert again.log_probs == first.log_probs


def test_requests_have_answers_of_their_own(server):
    assert len({tuple(_answer(server, str(request)).token_ids) for request in range(8)}) > 1


def test_without_temperature_the_likeliest_token_is_taken(server):
    answers = [_answer(server, str(request), temperature=0) for request in range(3)]
    assert len({tuple(answer.token_ids) for answer in answers}) == 1


def test_log_probabilities_are_the_models(server, model):
    from transformers import AutoModelForCausalLM

    answer = _answer(server)
    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    logits = whole(torch.tensor([PROMPT + answer.token_ids])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1)[range(len(answer.token_ids)), answer.token_ids]
    assert answer.log_probs == pytest.approx(expected.tolist(), abs=1e-5)


def test_an_answer_is_as_long_as_is_asked_for(server):
    assert len(_answer(server, max_tokens=2).token_ids) == 2
    assert len(_answer(server).token_ids) <= LENGTH


def test_an_answer_ends_with_the_token_that_ends_it(server):
    end = next(iter(server._ends))
    weights = {name: torch.zeros_like(tensor) for name, tensor in server._model.state_dict().items()}
    asyncio.run(server.set_weights(weights, 1))
    server._model.lm_head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, torch.tensor([end]), 9.0))
    assert _answer(server, temperature=0).token_ids == [end]


def test_weights_are_those_of_the_last_sync_and_each_version_is_kept(model, tmp_path):
    server = Server(str(model), LENGTH, str(tmp_path / "weights"))
    doubled = {name: tensor * 2 for name, tensor in server._model.state_dict().items()}
    asyncio.run(server.set_weights(doubled, 7))
    kept = torch.load(tmp_path / "weights" / "7.pt", weights_only=True)
    served = server._model.state_dict()
    assert kept.keys() == served.keys()
    assert all(torch.equal(kept[name], doubled[name]) and torch.equal(served[name], doubled[name]) for name in kept)
    assert _answer(server).extra_fields["global_steps"] == 7


@pytest.mark.parametrize("sampling", [{"top_k": 5}, {"top_p": 0.9}])
def test_a_way_of_sampling_that_it_does_not_have_is_refused(server, sampling):
    with pytest.raises(SamplingError, match="top_k and top_p"):
        _answer(server, **sampling)
