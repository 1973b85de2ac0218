import dataclasses
import textwrap

import pytest

from tunefarm.errors import DocumentError, SpecError, UserError
from tunefarm.spec.experiment import load_experiment, read_yaml, resolve
from tunefarm.spec.inputs import ScalarSpec, TensorSpec
from tunefarm.spec.workload import WorkloadRef

HEAD = "name: demo\nworkload: kernels.py:workload\nproblems: [{M: 64}]\ndevices: [sm_90]\n"
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")

KERNELS = """
import triton
import triton.language as tl
import tunefarm

@triton.jit
def scale_kernel(x, d_out, weight, n_elements, n_rows, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    pass

def scale(x, ids=None, factor=1):
    pass

inputs = {"x": {"shape": ["M"], "dtype": "fp32"}}
workload = tunefarm.Workload(call=scale, kernel=scale_kernel, inputs=inputs, key=["n_elements"])
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="e.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return path

    write(KERNELS, "kernels.py")
    return write


def failure(path):
    with pytest.raises(UserError) as caught:
        load_experiment(path)
    assert caught.value.exit_code == 2
    assert path.name in caught.value.file
    return caught.value


FULL = """
name: softmax
project: demo
workload: {call: kernels.py:scale, kernel: kernels.py:scale_kernel, key: [n_elements], restore: [weight]}
inputs:
  x: [M, "N*2"]
  ids: {shape: [M], dtype: i32, init: uniform, low: 0, high: 8}
  factor: {value: 1e-3}
vars: {LIMIT: 4096}
checks:
  - {M: "cdiv(M, 2)", dtype: fp16}
  - {inputs: {x: {strides: [M, 1], offset: 3, special: on}}}
problems:
  - {M: [256, 512], N: [1e3, 2000], dtype: bf16, weight: 0.5}
  - {M: 0, N: 64, dtype: fp32}
space:
  BLOCK: {pow2: [64, 256]}
  ROWS: [1, 2]
  num_warps: [2, 4]
