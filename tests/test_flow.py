"""Loops told from jumps back that are none."""

from __future__ import annotations

from tunefarm.bench.flow import Step, loops
from tunefarm.bench.listing import parse_ptx, parse_sass

GO, END = Step(), Step(falls=False)


def jump(*targets: int) -> Step:
    return Step(targets=targets, falls=False)


def branch(*targets: int) -> Step:
    return Step(targets=targets)


def test_straight_code_has_none() -> None:
    assert loops([]) == ()
    assert loops([GO, branch(3), GO, END]) == ()


def test_a_loop_is_all_that_reaches_its_end() -> None:
    (loop,) = loops([GO, GO, branch(4), GO, GO, branch(1), END])
    assert (loop.head, loop.body, loop.own, loop.depth) == (1, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, 0)


def test_a_loop_in_a_loop() -> None:
    outer, inner = loops([GO, GO, GO, branch(2), GO, branch(1), END])
    assert outer.body == {1, 2, 3, 4, 5}
    assert outer.own == {1, 4, 5}
    assert (inner.body, inner.depth) == ({2, 3}, 1)


def test_two_ways_back_to_one_head_are_one_loop() -> None:
    (loop,) = loops([GO, GO, branch(1), GO, branch(1), END])
    assert loop.body == {1, 2, 3, 4}


def test_code_out_of_line_is_no_loop() -> None:
    """Where it jumps back to does not always come before it; it is a part of the loop it was taken out of."""
    assert loops([GO, branch(4), GO, END, jump(2)]) == ()
    (loop,) = loops([GO, branch(5), GO, branch(1), END, jump(2)])
    assert loop.body == {1, 2, 3, 5}


def test_what_nothing_reaches_is_in_no_loop() -> None:
    assert loops([GO, END, jump(2)]) == ()


def test_a_cycle_with_two_entries_has_no_head() -> None:
    assert loops([branch(2), GO, branch(1), END]) == ()


def test_predicates_and_labels_of_a_listing() -> None:
    text = """
.text.kernel:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
	//## File "/a/kernel.py", line 7
        /*0010*/              @!P0 LDG.E.U16 R1, desc[UR4][R2.64] ;
        /*0020*/                   BSSY B0, `(.L_x_2) ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0040*/               @P1 EXIT ;
        /*0050*/                   EXIT ;
.L_x_3:
        /*0060*/                   BRA `(.L_x_3);
        /*0070*/                   NOP;
"""
    code = parse_sass(text)
    assert [i.opcode for i in code.instructions] == ["S2R", "LDG.E.U16", "BSSY", "BRA", "EXIT", "EXIT", "BRA"]
    assert str(code.instructions[1].place) == "kernel.py:7"
    (loop,) = code.loops
    assert loop.body == {1, 2, 3}


def test_a_loop_of_ptx() -> None:
    text = """
.visible .entry k()
{
	.reg .pred 	%p<2>;
	.loc	1 3 0
	mov.u32 	%r1, %tid.x;
$L__BB0_1:                              // %loop
	.loc	1 5 9
	@%p1 ld.global.v4.b32 { %r2, %r3, %r4, %r5 }, [ %rd1 + 0 ];
	@%p2 bra 	$L__BB0_1;
	ret;
}
	.file	1 "/a/kernel.py"
	.section	.debug_abbrev
	{
.b8 1
	}
"""
    code = parse_ptx(text)
    assert [i.opcode for i in code.instructions] == ["mov.u32", "ld.global.v4.b32", "bra", "ret"]
    assert str(code.instructions[1].place) == "kernel.py:5"
    assert [loop.body for loop in code.loops] == [{1, 2}]
