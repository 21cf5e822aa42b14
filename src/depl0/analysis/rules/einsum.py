"""What an equation of ``einsum`` says, for products of a tensor with a stored weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from depl0.analysis.recording import arguments, operator_name, shape_of


@dataclass(frozen=True)
class Product:
    """A tensor times a weight, summed over one dimension of both, with one new dimension from the weight."""

    input: fx.Node
    weight: fx.Node
    input_dim: int
    output_dim: int
    weight_in: int
    weight_out: int
    macs_per_pair: int


def product_of(node: fx.Node) -> Product | None:
    """Read an equation; None where it is no plain layer: other sums, several weights, diagonals."""
    given = arguments(node)
    tensors = [n for n in given["tensors"] if isinstance(n, fx.Node)]
    terms, arrow, result = str(given["equation"]).replace(" ", "").partition("->")
    letters = terms.split(",")
    stored = [place for place, n in enumerate(tensors) if n.op == "placeholder"]
    if operator_name(node) != "einsum" or not arrow or len(tensors) != 2 or len(letters) != 2 or not stored:
        return None
    place = stored[-1]
    weight, source = letters[place], letters[1 - place]
    if "." in weight or any(len(set(term)) != len(term) for term in (weight, *(t.replace("...", "") for t in letters))):
        return None
    summed = [letter for letter in weight if letter in source and letter not in result]
    fresh = [letter for letter in weight if letter in result and letter not in source]
    shared = [letter for letter in weight if letter in source and letter in result]
    if len(summed) != 1 or len(fresh) != 1 or len(summed) + len(fresh) + len(shared) != len(weight):
        return None
    others = [letter for letter in source.replace("...", "") if letter not in weight and letter not in result]
    if others:  # summed over the tensor alone
        return None
    sizes = shape_of(node)
    dim = _place(fresh[0], result, len(sizes))
    return Product(
        tensors[1 - place],
        tensors[place],
        _place(summed[0], source, len(shape_of(tensors[1 - place]))),
        dim,
        weight.index(summed[0]),
        weight.index(fresh[0]),
        _count(sizes, dim),
    )


def _place(letter: str, term: str, ndim: int) -> int:
    """Return the dimension of a letter, which may lie behind an ellipsis."""
    before, dots, after = term.partition("...")
    if not dots or letter in before:
        return term.index(letter)
    return ndim - len(after) + after.index(letter)


def _count(sizes: tuple[int, ...], skip: int) -> int:
    product = 1
    for dim, size in enumerate(sizes):
        product *= 1 if dim == skip else size
    return product