constraints: ["BLOCK <= LIMIT", "BLOCK % (32 * num_warps) == 0"]
devices: [sm_80, {arch: sm_90, landscape: landscapes/x.json.gz}]
search: {sampler: tpe, seed: 7, threshold: 0.9, batch: 4}
budget: {trials: 1e2, gpu_held_s: 60, wall_s: 1.5e2}
accept: {rtol: 1e-3, atol: 1e-5, min_gain: 0.02, same_bits: no}
timer: cold
tracking: {uri: "sqlite:///mlflow.db", experiment: demo, optuna_storage: "sqlite:///optuna.db"}
export: packs/softmax.json
"""


def test_full_experiment(write, tmp_path):
    experiment = load_experiment(write(FULL))
    assert experiment.name == "softmax"
    assert len(experiment.problems) == 5
    first = experiment.problems[0]
    assert dict(first.variables) == {"M": 256, "N": 1000, "dtype": "bf16"}
    assert first.weight == 0.5
    assert experiment.problems[-1].variables["M"] == 0
    assert experiment.problems[-1].weight == 1
    assert experiment.devices[1].landscape == tmp_path / "landscapes/x.json.gz"
    assert experiment.devices[0].landscape is None
    assert experiment.export == "packs/softmax.json"
    assert experiment.inputs["x"].sizes({"M": 3, "N": 4}) == (3, 8)
    assert experiment.inputs["ids"] == TensorSpec(
        shape=experiment.inputs["ids"].shape, dtype="i32", init="uniform", low=0, high=8
    )
    assert experiment.inputs["factor"] == ScalarSpec(value=0.001)
    resolved = resolve(experiment, OPTIONS, "3.7.1")
    assert resolved.workload.restore == ("weight",)
    assert resolved.space.options == {"num_warps"}


def test_defaults(write):
    experiment = load_experiment(write(HEAD))
    assert (experiment.search.sampler, experiment.search.seed, experiment.search.batch) == ("default", 0, 8)
    assert experiment.search.threshold == 0.8
    assert (experiment.accept.min_gain, experiment.accept.same_bits, experiment.timer) == (0.01, "no", "cold")
    assert experiment.budget.trials is None
    assert experiment.workload == WorkloadRef(call="", kernel="", object="kernels.py:workload")


def test_values_are_frozen(write):
    experiment = load_experiment(write(FULL))
    hash(experiment)
    with pytest.raises(dataclasses.FrozenInstanceError):
        experiment.search.seed = 1


def test_digest_is_of_what_changes_results(write):
    digest = load_experiment(write(FULL)).digest
    same = FULL.replace("export: packs/softmax.json", "export: other.json").replace("sqlite:///", "sqlite:///x/")
    assert load_experiment(write("# comment\n" + same)).digest == digest
    for old, new in (
        ("seed: 7", "seed: 8"), ("[1, 2]", "[2, 1]"), ("<= LIMIT", "< LIMIT"), ("4096", "2048"), ("0.02", "0.03"),
        ("N*2", "N*3"), ("restore: [weight]", "zero: [weight]"), ("sm_80, ", ""), ("weight: 0.5", "weight: 0.6"),
    ):  # fmt: skip
        assert load_experiment(write(FULL.replace(old, new))).digest != digest, old


def test_numbers_without_dot(write):
    """TF-126: 1e-3 and 1e6 are numbers, also where a whole number is needed; 1_000 is refused with the remedy."""
    experiment = load_experiment(write(HEAD + "accept: {rtol: 1e-3, atol: 1e-5}\nbudget: {trials: 1e6}\n"))
    assert (experiment.accept.rtol, experiment.accept.atol) == (0.001, 0.00001)
    assert experiment.budget.trials == 1_000_000
    assert type(experiment.budget.trials) is int
    error = failure(write(HEAD + "budget: {trials: 1_000}\n"))
    assert error.key == "budget.trials"
    assert error.file.endswith("e.yaml:5")
    assert "write 1000" in str(error)


def test_yaml_1_2_scalars(write):
    root = read_yaml(
        write("{a: 010, b: 0o10, c: 0x1F, d: +1.5, e: .5, f: ~, g: , h: 1:30, i: 2024-01-01, j: '4', k: 1.}")
    )
    assert root.plain == {
        "a": 10, "b": 8, "c": 31, "d": 1.5, "e": 0.5, "f": None, "g": None, "h": "1:30", "i": "2024-01-01", "j": "4",
        "k": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan", "1e999"])
def test_no_infinity_and_no_nan(write, number):
    error = failure(write(HEAD + f"budget:\n  wall_s: {number}\n"))
    assert error.key == "budget.wall_s"
    assert error.file.endswith(":6")
    assert "finite number" in str(error)


def test_words_stay_words(write):
    """TF-128: yes, no, on and off are text, as values and as keys; boolean fields take on and off; keys are names."""
    experiment = load_experiment(
        write(
            HEAD
            + """\
space:
  ACT: [no, relu, yes]
  no: [on, off]
  B: {range: [1, 2, 1], pow2: on}
  C: {range: [1, 3, 1], pow2: off}
