"""Teaches `verl.protocol`: where verl names `DataProto`, a batch that is ours is handled by our class."""

from __future__ import annotations

from typing import Any

from verl_ext.column import raw_columns
from verl_ext.plugin._site import Function, PatchSite

site = PatchSite(
    name="protocol",
    module="verl.protocol",
    purpose="batches of different reward schemas cannot be concatenated or united",
)


@site.wraps("DataProto.concat", "data")
def _concat(stock: Function) -> Function:
    def concat(data: Any) -> Any:
        from verl_ext.protocol import SparseDataProto, is_ours

        return SparseDataProto.concat(data) if any(map(is_ours, data)) else stock(data)

    return concat


@site.wraps("DataProto.union", "self", "other")
def _union(stock: Function) -> Function:
    def union(self: Any, other: Any) -> Any:
        from verl_ext.protocol import guarded_union, is_ours

        return guarded_union(self, other) if is_ours(self) or is_ours(other) else stock(self, other)

    return union


@site.wraps("DataProto.make_iterator", "self", "mini_batch_size", "epochs", "seed", "dataloader_kwargs")
def _make_iterator(stock: Function) -> Function:
    return _by_our_class(stock, "make_iterator")


@site.wraps("DataProto.to_tensordict", "self")
def _to_tensordict(stock: Function) -> Function:
    def to_tensordict(self: Any) -> Any:
        from verl_ext.protocol import refuse_names_that_are_no_text

        refuse_names_that_are_no_text(self)
        return stock(self)

    return _by_our_class(to_tensordict, "to_tensordict")


@site.wraps("DataProto.from_tensordict", "cls", "tensor_dict", "meta_info", "num_batch_dims")
def _from_tensordict(stock: Function) -> Function:
    def from_tensordict(cls: Any, tensor_dict: Any = None, meta_info: Any = None, num_batch_dims: int = 1) -> Any:
        from verl_ext.protocol import COLUMNS_MARK, SparseDataProto

        if COLUMNS_MARK in tensor_dict.keys() and not issubclass(cls, SparseDataProto):
            return SparseDataProto.from_tensordict(tensor_dict, meta_info, num_batch_dims)
        return stock(cls, tensor_dict, meta_info, num_batch_dims)

    return from_tensordict


def _by_our_class(stock: Function, name: str) -> Function:
    """For a plain batch that carries a raw column: the method of `SparseDataProto`."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        from verl_ext.protocol import SparseDataProto, as_sparse

        if raw_columns(self.non_tensor_batch) and not isinstance(self, SparseDataProto):
            return getattr(as_sparse(self), name)(*args, **kwargs)
        return stock(self, *args, **kwargs)

    return method
