"""Launch sites are read from the syntax alone, in the styles in which people write them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from tilewright.knowledge.rewrites.bindings import row_cover
from tilewright.knowledge.rewrites.launches import (
    Launch,
    before,
    give,
    grid_axes,
    kernels,
    launches,
    mentions,
    meta_name,
    own,
    shared_grid,
)
from tilewright.knowledge.rewrites.source import Source, patched, read

KERNEL = """
import torch, triton
import triton.language as tl

@triton.jit
def k(x_ptr, n, BLOCK: tl.constexpr, FLAG: tl.constexpr = False):
    pass

"""


def one(host: str) -> tuple[Source, Launch]:
    source = read(KERNEL + textwrap.dedent(host))
    assert source is not None
    (site,) = launches(source)
    return source, site


@pytest.mark.parametrize(
    ("host", "axes"),
    [
        ("def launch(x, n):\n    k[(n,)](x, n, BLOCK=4)\n", ["n"]),
        ("def launch(x, n):\n    k[n, 2](x, n, BLOCK=4)\n", ["n", "2"]),
        ("def launch(x, n):\n    grid = (n, 3)\n    k[grid](x, n, BLOCK=4)\n", ["n", "3"]),
        ("def launch(x, n):\n    k[lambda meta: (n // 2,)](x, n, BLOCK=4)\n", ["n // 2"]),
        (
            "def launch(x, n):\n    g = lambda m: [triton.cdiv(n, m['BLOCK'])]\n    k[g](x, n, BLOCK=4)\n",
            ["triton.cdiv(n, m['BLOCK'])"],
        ),
        ("def launch(x, n):\n    def grid(meta):\n        return (n,)\n    k[grid](x, n, BLOCK=4)\n", ["n"]),
        ("def launch(x, n, grid):\n    k[grid](x, n, BLOCK=4)\n", None),
        ("def launch(x, n):\n    grid = (n,)\n    if n > 4:\n        grid = (4,)\n    k[grid](x, n, BLOCK=4)\n", None),
    ],
)
def test_a_grid_is_followed_to_its_axes_or_not_at_all(host: str, axes: list[str] | None) -> None:
    source, site = one(host)
    found = grid_axes(source, site)
    assert (None if found is None else [source.code(a) for a in found]) == axes


def test_arguments_reach_parameters_by_position_keyword_and_dict() -> None:
    source, site = one(
        """
        def launch(x, n):
            meta = dict(BLOCK=64, num_warps=8)
            k[(n,)](x, n=n, **meta)
        """
    )
    assert {name: source.code(v) for name, v in site.bound.items()} == {"x_ptr": "x", "n": "n", "BLOCK": "64"}
    assert {name: source.code(v) for name, v in site.options.items()} == {"num_warps": "8"}
    assert site.positional == 1
    assert site.complete


def test_a_dict_that_something_else_touches_is_not_read() -> None:
    source, site = one(
        """
        def launch(x, n):
            meta = {"BLOCK": 64}
            meta["FLAG"] = True
            k[(n,)](x, n, **meta)
        """
    )
    assert "BLOCK" not in site.bound
    assert not site.complete
    assert [source.code(s) for s in site.spread] == ["**meta"]


def test_a_kernel_that_is_passed_around_has_more_mentions_than_launches() -> None:
    source, _ = one("def launch(x, n):\n    k[(n,)](x, n, BLOCK=4)\n\nTABLE = [k]\n")
    assert mentions(source, "k") == 2
    assert len(launches(source, "k")) == 1


def test_launches_in_methods_and_through_wrappers_are_found() -> None:
    source = read(
        KERNEL
        + textwrap.dedent(
            """
            class Op(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    k[(x.shape[0],)](x, x.shape[1], BLOCK=16)

            def other(x, n):
                torch.library.wrap_triton(k)[(n,)](x, n, BLOCK=16)
            """
        )
    )
    assert source is not None
    assert len(launches(source)) == 2


@pytest.mark.parametrize(
    ("value", "covered"),
    [
        ("triton.next_power_of_2(n)", "n"),
        ("max(16, triton.next_power_of_2(n))", "n"),
        ("min(1024, triton.next_power_of_2(n))", None),
        ("settings(n)[0]", None),
        ("1024", None),
    ],
)
def test_a_block_that_covers_its_row_is_told_from_one_that_may_not(value: str, covered: str | None) -> None:
    source, site = one(f"def launch(x, n):\n    B = {value}\n    k[(n,)](x, n, BLOCK=B)\n")
    found = row_cover(source, site.bound["BLOCK"], site.call)
    assert (None if found is None else source.code(found)) == covered


def test_a_cover_is_followed_through_a_helper_that_returns_a_pair(liger: Callable[[str], str]) -> None:
    source = read(liger("layer_norm"))
    assert source is not None
    (site,) = launches(source)
    covered = row_cover(source, site.bound["BLOCK_SIZE"], site.call)
    assert covered is not None
    assert source.code(covered) == "n_cols"


def test_giving_values_replaces_adds_and_keeps_the_rest_as_written() -> None:
    source, site = one(
        """
        def launch(x, n):
            # rows
            k[(n,)](
                x,  # input
                n,
                BLOCK=(64),
                num_warps = 4,
                **extra,
            )
        """
    )
    after = patched(source, give(source, site, {"BLOCK": "128", "num_warps": "8", "num_stages": "2"}))
    assert after.endswith(
        """
def launch(x, n):
    # rows
    k[(n,)](
        x,  # input
        n,
        BLOCK=128,
        num_warps = 8,
        num_stages=2,
        **extra,
    )
"""
    )


def test_a_dict_shared_by_two_launches_belongs_to_neither() -> None:
    source = read(
        KERNEL
        + textwrap.dedent(
            """
            def launch(x, n):
                meta = {"BLOCK": 64}
                k[(n,)](x, n, **meta)
                k[(n,)](x, n, **meta)
            """
        )
    )
    assert source is not None
    first, _ = launches(source)
    assert own(source, first, "BLOCK") is None
    with pytest.raises(ValueError, match="BLOCK comes through a dict"):
        give(source, first, {"BLOCK": "128"})


def test_a_statement_goes_in_front_of_the_launch_with_its_margin() -> None:
    source, site = one("def launch(x, n):\n    if n:\n        k[(n,)](x, n, BLOCK=4)\n")
    patch = before(source, site.call, ["a = 1", "b = 2"])
    assert patch is not None
    assert "    if n:\n        a = 1\n        b = 2\n        k[" in patched(source, [patch])


def test_a_launch_in_a_one_line_suite_has_no_line_to_stand_before() -> None:
    source, site = one("def launch(x, n):\n    if n: k[(n,)](x, n, BLOCK=4)\n")
    assert before(source, site.call, ["a = 1"]) is None


def test_the_grid_of_several_launches_is_known_to_be_shared() -> None:
    source = read(KERNEL + "def launch(x, n):\n    g = (n,)\n    k[g](x, n, BLOCK=4)\n    k[g](x, n, BLOCK=8)\n")
    assert source is not None
    assert [shared_grid(source, site) for site in launches(source)] == [True, True]


def test_the_meta_parameter_of_a_lambda_grid_is_named() -> None:
    source, site = one("def launch(x, n):\n    g = lambda META: (n,)\n    k[g](x, n, BLOCK=4)\n")
    assert meta_name(source, site) == "META"


def test_helpers_and_decorated_functions_count_as_kernels_only_under_jit() -> None:
    source = read(KERNEL + "def plain(x):\n    pass\n\n@other\ndef decorated(x):\n    pass\n")
    assert source is not None
    assert list(kernels(source)) == ["k"]
    assert [p.name for p in kernels(source)["k"].parameters if p.constexpr] == ["BLOCK", "FLAG"]


def test_text_that_is_not_python_has_no_source() -> None:
    assert read("def launch(:\n") is None
