"""Code that follows our own page for workers, also where the plugin is off, or was never installed in that process."""

import pytest

import verl_ext

from .surroundings import DAPO, GSM8K, assert_same_content, assert_whole, lost, outcome
from .workers import Attaching, FirstSample


@pytest.mark.parametrize("infos", [[GSM8K] * 2, [DAPO] * 2, [{}] * 2], ids=["gsm8k", "dapo", "nothing"])
def test_with_the_plugin_off_attached_dicts_come_out_in_stocks_format(infos, verl, stock):
    with stock():
        output = verl.generated(infos, Attaching)
        like_verls = verl.generated(infos, FirstSample)
    only_there = set(like_verls.non_tensor_batch) - set(output.non_tensor_batch) - {"reward_extra_info"}
    like_verls.pop(non_tensor_batch_keys=list(only_there))  # extra fields that this worker does not hand on
    assert not any(name in DAPO for name in only_there)
    assert_same_content(output, like_verls)
    assert lost(output, infos) == []


@pytest.mark.parametrize("infos", [[GSM8K] * 2, [DAPO] * 2], ids=["gsm8k", "dapo"])
def test_with_the_plugin_off_two_workers_that_attach_are_joined_by_stock(infos, verl, stock):
    with stock():
        output = verl.generated(infos, Attaching, workers=2)
    assert lost(output, infos) == []
    assert output.meta_info["reward_extra_keys"] == list(infos[0])


@pytest.mark.parametrize("infos", [[GSM8K, DAPO], [DAPO, GSM8K]], ids=["the short schema first", "the long one first"])
def test_with_the_plugin_off_a_mixed_batch_is_no_worse_off_than_on_stock(infos, verl, stock):
    with stock():
        theirs = outcome(lambda: verl.generated(infos, FirstSample))
        ours = outcome(lambda: verl.generated(infos, Attaching))
    if isinstance(theirs, Exception):
        assert not isinstance(ours, Exception) or type(ours) is type(theirs)
    else:
        assert set(lost(ours, infos)) <= set(lost(theirs, infos))


def test_with_the_plugin_on_every_value_arrives(verl):
    assert_whole(verl.generated([GSM8K, DAPO], Attaching, workers=2), [GSM8K, DAPO])


def test_as_sparse_is_public_since_users_need_it(verl):
    assert "as_sparse" in verl_ext.__all__
    batch = verl.generated([DAPO], FirstSample)
    assert isinstance(verl_ext.as_sparse(batch), verl_ext.SparseDataProto)
