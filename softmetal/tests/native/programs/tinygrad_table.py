"""Operations of tinygrad, each with the shapes of its operands: what METAL must compute as CPU does.

A row is an expression of x, y and z, their shapes, and the range of their values if it is not -2 to 2.
"""

UNARY = """
exp exp2 log2 log sin cos tan sqrt rsqrt reciprocal tanh sigmoid relu relu6 elu celu selu silu gelu
quick_gelu swish mish softplus softsign hardswish hardsigmoid hardtanh leaky_relu logsigmoid abs neg
sign floor ceil round trunc square asin acos atan sinh cosh asinh acosh atanh erf isnan isinf
""".split()
POSITIVE = {"log2", "log", "sqrt", "rsqrt", "acosh"}  # acosh: from 1
WITHIN_ONE = {"asin", "acos", "atanh"}


def _range(name):
    if name in WITHIN_ONE:
        return (-0.9, 0.9)
    return (1.1, 3) if name in POSITIVE else (-2, 2)


ROWS = {
    "unary": [(f"x.{name}()", [shape], *_range(name)) for name in UNARY for shape in ((45, 3), ())],
    "binary": [
        *(
            (f"x {op} y", shapes)
            for op in ("+", "-", "*", "/", "<", "<=", "==", "!=", ">", ">=")
            for shapes in ([(5, 1, 4), (3, 1)], [(33,), (33,)], [(4, 0), (4, 0)])
        ),
        ("x ** 3", [(7, 5)]),
        ("x ** 0.5", [(7, 5)], 0.1, 3),
        ("x ** y", [(7, 5), (7, 5)], 0.1, 3),
        ("2 ** x", [(7, 5)]),
        ("x.maximum(y)", [(6, 5), (5,)]),
        ("x.minimum(y)", [(6, 5), (5,)]),
        ("(x < y).where(x, z)", [(6, 5), (5,), (6, 1)]),
        ("x.lerp(y, 0.3)", [(9,), (9,)]),
        ("x.clamp(-1, 0.5)", [(40,)]),
        ("x.copysign(y)", [(40,), (40,)]),
        ("(x * 100).int() // 7", [(40,)]),
        ("(x * 100).int() % 7", [(40,)]),
        ("(x * 100).int() & 12", [(40,)]),
        ("(x * 100).int() | 12", [(40,)]),
        ("(x * 100).int() ^ 12", [(40,)]),
        ("(x * 100).cast('uint32') << 3", [(40,)], 0, 2),
        ("(x * 100).cast('uint32') >> 2", [(40,)], 0, 2),
        ("((x > 0) & (y > 0)).logical_not()", [(40,), (40,)]),
    ],
    "reductions": [
        *(
            (f"x.{name}({axis})", [shape])
            for name in "sum mean max min var std argmax argmin".split()
            for shape, axis in (((45,), ""), ((6, 9), "1"), ((6, 9), "0"), ((3, 4, 5), "1"))
        ),
        *(
            (f"x.{name}({axis})", [shape])
            for name in "softmax log_softmax logsumexp cumsum".split()
            for shape, axis in (((45,), "0"), ((6, 9), "1"), ((3, 4, 5), "1"))
        ),
        ("x.cummax(1)[0]", [(6, 9)]),
        ("x.prod(1)", [(6, 4)]),
        ("(x > 1).any(0)", [(6, 9)]),
        ("(x > -1.5).all(1)", [(6, 9)]),
        ("x.sum((0, 2))", [(3, 4, 5)]),
        ("x.softmax().argmax()", [(45,)]),
        ("x.layernorm()", [(6, 33)]),
        ("x.cumprod(0)", [(9, 3)]),
        ("x.logcumsumexp(0)", [(9, 3)]),
        ("x.sum()", [(300, 70)]),
        ("x.square().sum().sqrt()", [(33,)]),
    ],
    "movement": [
        ("x.reshape(4, 6).permute(1, 0).flip(0)", [(24,)]),
        ("x.pad(((1, 2), (0, 1)))", [(3, 3)]),
        ("x.pad((1, 2), mode='reflect')", [(2, 3, 7)]),
        ("x.pad((1, 2), mode='replicate')", [(2, 3, 7)]),
        ("x.pad((1, 2), mode='circular')", [(2, 3, 7)]),
        ("x.shrink(((1, 3), (0, 2)))", [(4, 3)]),
        ("x.expand(4, 3, 2)", [(1, 3, 2)]),
        ("x[1:7:2, ::2].cat(x[:3, :2], dim=0)", [(8, 4)]),
        ("x[::-1, 1]", [(8, 4)]),
        ("x[..., None].squeeze(-1).unsqueeze(0)", [(5, 4)]),
        ("x.stack(y, dim=1)", [(5, 4), (5, 4)]),
        ("x.repeat((2, 3))", [(3, 4)]),
        ("x.repeat_interleave(2, dim=0)", [(3, 4)]),
        ("x.split(2, dim=0)[1] + x.chunk(3, dim=1)[0][:2]", [(5, 3)]),
        ("x.transpose(0, 2).contiguous()", [(3, 4, 5)]),
        ("x.flatten(1).unflatten(1, (4, 5))", [(3, 4, 5)]),
        ("x.tril() + x.triu(1)", [(5, 7)]),
        ("x.roll(2, 0)", [(7, 3)]),
        ("x.diagonal()", [(6, 6)]),
        ("x.unfold(0, 3, 2)", [(11,)]),
    ],
    "indexing": [
        ("x[Tensor([2, 0, 1, 1], device=x.device)]", [(3, 4)]),
        ("x[Tensor([2, 0], device=x.device), Tensor([[1], [3]], device=x.device)]", [(3, 4)]),
        ("x.gather(1, (y * 1.4).abs().int())", [(5, 4), (5, 3)]),
        ("x.scatter(0, (y.abs() * 2).int(), y)", [(5, 3), (1, 3)]),
        ("x.masked_fill(y > 0, 7)", [(5, 4), (5, 4)]),
        ("(x.abs() * 2).int().one_hot(5)", [(9,)]),
        ("x.sort(0)[0]", [(13, 2)]),
        ("x.topk(3)[0]", [(13,)]),
        ("x.argsort(0)", [(13,)]),
        ("Tensor.arange(37).to(x.device) * x", [(37,)]),
        ("Tensor.eye(5).to(x.device) @ x", [(5, 3)]),
        ("x.interpolate((7, 9), mode='linear')", [(1, 2, 4, 5)]),
        ("x.interpolate((7, 9), mode='nearest')", [(1, 2, 4, 5)]),
    ],
    "types": [
        *(
            (f"(x * 40).cast('{first}').cast('{second}')", [(33,)], 0, 2)
            for first in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
            for second in ("float32", "int32", "uint8", "bool", "float16")
        ),
        ("x.half().exp().float()", [(33,)]),
        ("x.bfloat16().float()", [(33,)]),
        ("x.bitcast('uint32')", [(33,)]),
        ("(x * 3).half().bitcast('uint16')", [(33,)]),
        ("x.half() @ y.half()", [(9, 16), (16, 5)]),
        ("(x * 9).cast('int8') @ (y * 9).cast('int8')", [(9, 16), (16, 5)]),
        ("(x * 1e4).cast('int64') * 3000000", [(33,)]),
        ("x.bool().logical_not()", [(33,)]),
    ],
    "products": [
        *(("x @ y", [(n, k), (k, m)]) for n, k, m in ((1, 7, 1), (17, 33, 9), (64, 64, 64), (3, 1, 5))),
        ("x @ y", [(2, 8, 8), (2, 8, 8)]),
        ("(x @ y).relu() + z", [(33, 20), (20, 7), (7,)]),
        ("x.dot(y)", [(45,), (45,)]),
        ("x.linear(y, z)", [(6, 10), (10, 4), (4,)]),
        ("Tensor.einsum('bij,bjk->bik', x, y)", [(2, 3, 4), (2, 4, 5)]),
        ("x.scaled_dot_product_attention(y, z)", [(2, 5, 8), (2, 7, 8), (2, 7, 8)]),
        ("x.scaled_dot_product_attention(y, y, is_causal=True)", [(1, 2, 5, 8), (1, 2, 5, 8)]),
        ("x.conv2d(y, padding=1)", [(1, 2, 6, 6), (3, 2, 3, 3)]),
        ("x.conv2d(y, z, stride=2)", [(2, 4, 9, 9), (6, 4, 3, 3), (6,)]),
        ("x.conv2d(y, groups=2, dilation=2)", [(1, 4, 9, 9), (4, 2, 3, 3)]),
        ("x.conv_transpose2d(y, stride=2)", [(1, 2, 4, 4), (2, 3, 3, 3)]),
        ("x.conv2d(y)", [(1, 2, 11), (3, 2, 3)]),
        ("x.max_pool2d(2)", [(1, 2, 8, 8)]),
        ("x.avg_pool2d((3, 3), stride=2, padding=1)", [(1, 2, 8, 8)]),
        ("x.batchnorm(None, None, x.mean((0, 2, 3)), x.var((0, 2, 3)).rsqrt())", [(2, 3, 4, 4)]),
        ("x.binary_crossentropy(y)", [(9,), (9,)], 0.1, 0.9),
        ("x.cross_entropy(y.softmax())", [(4, 5), (4, 5)]),
    ],
}  # fmt: skip
GRADIENTS = [
    ("(x @ y).relu().sum()", [(6, 5), (5, 4)]),
    ("(x.softmax(1) * y).sum()", [(6, 9), (6, 9)]),
    ("x.layernorm().square().sum() + y.tanh().sum()", [(6, 9), (4,)]),
    ("x.conv2d(y, padding=1).max_pool2d(2).sum()", [(1, 2, 6, 6), (3, 2, 3, 3)]),
    ("(x.sin() / (y.square() + 1)).mean()", [(7, 3), (3,)]),
    ("x.cumsum(1).max() + (y[1:].exp() * y[:-1]).sum()", [(3, 7), (9,)]),
    ("x.scaled_dot_product_attention(y, y).square().sum()", [(1, 4, 8), (1, 6, 8)]),
    ("x.gather(0, Tensor([[0, 2, 1]], device=x.device)).sum() + y.logsumexp()", [(4, 3), (9,)]),
]