accept: {same_bits: no}
"""
        )
    )
    assert [param.values for param in experiment.space] == [("no", "relu", "yes"), ("on", "off"), (1, 2), (1, 2, 3)]
    assert experiment.space[1].name == "no"
    error = failure(write(HEAD + "vars:\n  True: 1\n"))
    assert "True cannot be a key" in str(error)
    assert error.file.endswith(":6")


def test_duplicate_keys(write):
    """TF-127: both lines are named."""
    error = failure(write(HEAD + "space:\n  BLOCK: [16, 32]\n  num_warps: [4]\n  BLOCK: [64]\n"))
    assert error.key == "space.BLOCK"
    assert "lines 6 and 8" in str(error)
    error = failure(write(HEAD + "problems: [{M: 1}]\n"))
    assert error.key == "problems"
    assert "lines 3 and 5" in str(error)


def test_merge_keys_override(write):
    """TF-127: merge keys still work, and what is written beside them wins."""
    experiment = load_experiment(
        write("""\
        name: demo
        workload: kernels.py:workload
        devices: [sm_90]
        problems:
          - &base {M: 64, N: 32, dtype: bf16}
          - {<<: *base, M: 128}
          - {<<: [{N: 8}, *base], K: 1}
        """)
    )
    assert [dict(p.variables) for p in experiment.problems] == [
        {"M": 64, "N": 32, "dtype": "bf16"},
        {"M": 128, "N": 32, "dtype": "bf16"},
        {"M": 64, "N": 8, "dtype": "bf16", "K": 1},
    ]
    assert "lines 4 and 5" in str(failure(write("a: &a {b: 1}\nc:\n  x: 1\n  <<: *a\n  <<: *a\n")))


BAD = [
    ("", "", 0, "is empty"),
    ("# nothing\n", "", 0, "is empty"),
    ("- a\n- b\n", "", 1, "a mapping belongs here, not a list"),
    ("name: [a\nb: c\n", "", 2, "not valid YAML"),
    ("name: a\n\tb: c\n", "", 2, "not valid YAML"),
    (HEAD + "a: !!python/object:os.system x\n", "a", 5, "tag"),
    (HEAD + "--- \nname: x\n", "", 5, "not valid YAML"),
    (HEAD + "serach: {}\n", "serach", 5, "unknown key.*'search'"),
    (HEAD + "search: {sede: 1}\n", "search.sede", 5, "unknown key.*'seed'"),
    (HEAD + "search: [1]\n", "search", 5, "a mapping belongs here, not a list"),
    (HEAD + "search: {seed: '1'}\n", "search.seed", 5, "without quotes"),
    (HEAD + "search: {seed: 1.5}\n", "search.seed", 5, "whole number"),
    (HEAD + "search: {seed: true}\n", "search.seed", 5, "not the boolean true"),
    (HEAD + "search: {threshold: 0}\n", "search.threshold", 5, "more than 0"),
    (HEAD + "search: {threshold: 1.1}\n", "search.threshold", 5, "at most 1"),
    (HEAD + "search: {sampler: tpee}\n", "search.sampler", 5, "did you mean 'tpe'"),
    (HEAD + "budget: {trials: 0}\n", "budget.trials", 5, "at least 1"),
    (HEAD + "budget:\n", "budget", 5, "a mapping belongs here, not nothing"),
    (HEAD + "timer: warm\n", "timer", 5, "cold, hot, graph"),
    (HEAD + "accept: {same_bits: maybe}\n", "accept.same_bits", 5, "no, repeat, default"),
    (HEAD + "space: {}\n", "space", 5, "is empty"),
    (HEAD + "space:\n  BLOCK: []\n", "space.BLOCK", 6, "is empty"),
    (HEAD + "space:\n  num_warps:\n    - 3\n", "space.num_warps[0]", 7, "power of two"),
    (HEAD + "constraints: BM < 3\n", "constraints", 5, "a list belongs here"),
    (HEAD + "constraints:\n  - BM < 3\n  - __import__('os')\n", "constraints[1]", 7, "__import__"),
    (HEAD + "constraints: [BM < 3, BM < 3]\n", "constraints[1]", 5, "listed twice"),
    (HEAD + "constraints: [true]\n", "constraints[0]", 5, "an expression belongs here"),
    (HEAD + "inputs: {x: [M, [N]]}\n", "inputs.x[1]", 5, "a size belongs here"),
    (HEAD + "inputs: {x: {shape: [M], init: randn}}\n", "inputs.x.init", 5, "normal"),
    (HEAD + "inputs: {x: {value: 1, shape: [M]}}\n", "inputs.x.shape", 5, "nothing else"),
    (HEAD.replace("sm_90", "sm_91"), "devices[0]", 4, "did you mean 'sm_90'"),
    (HEAD.replace("[sm_90]", "[sm_90, {arch: sm_90}]"), "devices[1]", 4, "listed twice"),
    (HEAD.replace("[sm_90]", "[]"), "devices", 4, "is empty"),
    (HEAD.replace("[{M: 64}]", "[]"), "problems", 3, "is empty"),
    (HEAD.replace("{M: 64}", "{M: []}"), "problems[0].M", 3, "is empty"),
    (HEAD.replace("{M: 64}", "{M: [1, 2, 1]}"), "problems[0]", 3, "given twice"),
    (HEAD.replace("{M: 64}", "{M: {a: 1}}"), "problems[0].M", 3, "a single value"),
    (HEAD.replace("{M: 64}", "{M: 1, dtype: bfloat16}"), "problems[0].dtype", 3, "bf16"),
    (HEAD.replace("{M: 64}", "{M: 1, weight: heavy}"), "problems[0].weight", 3, "a number"),
    (HEAD.replace("{M: 64}", "M"), "problems[0]", 3, "a mapping belongs here"),
    (HEAD.replace("kernels.py:workload", "kernels.py"), "workload", 2, "file.py:object"),
    (HEAD.replace("kernels.py:workload", "{call: a:b}"), "workload.kernel", 2, "is missing"),
    (HEAD.replace("kernels.py:workload", "{kall: a:b}"), "workload.kall", 2, "did you mean 'call'"),
    (HEAD.replace("name: demo", "name: ../demo"), "name", 1, "letters, digits"),
    (HEAD.replace("name: demo\n", ""), "name", 1, "is missing"),
    ("a: &a [*a]\n", "a" + "[0]" * 32, 1, "more than 32 levels"),
    ("x: " + "[" * 900 + "]" * 2000, "", 0, "nested deeper|more than 32 levels"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "line", "says"), BAD, ids=[f"{i}-{row[1]}" for i, row in enumerate(BAD)])
def test_bad_input_names_file_key_line_and_remedy(write, text, key, line, says):
    path = write(text)
    with pytest.raises(SpecError, match=says) as caught:
        load_experiment(path)
    if key or line:
        assert caught.value.key == key
    assert caught.value.file == (f"{path}:{line}" if line else str(path))
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(DocumentError, match="no such file"):
        load_experiment(tmp_path / "none.yaml")


def test_not_utf_8(write):
    assert "not UTF-8" in str(failure(write(b"name: \xff\xfe\n")))


def test_billion_laughs(write):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "more than 100000 values" in str(failure(write("\n".join(lines))))


def test_many_problems_are_refused(write):
    text = HEAD.replace("{M: 64}", "{A: &a [1,2,3,4,5,6,7,8,9,10,11], B: *a, C: *a, D: *a, E: *a, F: *a, G: *a}")
    assert "more than 10000 problems" in str(failure(write(text)))


def refused(write, text, key, says):
    path = write(text)
    with pytest.raises(SpecError, match=says) as caught:
        resolve(load_experiment(path), OPTIONS, "3.7.1")
    assert caught.value.key == key
    return caught.value


PARTS = "{call: kernels.py:scale, kernel: kernels.py:scale_kernel%s}"


@pytest.mark.parametrize(
    ("key", "name", "near"),
    [("key", "n_elemnts", "n_elements"), ("zero", "dout", "d_out"), ("restore", "weigth", "weight")],
)
def test_names_that_are_no_kernel_arguments(write, key, name, near):
    """TF-024: a misspelt key, reset or restore name is an error with the nearest name, and the sweep does not start."""
    text = HEAD.replace("kernels.py:workload", PARTS % f", {key}: [{name}]") + "inputs: {x: [M]}\nspace: {BLOCK: [1]}\n"
    error = refused(write, text, f"workload.{key}", f"{name}.*scale_kernel.*did you mean '{near}'")
    assert error.file.endswith("e.yaml:2")


@pytest.mark.parametrize(("key", "value"), [("tiles", "[[BLOK]]"), ("dots", "[[ROWS, BLOCK, BLOK]]")])
def test_tiles_and_dots_name_constexprs(write, key, value):
    text = HEAD.replace("kernels.py:workload", PARTS % f", {key}: {value}") + "inputs: {x: [M]}\nspace: {BLOCK: [1]}\n"
    refused(write, text, f"workload.{key}", "'BLOK' is no tl.constexpr parameter.*'BLOCK'")


def test_ranges_are_part_of_the_key(write):
    parts = PARTS % ", key: [n_elements], ranges: [n_rows]"
    text = HEAD.replace("kernels.py:workload", parts) + "inputs: {x: [M]}\nspace: {BLOCK: [1]}\n"
    refused(write, text, "workload.ranges", "'n_rows'.*add it to key")


def test_unknown_name_in_constraint(write):
    """TF-026: K_MAX is one clear error with constraint index 1; a var makes it known."""
    text = (
        HEAD
        + "space: {BLOCK: [64], num_warps: [4]}\n"
        + 'constraints:\n  - "(BLOCK*2) % (32*num_warps) == 0"\n  - BLOCK <= K_MAX\n'
    )
    error = refused(write, text, "constraints[1]", "unknown name 'K_MAX'")
    assert error.file.endswith("e.yaml:8")
    resolve(load_experiment(write(text + "vars: {K_MAX: 64}\n")), OPTIONS, "3.7.1")
    refused(write, text.replace("K_MAX", "BLOC"), "constraints[1]", "did you mean 'BLOCK'")


def test_constraint_variable_must_be_in_every_problem(write):
    text = HEAD.replace("{M: 64}", "{M: 64, K: 1}, {M: 128}") + "space: {BLOCK: [64]}\nconstraints: [K <= BLOCK]\n"
    refused(write, text, "constraints[0]", "'K' is no variable of problem {'M': 128}")


def test_a_name_means_one_thing(write):
    refused(write, HEAD + "space: {BLOCK: [64]}\nvars: {BLOCK: 1}\n", "vars", "also a name in space")


@pytest.mark.parametrize("option", ["num_consumer_groups", "matrix_instr_nonkdim"])
def test_option_unknown_to_the_installed_triton(write, option):
    """TF-022, TF-023: option and Triton version are named; it is not sent to the kernel as a constexpr."""
    text = HEAD + f"space:\n  num_warps: [4]\n  {option}: [16, 32]\n"
    error = refused(write, text, f"space.{option}", f"'{option}'.*Triton 3.7.1")
    assert error.file.endswith("e.yaml:7")


def test_no_space_at_all(write):
    refused(write, HEAD, "space", "is missing.*scale_kernel declares no configs")


def test_parts_need_inputs(write):
    refused(write, HEAD.replace("kernels.py:workload", PARTS % ""), "inputs", "needs inputs")


@pytest.mark.parametrize(
    ("inputs", "key", "says"),
    [
        ("{x: [K], factor: {value: 1}}", "inputs.x", "'K' is no variable of problem"),
        ("{x: {shape: [M - 65], dtype: fp32}}", "inputs.x", "size M - 65 is -1"),
        ("{x: {shape: [M / 3], dtype: fp32}}", "inputs.x", "whole number"),
        ("{x: [M]}", "inputs.x", "no element type"),
        ("{x: {shape: [M], dtype: float32}}", "inputs.x", "'float32' is neither"),
        ("{x: {shape: [M], dtype: i32}}", "inputs.x", "no normal distribution"),
        ("{x: {shape: [M], dtype: i32, init: uniform}}", "inputs.x", "give low and high"),
        ("{x: {shape: [M], dtype: fp32, high: 3}}", "inputs.x", "use init: uniform"),
        ("{x: {shape: [M], dtype: fp32}, factr: {value: 1}}", "inputs.factr", "no argument of scale.*'factor'"),
        ("{x: {value: relu}}", "inputs.x", "'relu' is no variable"),
    ],
)
def test_inputs_are_checked_for_every_problem(write, inputs, key, says):
    text = HEAD.replace("kernels.py:workload", PARTS % "") + f"space: {{BLOCK: [1]}}\ninputs: {inputs}\n"
    refused(write, text, key, says)


def test_formulas_use_variables_of_every_problem(write):
    text = HEAD.replace("kernels.py:workload", PARTS % ", flops: 2*M*K") + "inputs: {x: [M]}\nspace: {BLOCK: [1]}\n"
    refused(write, text, "workload.flops", "'K' is no variable of problem")


def test_import_failure_keeps_the_line_of_the_users_file(write):
    """TF-093: seen from the experiment, the error names the user's file and line, and the key that asked for it."""
    write("\n\nraise RuntimeError('Found no NVIDIA driver on your system')\n", "kernels.py")
    error = refused(write, HEAD, "workload", "RuntimeError: Found no NVIDIA driver.*inside a function")
    assert error.file.endswith("kernels.py:3")
