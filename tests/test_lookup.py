"""Lookup: device before problem, the first match wins, and a miss says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunefarm.config import LIBRARY, Config
from tunefarm.device import Device
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Code, Match, Pack, Provenance, Row, Table
from tunefarm.problem import Problem
from tunefarm.runtime.lookup import Activation, Step, difference, explain, find, shortlist, step_of

NAMES = ("NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA H20-3e", "NVIDIA H20", "NVIDIA H2000")


def make_device(name: str = "NVIDIA H200", **changes: Any) -> Device:
    device = Device(arch="sm_90", name=name, num_sms=132, shared_bytes=232448, bandwidth_gbps=4800.0)
    return replace(device, **changes)


def make_match(n: Any, **changes: Any) -> Match:
    match = Match(dims=FrozenMap(n=n), dtypes=FrozenMap(x="bf16"), facts=FrozenMap(n="div16", x="div16"))
    return replace(match, **changes)


def make_activation(
    *matches: Match, device: Device | None = None, source: str = "measured", triton: str = "3.6.0", tag: int = 0,
    source_hash: str = "a", **terms: Any,
) -> Activation:  # fmt: skip
    provenance = Provenance(
        sweep="s", experiment="", toolchain=FrozenMap(), timer="cold", source=source, tunefarm="0", created=""
    )
    rows = tuple(
        Row(
            match=match, measured_at=FrozenMap(n=i), config=Config(params={"BLOCK": i, "TAG": tag}), median_ms=1.0,
            interval_ms=(1.0, 1.0),
        )
        for i, match in enumerate(matches)
    )  # fmt: skip
    table = Table(
        kernel="k", source_hash=source_hash, device=device or make_device(), key_parts=FrozenMap(triton=triton),
        provenance=provenance, rows=rows,
    )  # fmt: skip
    return Activation(pack=Pack(tables=(table,)), label=f"pack{tag}", **terms)


def make_call(n: Any = 512, **changes: Any) -> Problem:
    problem = Problem(dims=FrozenMap(n=n), dtypes=FrozenMap(x="bf16"), facts=FrozenMap(n="div16", x="div16"))
    return replace(problem, **changes)


def listed(*activations: Activation, device: Device | None = None, triton: str = "3.6.0") -> Any:
    return shortlist(activations, "k", "a", device or make_device(), triton)


def test_tf_064_names_are_compared_whole() -> None:
    """NVIDIA H20 is no kind of NVIDIA H200, and each name is found under itself."""
    devices = [make_device(name, bandwidth_gbps=0.0) for name in NAMES]
    for here in devices:
        steps = {tuned.name: step_of(tuned, here) for tuned in devices}
        assert [name for name, step in steps.items() if step is Step.DEVICE] == [here.name]
        assert Step.TWIN not in steps.values()


def test_steps() -> None:
    here = make_device()
    assert step_of(make_device("OEM H200", bandwidth_gbps=4400.0), here) is Step.TWIN
    assert step_of(make_device("NVIDIA H100 80GB HBM3", bandwidth_gbps=3352.0), here) is Step.ARCH
    assert step_of(make_device("OEM H200", num_sms=114), here) is Step.ARCH
    assert step_of(make_device(num_sms=114), here) is Step.ARCH
    assert step_of(make_device(mig="1g.18gb"), here) is Step.ARCH
    assert step_of(make_device("OEM H200", bandwidth_gbps=0.0), replace(here, bandwidth_gbps=0.0)) is Step.ARCH
    assert step_of(make_device(arch="sm_80"), here) is None
    assert step_of(make_device(vendor="amd"), here) is None


def test_device_outranks_problem_and_later_packs_win() -> None:
    wide = make_match((0, 1 << 20))
    far = make_activation(wide, device=make_device("NVIDIA H100", bandwidth_gbps=3352.0), tag=1)
    old, new = make_activation(wide, tag=2), make_activation(make_match((0, 600)), tag=3)
    offers = listed(old, new, far).offers
    assert [(o.row.config.params["TAG"], o.step) for o in offers] == [
        (3, Step.DEVICE), (2, Step.DEVICE), (1, Step.ARCH),
    ]  # fmt: skip
    for n, tag in ((512, 3), (1024, 2)):
        found = find(offers, make_call(n), {"n", "x"})
        assert found is not None
        assert found.row.config.params["TAG"] == tag


def test_the_first_match_wins() -> None:
    offers = listed(make_activation(make_match((0, 1000)), make_match((0, 2000)), make_match(4096))).offers
    blocks = []
    for n in (16, 1600, 4096, 2048):
        found = find(offers, make_call(n), {"n"})
        blocks.append(None if found is None else found.row.config.params["BLOCK"])
    assert blocks == [0, 1, 2, None]


def test_tf_060_every_tensors_dtype_is_in_the_key() -> None:
    offers = listed(make_activation(make_match((0, 1000)))).offers
    for dtypes in ({"x": "fp16"}, {}, {"x": "bf16", "index": "i64"}):
        assert find(offers, make_call(dtypes=FrozenMap(dtypes)), {"n", "x"}) is None
    assert "x is fp16, tuned bf16" in explain(offers, (), make_call(dtypes=FrozenMap(x="fp16")), {"n", "x"})


@pytest.mark.parametrize(
    ("call", "specialised", "fits"),
    [
        (make_call(), {"n", "x"}, True),
        (make_call(facts=FrozenMap(x="div16")), {"n", "x"}, False),
        (make_call(facts=FrozenMap(n="div16")), {"n", "x"}, False),
        (make_call(facts=FrozenMap(n="div16")), {"n"}, True),
        (make_call(facts=FrozenMap()), set(), True),
        (make_call(facts=FrozenMap(n="div16", x="div16", bias="none")), {"n", "x"}, False),
    ],
)
def test_facts_match_exactly_where_the_compiler_specialises(call: Problem, specialised: set[str], fits: bool) -> None:
    assert (not difference(make_match((0, 1000)), call, specialised)) is fits


def test_an_exact_dim_settles_its_fact() -> None:
    assert not difference(make_match(500, facts=FrozenMap(x="div16")), make_call(500), {"n", "x"})


def test_a_dim_that_was_not_passed_is_a_miss() -> None:
    assert difference(make_match((0, 9)), make_call(dims=FrozenMap()), ()) == ("n is 'not passed', tuned for (0, 9]",)


def test_other_source_is_a_miss_and_replayed_rows_are_refused() -> None:
    found = listed(make_activation(make_match((0, 9)), source_hash="b"))
    assert not found.offers
    assert "source has changed" in found.refused[0]
    found = listed(make_activation(make_match((0, 9)), source="replayed"))
    assert not found.offers
    assert "allow_replayed" in found.refused[0]
    assert listed(make_activation(make_match((0, 9)), source="replayed", allow_replayed=True)).offers
    found = listed(make_activation(make_match((0, 9)), device=make_device(arch="sm_80")))
    assert not found.offers
    assert "tuned for sm_80, here is sm_90" in found.refused[0]


def test_tf_071_another_triton_is_used_and_noted_or_refused_when_strict() -> None:
    old, same = make_activation(make_match((0, 9)), triton="3.2.0", tag=1), make_activation(make_match((0, 9)))
    found = listed(same, old)
    assert [o.row.config.params["TAG"] for o in found.offers] == [0, 1]  # equal Triton first, though older
    assert "tuned under Triton 3.2.0, here is 3.6.0" in found.notes[0]
    strict = listed(make_activation(make_match((0, 9)), triton="3.2.0", strict=True))
    assert not strict.offers
    assert "3.2.0" in strict.refused[0]
    assert not listed(make_activation(make_match((0, 9)), device=make_device(num_sms=1), strict=True)).offers


def test_imported_rows_are_used_and_noted_behind_measured_ones_or_refused_when_strict() -> None:
    foreign, own = make_activation(make_match((0, 9)), source="imported", tag=1), make_activation(make_match((0, 9)))
    both = replace(own, pack=Pack(tables=(*foreign.pack.tables, *own.pack.tables)))
    found = listed(both)
    assert [o.row.config.params["TAG"] for o in found.offers] == [0, 1]
    assert "imported (s), not measured by tunefarm" in found.notes[0]
    assert "imported" in listed(replace(foreign, strict=True)).refused[0]
    assert len(listed(replace(both, strict=True)).offers) == 1


def test_an_activation_may_name_its_device() -> None:
    activation = make_activation(make_match((0, 9)), device=make_device(arch="sm_80"))
    pretended = replace(activation, device=make_device(arch="sm_80"))
    assert [o.step for o in listed(pretended).offers] == [Step.DEVICE]


def test_explain_names_the_nearest_row() -> None:
    offers = listed(make_activation(make_match(7, dtypes=FrozenMap(x="fp32")), make_match((0, 500)))).offers
    text = explain(offers, ("p: why",), make_call(), {"n", "x"})
    assert text.splitlines()[0] == "  nearest row n in (0, 500] div16, bf16: n is 512, tuned for (0, 500]"
    assert text.splitlines()[-1] == "  refused p: why"
    assert "no active pack" in explain((), (), make_call(), ())


# ---- on_miss="nearest" ----


@pytest.mark.parametrize(
    ("n", "block"), [(129, 0), (400, 0), (512, 0), (513, 1), (1024, 1), (1500, 1), (2048, 1), (2049, None), (63, None),
                     (64, None), (65, 0), (0, None), (-1, None)],
)  # fmt: skip
def test_tf_067_nearest_stretches_ranges_twice_and_no_further(n: int, block: int | None) -> None:
    """Ranges (128, 512] and (512, 1024]; whether n is divisible by 16 is no matter beyond what was tuned."""
    listing = listed(make_activation(make_match((128, 512)), make_match((512, 1024)), on_miss="nearest"))
    facts = {"x": "div16"} | ({"n": "div16"} if n % 16 == 0 else {})
    offer = find(listing.offers, make_call(n, facts=FrozenMap(facts)), {"n", "x"})
    assert (None if offer is None else offer.row.config.params["BLOCK"]) == block
    if offer is not None:
        assert offer.is_near == (not 128 < n <= 1024 or n % 16 != 0)
        assert offer.how == "same device" + (", nearest" if offer.is_near else "")


def test_nearest_neither_stretches_what_is_exact_nor_other_dtypes() -> None:
    listing = listed(make_activation(make_match(512), make_match((512, 1024)), on_miss="nearest"))
    assert len([o for o in listing.offers if o.is_near]) == 3
    other = make_call(2000, dtypes=FrozenMap(x="fp32"), facts=FrozenMap(x="div16", n="div16"))
    assert find(listing.offers, other, {"n", "x"}) is None


def test_only_the_latest_activation_s_word_on_misses_counts() -> None:
    nearest = make_activation(make_match((128, 512)), on_miss="nearest", tag=1)
    exact = make_activation(make_match((128, 512)), tag=2)
    assert not any(offer.is_near for offer in listed(nearest, exact).offers)
    assert {offer.row.config.params["TAG"] for offer in listed(exact, nearest).offers if offer.is_near} == {1, 2}


def test_tf_073_a_config_that_cannot_fit_is_refused_before_any_launch() -> None:
    """As far as the pack tells what its configs take; the device is that of the call, or the one to be matched."""
    (table,) = make_activation(make_match((0, 1024)), make_match((1024, 2048))).pack.tables
    large = Code(sha256="c", registers=64, spills=0, shared_bytes=200_000)
    table = replace(table, rows=(replace(table.rows[0], code=large), table.rows[1]))
    pack, small = Pack(tables=(table,)), make_device(shared_bytes=101_376)
    plenty = shortlist([Activation(pack=pack, label="p")], "k", "a", make_device(), "3.6.0")
    assert (len(plenty.offers), plenty.refused) == (2, ())
    for found in (
        shortlist([Activation(pack=pack, label="p")], "k", "a", small, "3.6.0"),
        shortlist([Activation(pack=pack, label="p", device=small)], "k", "a", make_device(), "3.6.0"),
    ):
        assert [offer.row for offer in found.offers] == [table.rows[1]]
        (reason,) = found.refused
        assert reason.endswith("takes 200000 bytes of shared memory, a block on NVIDIA H200 has 101376")
        assert find(found.offers, make_call(), ()) is None
        assert find(found.offers, make_call(2048), ()) is not None


def test_inductor_is_given_nothing_that_might_not_fit_another_device() -> None:
    """Its one choice is all it has: where that cannot be compiled, the job ends."""
    other = make_device(name="NVIDIA GH200 480GB", num_sms=131)
    (table,) = make_activation(make_match((0, 1024))).pack.tables
    (row,) = table.rows
    known = replace(row, code=Code(sha256="c" * 64, registers=40, spills=0, shared_bytes=1024))
    library = replace(row, config=LIBRARY)
    for each, layer, here, fits in (
        (row, 2, make_device(), True), (row, 2, other, False), (row, 3, other, False), (row, 1, other, True),
        (known, 2, other, True), (library, 2, other, True),
    ):  # fmt: skip
        parts = FrozenMap({**table.key_parts, "torch": "2.11.0"})
        pack = Pack(tables=(replace(table, rows=(each,), layer=layer, key_parts=parts),))
        found = shortlist([Activation(pack=pack, label="p")], "k", "a", here, "3.6.0", layer=layer, torch="2.11.0")
        assert (bool(found.offers), bool(found.refused)) == (fits, not fits)
