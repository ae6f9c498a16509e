"""Reading generated text: first written by hand, then as the installed Inductor writes it."""

from __future__ import annotations

import torch

from pygraph_inductor.codegen.generated_code import Use, read

from .fake_cuda import generate

HAND_WRITTEN = '''
kernel_0 = async_compile.triton('kernel_0', """...""", device_str='cuda')

def partition_0(args):
    a, b, c, d, s = args
    args.clear()
    assert_size_stride(a, (8, 8), (8, 1))
    assert_size_stride_grouped((b, d), ((8, 8), (8, 8)), ((8, 1), (8, 1)), 'input')
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        a = copy_if_misaligned(a)
        buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
        extern_kernels.mm(reinterpret_tensor(a, (8, 8), (1, 8), 0), b, out=buf0)
        stream0 = get_raw_stream(0)
        buf1 = reinterpret_tensor(c, (4, 16), (16, 1), 0); del c  # reuse
        kernel_0.run(buf0, a, buf1, s.item(), 64, stream=stream0)
        buf2 = buf1; del buf1  # reuse
        kernel_0.run(buf2, d, 64, stream=stream0)
        torch.ops._c10d_functional.all_reduce_.default(buf2, 'sum', '0')
    return (buf2, reinterpret_tensor(b, (64, ), (1, ), 0), )

class Runner:
    def call(self, args):
        x, y = args
        args.clear()
        if x.item():
            pass
        partition0_args = [x, y]
        (buf0, y) = self.partitions[0](partition0_args)
        return (buf0, y)
'''


def test_kernels_are_the_modules():
    assert all(text.kernels == {"kernel_0"} for text in read(HAND_WRITTEN).values())


def test_views_and_checks_are_seen_through():
    text = read(HAND_WRITTEN)["partition_0"]
    assert text.inputs == ("a", "b", "c", "d", "s")
    assert text.uses[0] == (Use("extern", "extern_kernels.mm"), Use("triton", "kernel_0", 1))
    assert text.uses[1] == (Use("extern", "extern_kernels.mm"), Use("returned"))
    assert text.uses[3] == (Use("triton", "kernel_0", 1),)
    assert text.uses[4] == (Use("host", "s.item"),)


def test_buffers_that_take_an_inputs_memory_over_are_followed():
    text = read(HAND_WRITTEN)["partition_0"]
    assert text.reused == {2}
    assert text.uses[2] == (
        Use("reused", "buf1"),
        Use("triton", "kernel_0", 2),
        Use("reused", "buf2"),
        Use("triton", "kernel_0", 0),
        Use("extern", "torch.ops._c10d_functional.all_reduce_.default"),
        Use("returned"),
    )


def test_allocators_and_collectives_are_found():
    text = read(HAND_WRITTEN)["partition_0"]
    assert text.allocators == ("empty_strided_cuda",)
    assert text.collectives == ("torch.ops._c10d_functional.all_reduce_.default",)
    # What runs a whole module runs its partitions.
    assert read(HAND_WRITTEN)["call"].allocators == text.allocators
    assert read(HAND_WRITTEN)["call"].collectives == text.collectives


def test_input_that_a_partition_passes_through_stays_an_input():
    text = read(HAND_WRITTEN)["call"]
    assert text.uses[0] == (Use("host", "x.item"), Use("extern", "self.partitions[0]"))
    assert text.uses[1] == (Use("extern", "self.partitions[0]"), Use("returned"))


def kinds(uses: tuple[Use, ...]) -> set[str]:
    return {use.kind for use in uses}


def test_uses_are_found_in_what_inductor_generates(cuda, tmp_path):
    def function(x, w, y, s):
        y.add_(1)
        return torch.sort(x + s)[0], x @ w, x.view(-1)

    scalar = {"size": (), "device": "cpu"}
    source = generate(function, (64, 64), (64, 64), (64, 64), scalar, folder=tmp_path).source
    partitions = [text for name, text in read(source).items() if name != "call"]
    uses: dict[str, set[str]] = {}
    for text in partitions:
        for position, name in enumerate(text.inputs):
            uses.setdefault(name, set()).update(kinds(text.uses[position]))
    assert {"triton", "extern"} <= uses["x_1"]
    assert uses["w_1"] == {"extern"}
    assert "triton" in uses["y_1"]
    assert {name for text in partitions for name in text.allocators} == {"empty_strided_cuda"}


def test_function_without_partitions_is_read_as_well(cuda, tmp_path):
    options = {"graph_partition": False}
    source = generate(lambda x, y: (x @ y,), (64, 64), (64, 64), folder=tmp_path, options=options).source
    assert set(read(source)) == {"call"}
    text = read(source)["call"]
    assert [kinds(text.uses[position]) for position in (0, 1)] == [{"extern"}, {"extern"}]


def test_cpu_code_is_read_as_well():
    from torch._inductor.utils import run_and_get_code

    compiled = torch.compile(lambda x: (x + 1).relu() @ x)
    _, [source] = run_and_get_code(compiled, torch.randn(8, 8))
    text = read(source)["call"]
    assert text.allocators == ("empty_strided_cpu",)
    assert kinds(text.uses[0]) == {"extern"}
