"""What is launched again and again: its arguments are given back as they were, and shared where they are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import bench_kernels as k
import torch

from tunefarm.bench.loaded import Loaded
from tunefarm.spec.workload import Workload


def loaded(workload: Workload, **arguments: Any) -> Loaded:
    return Loaded.of(workload, lambda *values: None, arguments)


def workload(**more: Any) -> Workload:
    return Workload(call=k.scale, kernel=k.scale_kernel, inputs={"x": ["N"]}, reference=None, **more)


def test_tf_045_what_repeats_one_element_is_kept_and_given_back_as_one() -> None:
    """A dense copy would hold a million elements, and could not be written back where they share a place."""
    one = torch.ones(1)
    x = one.expand(1 << 20, 2)
    ready = loaded(workload(restore=["x"]), x=x, y=torch.zeros(4), n=4)
    one.fill_(7)
    ready.renew()
    assert one.tolist() == [1.0]
    assert (x.stride(), x.untyped_storage().nbytes()) == ((0, 0), 4)


def test_tf_044_what_lies_apart_is_given_back_where_it_lay_and_nothing_else_is_touched() -> None:
    room = torch.arange(12.0)
    x = room[1:].as_strided((2, 3), (1, 3))
    ready = loaded(workload(restore=["x"]), x=x, y=torch.zeros(4), n=6)
    room.fill_(-1)
    ready.renew()
    assert x.tolist() == [[1.0, 4.0, 7.0], [2.0, 5.0, 8.0]]
    assert room[0] == room[9] == -1


def test_zeroed_arguments_are_known_by_their_storage() -> None:
    y = torch.ones(4)
    ready = loaded(workload(zero=["y"]), x=torch.ones(4), y=y, n=4)
    ready.renew()
    assert y.tolist() == [0.0] * 4
    assert ready.zeroed == {y.untyped_storage().data_ptr()}


def writing(**arguments: Any) -> Loaded:
    """A launch that was seen to write into y."""
    made = loaded(workload(), **arguments)
    made.written = frozenset({"y"})
    return made


def test_those_who_sit_together_write_to_the_same_place() -> None:
    """Where size, type, strides and alignment agree: all else keeps its own, and so does what is only read."""
    first = writing(x=torch.zeros(32), y=torch.zeros(32), n=32)
    shared = writing(x=torch.ones(32), y=torch.zeros(32), n=31).sharing(first.arguments)
    assert shared.arguments["y"] is first.arguments["y"]
    assert shared.arguments["n"] == 31
    for other in (torch.zeros(33), torch.zeros(32, dtype=torch.int32), torch.zeros(64)[::2], torch.zeros(33)[1:]):
        unlike = writing(x=first.arguments["x"], y=other, n=32)
        assert unlike.sharing(first.arguments) is unlike


def test_what_is_read_stays_each_one_s_own() -> None:
    """A table of padded ids has the same size for every config, and other content."""
    first = writing(x=torch.arange(4.0), y=torch.zeros(4), n=4)
    second = writing(x=torch.arange(4.0).flip(0), y=torch.zeros(4), n=4)
    assert second.sharing(first.arguments).arguments["x"].tolist() == [3.0, 2.0, 1.0, 0.0]


def test_a_descriptor_that_is_written_through_points_to_the_same_place() -> None:
    @dataclass
    class Descriptor:
        base: torch.Tensor
        block: int

    first = writing(x=torch.zeros(4), y=Descriptor(torch.zeros(4), 2), n=4)
    second = writing(x=torch.zeros(4), y=Descriptor(torch.zeros(4), 1), n=4)
    shared = second.sharing(first.arguments).arguments["y"]
    assert shared.base is first.arguments["y"].base
    assert shared.block == 1
    assert second.arguments["y"].base is not shared.base
