"""What an expression of a kernel means, in terms of the kernel's parameters."""

from __future__ import annotations

from tilewright.knowledge.rewrites.kernels import exposed, flow, following, language
from tilewright.knowledge.rewrites.launches import kernels
from tilewright.knowledge.rewrites.source import Source, read
from tilewright.knowledge.rewrites.values import Access, Flow, broadcast

HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra.libdevice import tanh\n\n\n"
HELPERS = """
@triton.jit
def scaled(a, b):
    return tanh(a) * b


@triton.jit
def stored(p, v):
    tl.store(p, v)


"""


def parsed(body: str, arguments: str = "x_ptr, y_ptr, stride, n, BLOCK: tl.constexpr") -> tuple[Source, Flow]:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    source = read(f"{HEAD}{HELPERS}@triton.jit\ndef kernel({arguments}):\n{lines}")
    assert source is not None
    return source, flow(source, kernels(source)["kernel"])


def accesses(body: str) -> list[Access]:
    return parsed(body)[1].accesses


def test_two_spellings_of_one_address_are_equal() -> None:
    one, two = accesses(
        """
row = tl.program_id(0)
cols = tl.arange(0, BLOCK)
a = tl.load(x_ptr + row * stride + cols)
x_ptr += stride * row
b = tl.load(cols + x_ptr)
"""
    )
    assert one.pointer.text == two.pointer.text
    assert one.root == two.root == "x_ptr"


def test_equal_ranges_give_equal_positions_and_other_ranges_do_not() -> None:
    loads = accesses(
        """
for i in range(0, n, BLOCK):
    a = tl.load(x_ptr + i + tl.arange(0, BLOCK))
for j in tl.range(0, n, BLOCK, num_stages=2):
    b = tl.load(x_ptr + (j + tl.arange(0, BLOCK)))
for k in range(BLOCK, n, BLOCK):
    c = tl.load(x_ptr + k + tl.arange(0, BLOCK))
"""
    )
    assert loads[0].pointer.text == loads[1].pointer.text
    assert loads[0].pointer.text != loads[2].pointer.text


def test_a_pointer_that_a_branch_moved_equals_nothing_before_it_but_keeps_its_parameter() -> None:
    before, after = accesses(
        """
a = tl.load(x_ptr)
if n > 3:
    x_ptr += stride
b = tl.load(x_ptr)
"""
    )
    assert before.pointer.text != after.pointer.text
    assert after.root == "x_ptr"


def test_a_branch_that_leaves_the_kernel_changes_nothing_after_it() -> None:
    before, after = accesses(
        """
a = tl.load(x_ptr)
if n > 3:
    x_ptr += stride
    return
b = tl.load(x_ptr)
"""
    )
    assert before.pointer.text == after.pointer.text


def test_a_value_carried_round_a_loop_is_not_what_it_was_before() -> None:
    before, inside, after = accesses(
        """
a = tl.load(x_ptr)
for i in range(n):
    b = tl.load(x_ptr)
    x_ptr += stride
c = tl.load(x_ptr)
"""
    )
    assert len({before.pointer.text, inside.pointer.text, after.pointer.text}) == 3


def test_what_was_loaded_equals_nothing_else() -> None:
    loads = accesses("i = tl.load(x_ptr)\nj = tl.load(x_ptr)\na = tl.load(y_ptr + i)\nb = tl.load(y_ptr + j)")
    assert loads[2].pointer.text != loads[3].pointer.text


def test_shapes_go_through_broadcasts_reductions_and_helpers() -> None:
    source, found = parsed(
        """
rows = tl.arange(0, 16)
cols = tl.arange(0, BLOCK)
tile = tl.load(x_ptr + rows[:, None] * stride + cols[None, :], mask=cols[None, :] < n, other=0.0)
total = tl.sum(scaled(tile, cols), axis=1)
top = tl.max(tile)
kept = tl.sum(tile, axis=0, keep_dims=True)
"""
    )
    shapes = {source.code(node): value.shape for node, value in found.values.items()}
    assert shapes["tl.sum(scaled(tile, cols), axis=1)"] == ("16",)
    assert shapes["scaled(tile, cols)"] == ("16", "BLOCK")
    assert shapes["tl.max(tile)"] == ()
    assert shapes["tl.sum(tile, axis=0, keep_dims=True)"] == ("1", "BLOCK")


def test_extents_that_cannot_be_shown_to_agree_have_no_shape() -> None:
    assert broadcast(("A", "1"), ("B",)) == ("A", "B")
    assert broadcast(("A",), ("B",)) is None
    assert broadcast((), None) is None


def test_a_helper_that_stores_is_an_effect_and_one_that_computes_is_not() -> None:
    kinds = [a.kind for a in accesses("v = scaled(1.0, 2.0)\nstored(x_ptr, v)")]
    assert kinds == ["call"]


def test_what_is_not_followed_is_said() -> None:
    assert parsed("while n > 0:\n    n -= 1")[1].unclear == ["while"]
    assert parsed("for i in range(n):\n    break")[1].unclear == ["break"]
    assert parsed("unheard_of(n)")[1].unclear == ["call of unheard_of"]


def test_triton_is_known_under_the_names_that_a_module_gives_it() -> None:
    source = read("import triton.language as T\nfrom triton.language import load\nfrom triton import language\n")
    assert source is not None
    spoken = language(source)
    assert spoken.prefix == "T"
    assert spoken.names == {"load": "load"}
    assert "language" in spoken.aliases


def test_a_name_is_exposed_where_its_earlier_value_may_be_read() -> None:
    source, _ = parsed(
        """
for i in range(n):
    if n > 2:
        a = 1
    else:
        a = 2
    b = a + c
    c = b
d = i
"""
    )
    loop = kernels(source)["kernel"].node.body.body[0]
    body = loop.body.body  # type: ignore[union-attr]  # a loop has a block
    assert exposed(body, "a") == (False, True)
    assert exposed(body, "b") == (False, True)
    assert exposed(body, "c") == (True, False)
    assert [source.code(s) for s in following(source, loop)] == ["d = i"]
