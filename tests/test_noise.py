"""The noise has the right law, hides the low bits of the sum, and never repeats itself unasked."""

import copy
import io
import json
import math
import os
import pickle
import shutil
import warnings

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats
from torch import Tensor

from psac.native import compiling
from psac.noise import gaussian as noise
from psac.noise import generators as randomness
from psac.noise import loops as noise_loops
from psac.noise.gaussian import add_noise_, grid
from psac.noise.generators import InsecureNoiseWarning, SecureGenerator, SeededGenerator

MILLION = 1_000_000


@pytest.fixture(autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either inner loop on demand, by `@each_loop`; else the one that the library chooses."""
    choice = {"torch": noise_loops.TorchLoops, "compiled": noise_loops.compiled}
    if hasattr(request, "param"):
        chosen = choice[request.param]()
        if chosen is None:
            pytest.skip("no C compiler here")
        monkeypatch.setattr(noise, "_loops", lambda: chosen)


each_loop = pytest.mark.parametrize("loops", ["torch", "compiled"], indirect=True)


def seeded(seed: int) -> SeededGenerator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureNoiseWarning)
        return SeededGenerator(seed)


def draw(count: int, *, seed: int = 0, std: float = 1.0, dtype=torch.float64) -> Tensor:
    total = torch.zeros(count, dtype=dtype)
    add_noise_([total], std=std, generator=seeded(seed))
    return total


def looks_standard_normal(sample: Tensor) -> bool:
    """Moments within five standard errors, and Kolmogorov-Smirnov at 1e-4."""
    count, x = len(sample), sample.double()
    moments = [(x, 0, 1), (x**2, 1, 2), (x**3, 0, 15), (x**4, 3, 96)]
    scores = [abs(m.mean().item() - mean) * math.sqrt(count / var) for m, mean, var in moments]
    return max(scores) < 5 and stats.kstest(x.numpy(), "norm").pvalue > 1e-4


# The law


@each_loop
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [1.0, 0.37, 1e-20, 12345.6])
def test_the_right_law_is_accepted(std, dtype):
    assert looks_standard_normal(draw(MILLION // 4, std=std, dtype=dtype) / std)


@each_loop
@pytest.mark.parametrize("factor", [0.9, 0.98, 1.02, 1.1])
def test_a_wrong_scale_is_rejected(factor):
    assert not looks_standard_normal(draw(MILLION // 4, std=factor))


def test_tails_have_the_right_mass_up_to_the_largest_of_ten_million():
    sample = draw(10 * MILLION, dtype=torch.float32).abs_()
    for level in (2.0, 3.0, 4.0, 4.75):
        expected = len(sample) * 2 * stats.norm.sf(level)
        assert abs((sample > level).sum().item() - expected) < 5 * math.sqrt(expected), level
    # Below 4.9 or above 6.8 less than once in ten thousand times.
    assert 4.9 < sample.max() < 6.8


@each_loop
def test_the_extreme_words_give_finite_noise_and_the_stated_largest_value():
    extremes = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 2**62, -(2**62), 2**61, -(2**61)])
    pairs = torch.zeros(2, 2 * noise_loops.BLOCK, dtype=torch.int64)
    pairs[:, : len(extremes) ** 2] = torch.cartesian_prod(extremes, extremes).T  # Radius, angle.
    words = torch.cat(pairs.chunk(2, dim=1)).flatten()
    out = torch.zeros(len(words), dtype=torch.float64)
    law = noise_loops.Law(1.0, grid(1.0), 1.0)
    noise._loops().add_words(words, torch.zeros_like(out), out, law)
    assert out.isfinite().all()
    again = torch.zeros_like(out)
    noise_loops.TorchLoops().add_words(words, torch.zeros_like(out), again, law)
    assert torch.allclose(out, again, rtol=0, atol=law.grid)
    assert out.abs().max().item() == pytest.approx(math.sqrt(2 * 64 * math.log(2)), rel=1e-7)


def test_entries_steps_and_streams_are_uncorrelated():
    generator = seeded(3)
    streams = [generator, generator, generator.spawn("noise"), generator.spawn("sampling")]
    rows = torch.zeros(len(streams), MILLION // 4, dtype=torch.float64)
    for row, stream in zip(rows, streams, strict=True):  # The first two rows are two steps.
        add_noise_([row], std=1.0, generator=stream)
    bound = 5 / math.sqrt(rows.shape[1])
    correlation = torch.corrcoef(torch.cat([rows, rows**2]))
    assert (correlation - torch.eye(len(correlation))).abs().max() < bound
    # Within a row: neighbours, the two of a Box-Muller pair, chunks; squares as well.
    for lag in (1, 2, noise_loops.BLOCK, 2 * noise_loops.BLOCK, noise.CHUNK):
        for row in (rows[0], rows[0] ** 2 - 1):
            assert abs((row[lag:] * row[:-lag]).mean().item()) < 2 * bound, lag


def test_tensors_of_one_call_have_noise_of_their_own():
    tensors = [torch.zeros(700) for _ in range(300)]  # Many to a chunk, none a whole block.
    add_noise_(tensors, std=1.0, generator=seeded(4))
    rows = torch.stack(tensors)
    assert looks_standard_normal(rows.flatten())
    assert rows.flatten().unique().numel() > 0.99 * rows.numel()


@each_loop
@pytest.mark.parametrize(
    "size",
    [0, 1, 2, 3, 15, 63, 64, 65, 127, 128, 129, 513, 16_385, 131_071, 131_072, 131_073, 300_001],
)
def test_every_entry_of_a_tensor_of_any_size_gets_noise(size):
    total = draw(size, std=1.0)
    assert total.shape == (size,)
    assert total.count_nonzero() == size


def test_single_numbers_have_the_right_law():
    generator = seeded(5)
    totals = [torch.zeros(()) for _ in range(2000)]
    for total in totals:
        add_noise_([total], std=1.0, generator=generator)
    assert looks_standard_normal(torch.stack(totals))


# Low bits


def low_bit_advantage(zero: Tensor, other: Tensor) -> float:
    """Near 0, how much more often one sample lies on a power-of-two grid than the other."""
    near_zero = [y[y.abs() < 2.0**-5].double() for y in (zero, other)]
    advantages = []
    for bits in range(22, 32):
        rates = [(y * 2.0**bits % 1 == 0).double().mean().item() for y in near_zero]
        advantages.append(abs(rates[0] - rates[1]))
    return max(advantages)


def test_low_bits_of_plain_float32_addition_tell_zero_from_three_tenths():
    z = torch.randn(2, MILLION // 2, generator=torch.Generator().manual_seed(0))
    assert low_bit_advantage(z[0], 0.3 + z[1]) > 0.5


@each_loop
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.3, 1 / 3, 1e-9])
def test_low_bits_of_our_sums_tell_nothing(value, dtype):
    zero, other = torch.zeros(2, MILLION // 2, dtype=dtype)
    other.fill_(value)
    add_noise_([zero, other], std=1.0, generator=seeded(6))
    near_zero = 0.024 * len(zero)
    assert low_bit_advantage(zero, other) < 5 * math.sqrt(0.5 / near_zero)


@each_loop
@pytest.mark.parametrize("std", [1.0, 0.75, 3e-7])
def test_what_is_released_is_rounded_sum_plus_noise_that_does_not_know_the_sum(std):
    sums = torch.cat([torch.zeros(9), torch.linspace(-50, 50, 5000).double() * std])
    silent, noisy = torch.zeros_like(sums), sums.clone()
    for tensor in (silent, noisy):
        add_noise_([tensor], std=std, generator=seeded(7))
    step = grid(std)
    assert torch.equal(silent / step, (silent / step).round())
    assert torch.equal(noisy / step, (sums / step).round() + silent / step)


def test_the_low_bits_of_the_noise_are_uniform():
    steps = (draw(MILLION) / grid(1.0)).long() & 255
    assert stats.chisquare(steps.bincount(minlength=256).numpy()).pvalue > 1e-4


@pytest.mark.parametrize("std", [1.0, 1.5, 0.1, 2.0**-90, 1e29])
def test_the_grid_is_a_power_of_two_and_depends_on_std_alone(std):
    assert math.frexp(grid(std))[0] == 0.5
    assert 2.0**-29 < grid(std) / std <= 2.0**-28


@each_loop
def test_a_sum_out_of_range_is_clamped_and_nan_stays():
    total = torch.tensor([math.inf, -math.inf, 1e30, math.nan, 3e6])
    add_noise_([total], std=1.0, generator=seeded(8))
    expected = torch.tensor([2.0**22, -(2.0**22), 2.0**22, math.nan, 3e6])
    assert torch.allclose(total, expected, rtol=0, atol=5, equal_nan=True)


# Loops, threads, dtypes, devices


@each_loop
def test_the_noise_is_box_muller_on_the_words_of_aes_counter_mode():
    generator, block = seeded(17), noise_loops.BLOCK
    key, nonce = generator._key, generator.counter
    total = torch.zeros(4 * block - 3, dtype=torch.float64)
    add_noise_([total], std=1.0, generator=generator)
    first_block = nonce.to_bytes(12, "big") + (2).to_bytes(4, "big")
    stream = (
        Cipher(algorithms.AES(key), modes.CTR(first_block)).encryptor().update(bytes(32 * block))
    )
    words = [
        int.from_bytes(stream[i : i + 8], "little", signed=True) for i in range(0, len(stream), 8)
    ]
    expected = []
    for start in (0, 2 * block):
        radii, angles = words[start : start + block], words[start + block : start + 2 * block]
        uniforms = [(2 * word + 1) / 2**64 for word in radii]
        radii = [math.copysign(math.sqrt(-2 * math.log(abs(u))), u) for u in uniforms]
        for wave in (math.cos, math.sin):
            expected += [
                r * wave(math.pi * angle / 2**64) for r, angle in zip(radii, angles, strict=True)
            ]
    assert total.tolist() == pytest.approx(expected[: len(total)], rel=0, abs=grid(1.0))


def differing_steps(one: noise_loops.Loops, other: noise_loops.Loops) -> Tensor:
    """By how many steps of the grid the noise of two loops differs, over a million numbers."""
    key, law = bytes(range(16)), noise_loops.Law(1.0, grid(1.0), 1.0)
    sizes = [MILLION, 1, 700, 65, 0, 128]
    results = []
    for loops in (one, other):
        sums = [torch.zeros(size, dtype=torch.float64) for size in sizes]
        streams = noise_loops.Streams(key, 2**32 - 5)  # The nonces pass 2^32.
        loops.add_noise(streams, noise._pieces(sizes), sums, sums, law)
        results.append(torch.cat(sums) / law.grid)
    assert results[0].count_nonzero() > MILLION
    return results[0] - results[1]


@pytest.mark.parametrize("flags", ["", "-mno-avx512f", "-mno-vaes", "-mno-aes"])
def test_the_compiled_loop_equals_the_torch_loop_but_for_rare_single_steps(
    flags, monkeypatch, tmp_path
):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or "PSAC_NO_COMPILE" in os.environ:
        pytest.skip("no C compiler here")
    wrapper = tmp_path / "cc"  # As if the processor had fewer instructions.
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" {flags}\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    library = compiling.library.__wrapped__(noise_loops.SOURCE)
    if library is None:
        pytest.skip(f"the compiler does not know {flags}")
    compiled = noise_loops.CompiledLoops(library)
    assert not (flags == "-mno-aes" and compiled._makes_keystream)
    definition = noise_loops.TorchLoops()
    assert noise_loops._agree(compiled, definition)
    steps = differing_steps(compiled, definition)
    assert steps.abs().max() <= 1
    assert steps.count_nonzero() < 20


def test_where_there_is_a_compiler_the_compiled_loop_is_used():
    if shutil.which(os.environ.get("CC", "cc")) is None or "PSAC_NO_COMPILE" in os.environ:
        pytest.skip("no C compiler here")
    assert isinstance(noise._loops(), noise_loops.CompiledLoops)


def test_a_compiler_that_breaks_the_rounding_is_not_trusted():
    class Careless(noise_loops.TorchLoops):
        def add_words(self, words, sums, out, law):
            out.copy_((sums + self.gaussians(words, law.std)[: len(sums)]) * law.scale)

    assert not noise_loops._agree(Careless(), noise_loops.TorchLoops())
    assert noise_loops._agree(noise_loops.TorchLoops(), noise_loops.TorchLoops())


def test_without_a_compiler_the_library_uses_torch(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(compiling, "library", compiling.library.__wrapped__)
    assert noise_loops.compiled.__wrapped__() is None


def test_the_number_of_threads_changes_nothing(monkeypatch):
    samples = []
    for num_threads in (1, 2, 5):
        # torch.set_num_threads would slow down other tests: MKL then threads the smallest calls.
        monkeypatch.setattr(torch, "get_num_threads", lambda number=num_threads: number)
        samples.append(draw(MILLION, seed=9))
    assert torch.equal(samples[0], samples[1])
    assert torch.equal(samples[0], samples[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_any_strides_and_dtype_get_the_noise_of_the_plain_float64_tensor(dtype):
    values = torch.arange(-300.0, 300.0).view(20, 30)
    tensor = values.to(dtype).t().contiguous().t()
    assert not tensor.is_contiguous()
    expected = tensor.double().contiguous()
    for each in (expected, tensor):
        add_noise_([each], std=2.0, generator=seeded(10), scale=0.25)
    assert torch.equal(tensor.float(), expected.float().to(dtype).float())


def test_out_receives_the_scaled_result_and_the_sums_stay():
    sums = [torch.full((3, 5), 4.0), torch.ones(2, dtype=torch.float64)]
    inplace, out = [s.clone() for s in sums], [torch.empty(3, 5), torch.empty(2)]
    add_noise_(inplace, std=1.0, generator=seeded(11))
    add_noise_(sums, std=1.0, generator=seeded(11), scale=1 / 64, out=out)
    assert sums[0].eq(4).all()
    assert sums[1].eq(1).all()
    for noisy, scaled in zip(inplace, out, strict=True):
        assert torch.equal((noisy / 64).float(), scaled)


def test_parameters_and_slices_are_written_in_place():
    parameter = torch.nn.Parameter(torch.zeros(10))
    table = torch.zeros(4, 6)
    add_noise_([parameter, table[:, ::2]], std=1.0, generator=seeded(12))
    assert parameter.requires_grad
    assert parameter.count_nonzero() == 10
    assert table[:, ::2].count_nonzero() == 12
    assert table[:, 1::2].count_nonzero() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_tensor_on_a_gpu_gets_the_same_noise():
    tensors = [torch.ones(1000), torch.ones(1000, device="cuda")]
    for tensor in tensors:
        add_noise_([tensor], std=1.0, generator=seeded(13))
    assert torch.equal(tensors[0], tensors[1].cpu())


# The boundary


def test_std_zero_is_exactly_no_noise():
    sums, out = torch.tensor([1 / 3, 5.0]), torch.empty(2)
    add_noise_([sums], std=0.0, generator=SecureGenerator(), scale=0.5, out=[out])
    assert torch.equal(out, sums * 0.5)
    add_noise_([sums], std=0.0, generator=SecureGenerator())
    assert torch.equal(sums, torch.tensor([1 / 3, 5.0]))


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf, -math.inf, 1e-31, 1e31])
def test_an_impossible_std_is_refused(std):
    with pytest.raises(ValueError, match="std is"):
        add_noise_([torch.zeros(1)], std=std, generator=SecureGenerator())


@pytest.mark.parametrize(
    "error, message, tensor, change",
    [
        (TypeError, "torch.int64", torch.zeros(2, dtype=torch.int64), {}),
        (TypeError, "to_dense", torch.zeros(2).to_sparse(), {}),
        (TypeError, "SecureGenerator", torch.zeros(2), {"generator": torch.Generator()}),
        (ValueError, "scale is", torch.zeros(2), {"scale": math.nan}),
        (ValueError, "same shape", torch.zeros(2), {"out": [torch.zeros(3)]}),
        (ValueError, "same shape", torch.zeros(2), {"out": []}),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_remedy(error, message, tensor, change):
    with pytest.raises(error, match=message):
        add_noise_([tensor], **{"std": 1.0, "generator": SecureGenerator(), **change})


def test_no_tensors_are_no_error():
    add_noise_([], std=1.0, generator=SecureGenerator())


# Generators


def test_secure_generators_and_calls_differ():
    one, other = SecureGenerator(), SecureGenerator()
    rows = torch.zeros(4, 1000)
    for row, generator in zip(rows, (one, one, other, one.spawn("noise")), strict=True):
        add_noise_([row], std=1.0, generator=generator)
    assert rows.unique().numel() > 3990
    assert one.secure


@pytest.mark.skipif(
    not hasattr(os, "fork") or noise_loops.compiled() is None,
    reason="no fork here, or torch's threads, which do not survive one",
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_works_and_does_not_repeat_its_parent():
    generator, total, (reader, writer) = SecureGenerator(), torch.zeros(MILLION), os.pipe()
    add_noise_([total], std=1.0, generator=generator)  # So that the parent has helper threads.
    child = os.fork()
    if child == 0:
        add_noise_([total], std=1.0, generator=generator)
        os.write(writer, generator.random_bytes(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 16) != generator.random_bytes(16)


@pytest.mark.parametrize(
    "save",
    [
        SecureGenerator.state_dict,
        lambda generator: generator.load_state_dict({}),
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        lambda generator: torch.save({"generator": generator}, io.BytesIO()),
    ],
)
def test_a_secure_generator_is_never_saved_or_copied(save):
    with pytest.raises(TypeError, match="never saved"):
        save(SecureGenerator())


def test_a_seeded_generator_warns_and_says_that_it_is_insecure():
    with pytest.warns(InsecureNoiseWarning, match="not private"):
        generator = SeededGenerator(0)
    assert not generator.secure
    generator.spawn("noise")  # Warned once is enough: warnings are errors here.


def test_a_seed_that_is_no_integer_is_refused_without_a_warning():
    with pytest.raises(TypeError, match="seed is 'a': it must be an integer"):
        SeededGenerator("a")  # type: ignore[arg-type]


def test_a_resumed_seeded_run_equals_an_uninterrupted_one():
    sizes = [(70_000, 3), (5,), (131_072,)]

    def run(generator: SeededGenerator, steps: list[tuple[int, ...]]) -> list[Tensor]:
        totals = [[torch.zeros(size) for size in step] for step in steps]
        for total in totals:
            add_noise_(total, std=1.0, generator=generator)
        return [tensor for total in totals for tensor in total]

    whole = run(seeded(14).spawn("noise"), sizes)
    first = seeded(14).spawn("noise")
    begin = run(first, sizes[:1])
    state = json.loads(json.dumps(first.state_dict()))
    second = seeded(0).spawn("noise")
    second.load_state_dict(state)
    for expected, resumed in zip(whole, begin + run(second, sizes[1:]), strict=True):
        assert torch.equal(expected, resumed)


def test_seeded_noise_is_the_same_on_every_machine():
    expected = [0.49272081, -0.82070781, -0.28180354]
    assert draw(3, seed=2024).tolist() == pytest.approx(expected, abs=2e-8)
    assert seeded(2024).random_bytes(4).hex() == "bd556d61"


def test_seeds_and_names_give_different_streams():
    parents = [seeded(0), seeded(1), seeded(0).spawn("1"), seeded(0).spawn("noise")]
    parents += [seeded(0).spawn("a").spawn("b"), seeded(0).spawn("b").spawn("a")]
    assert len({parent.random_bytes(16) for parent in parents}) == len(parents)
    assert seeded(0).spawn("a").random_bytes(9) == seeded(0).spawn("a").random_bytes(9)


def test_the_state_of_one_stream_is_not_loaded_into_another():
    with pytest.raises(ValueError, match="sampling"):
        seeded(0).spawn("noise").load_state_dict(seeded(0).spawn("sampling").state_dict())


def test_random_bytes_are_aes_counter_mode_under_a_nonce_of_their_own():
    generator = seeded(15)
    assert generator.random_bytes(0) == b""
    key, nonce = generator._key, generator.counter
    first_block = nonce.to_bytes(12, "big") + (2).to_bytes(4, "big")
    counter_mode = Cipher(algorithms.AES(key), modes.CTR(first_block)).encryptor()
    assert generator.random_bytes(1000) == counter_mode.update(bytes(1000))
    assert generator.counter == nonce + 1


def test_no_stream_is_handed_out_twice(monkeypatch):
    seen = []
    write = randomness.write_keystream

    def record(key, nonce, zeros, stream):
        seen.append((key, nonce))
        write(key, nonce, zeros, stream)

    monkeypatch.setattr(noise_loops, "write_keystream", record)
    monkeypatch.setattr(noise, "_loops", noise_loops.TorchLoops)
    for generator in (seeded(16), SecureGenerator()):
        for _ in range(3):
            add_noise_([torch.zeros(3 * noise.CHUNK), torch.zeros(7)], std=1.0, generator=generator)
    assert len(seen) == len(set(seen)) == 2 * 3 * 4


@pytest.mark.parametrize("reserved", [(bytes(15), 0), (bytes(16), -1), (bytes(16), 2**63)])
def test_a_generator_of_ones_own_that_names_no_stream_is_refused(reserved, monkeypatch):
    generator, sums = seeded(0), torch.zeros(3)
    monkeypatch.setattr(generator, "reserve", lambda count: reserved)
    with pytest.raises(ValueError, match="16 bytes, and nonces below"):
        add_noise_([sums], std=1.0, generator=generator)
    assert not sums.any()
