"""The package as it is installed and imported: what comes with it, what it needs, and what works without verl."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib.metadata import version
from pathlib import Path

import pytest

import verl_ext

SOURCES = Path(verl_ext.__file__).parents[1]

WITHOUT_VERL = """
import sys

class NoVerl:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "verl":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoVerl())
"""


def in_new_process(code):
    """What `code` prints last, as JSON."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# --- what an import does ---------------------------------------------------------------------------------------------


def test_importing_verl_ext_imports_neither_torch_nor_verl_nor_any_other_library():
    imported = in_new_process(
        """
        import json, sys
        import verl_ext
        print(json.dumps(sorted({"torch", "verl", "tensordict", "ray", "numpy", "wrapt"} & set(sys.modules))))
        """
    )
    assert imported == []


def test_every_public_name_resolves_is_listed_and_is_what_its_module_defines():
    for name in verl_ext.__all__:
        value = getattr(verl_ext, name)
        assert value.__name__ == name
        assert value is getattr(sys.modules[value.__module__], name)
    assert set(verl_ext.__all__) <= set(dir(verl_ext))
    assert verl_ext.__all__ == sorted(verl_ext.__all__)


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="'verl_ext' has no attribute 'SparseTensor'"):
        verl_ext.SparseTensor  # noqa: B018


def test_without_verl_the_column_and_the_assembly_of_rows_work():
    columns, rows = in_new_process(
        WITHOUT_VERL
        + textwrap.dedent(
            """
            import json
            from verl_ext import SparseNonTensor, assemble_reward_extra_info
            rows = SparseNonTensor([{"acc": 1.0}, None, {"pred": "42"}])
            columns = assemble_reward_extra_info(rows)
            print(json.dumps([{key: column.tolist() for key, column in columns.items()}, rows[1:].tolist()]))
            """
        )
    )
    assert columns == {"acc": [1.0, None, None], "pred": [None, None, "42"]}
    assert rows == [None, {"pred": "42"}]


def test_without_verl_what_needs_it_is_a_named_error_that_says_what_to_install():
    errors = in_new_process(
        WITHOUT_VERL
        + textwrap.dedent(
            """
            import json
            import verl_ext
            errors = []
            for name in ("SparseDataProto", "attach_reward_extra_info", "SparseDataProto"):
                try:
                    getattr(verl_ext, name)
                except ImportError as error:
                    errors.append([type(error).__name__, str(error)])
            print(json.dumps(errors))
            """
        )
    )
    assert len(errors) == 3
    for kind, message in errors:
        assert kind == "VerlNotFoundError"
        assert "needs verl, and 'verl' is not installed: pip install verl" in message


# --- what is installed -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built of these sources; what is installed may be an older build of them."""
    pytest.importorskip("setuptools", minversion="77", reason="the build backend of pyproject.toml")
    if not (SOURCES / "pyproject.toml").exists():
        pytest.skip("not run from a checkout")
    copy = tmp_path_factory.mktemp("sources")
    with zipfile.ZipFile(built(copy, VERL_EXT_PURE="1")) as archive:
        yield archive


def built(copy, **environment):
    """The wheel that is built of a copy of these sources, in this environment."""
    for name in ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "LICENSE"):
        if (SOURCES / name).exists():
            shutil.copy(SOURCES / name, copy)
    shutil.copytree(SOURCES / "verl_ext", copy / "verl_ext", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    build = "import setuptools.build_meta as backend, sys; backend.build_wheel(sys.argv[1])"
    env = {**os.environ, "VERL_EXT_PURE": "", **environment}
    done = [sys.executable, "-c", build, str(copy)]
    subprocess.run(done, cwd=copy, env=env, check=True, capture_output=True, timeout=120)
    return next(copy.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    file = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(file))


def requirements(metadata):
    """`(name, specifier, extra)` of everything that is required; `extra` is "" where it always is."""
    pattern = re.compile(r"([\w.-]+)\s*([^;]*?)\s*(?:;\s*extra\s*==\s*['\"]([\w-]+)['\"])?")
    found = [pattern.fullmatch(line) for line in metadata.get_all("Requires-Dist")]
    assert all(found), "a requirement that this test cannot read"
    return [(match[1], match[2], match[3] or "") for match in found]


def test_the_version_is_one_everywhere(metadata):
    assert metadata["Version"] == verl_ext.__version__ == version("verl-ext")


def test_runtime_requirements_have_a_floor_and_are_neither_verl_nor_anything_that_only_the_demo_needs(metadata):
    runtime = {name: specifier for name, specifier, extra in requirements(metadata) if not extra}
    assert set(runtime) == {"numpy", "torch", "tensordict", "wrapt"}
    for name, specifier in runtime.items():
        assert re.fullmatch(r">=[\d.]+", specifier), f"{name}{specifier}"


def test_no_requirement_has_a_cap_a_pin_or_an_exclusion(metadata):
    for name, specifier, _ in requirements(metadata):
        assert re.fullmatch(r"(>=[\d.]+)?", specifier), f"{name}{specifier}"
    assert re.fullmatch(r">=[\d.]+", metadata["Requires-Python"])


def test_verl_is_required_by_extras_alone(metadata):
    extras = {extra for name, _, extra in requirements(metadata) if name == "verl"}
    assert extras == {"verl", "demo", "test", "bench"}


def test_the_support_table_names_the_versions_that_have_constraint_files_and_how_each_loads_the_plugin():
    table = re.findall(r"^\| (\d[\d.]*) \|.*\| (.+?) \|$", (SOURCES / "README.md").read_text(), re.MULTILINE)
    pinned = {file.stem.removeprefix("verl-") for file in (SOURCES / "constraints").glob("verl-*.txt")}
    assert {supported for supported, _ in table} == pinned
    for supported, loaded_by in table:
        newer = tuple(map(int, supported.split("."))) >= (0, 9)
        assert loaded_by == ("entry point" if newer else "`VERL_USE_EXTERNAL_MODULES`")


def test_the_constraints_of_a_version_pin_that_version():
    for file in (SOURCES / "constraints").glob("verl-*.in"):
        assert f"verl=={file.stem.removeprefix('verl-')}" in file.read_text().split()


def test_the_wheel_brings_the_type_marker_the_demos_rows_the_reports_page_and_every_module(wheel):
    shipped = {name for name in wheel.namelist() if name.startswith("verl_ext/")}
    modules = {str(file.relative_to(SOURCES)) for file in (SOURCES / "verl_ext").rglob("*.py")}
    assert shipped == modules | {"verl_ext/py.typed", "verl_ext/demo/rows.parquet", "verl_ext/report/page.html"}
    assert not any(name.startswith("tests") for name in wheel.namelist())
    assert Path(wheel.filename).name.endswith("-py3-none-any.whl")


COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
HAS_NO_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.mark.skipif(not COMPILER or HAS_NO_GIL, reason="the core is not compiled here")
def test_with_a_compiler_the_wheel_holds_the_core_too_for_every_python_from_3_10_on(wheel, tmp_path):
    found = built(tmp_path)
    assert "-cp310-abi3-" in found.name
    with zipfile.ZipFile(found) as archive:
        modules = [{name for name in one.namelist() if name.startswith("verl_ext/")} for one in (archive, wheel)]
    (core,) = modules[0] - modules[1]
    assert re.fullmatch(r"verl_ext/_core\.(abi3\.so|pyd)", core)


def test_without_a_compiler_the_wheel_holds_what_the_pure_one_holds(wheel, tmp_path):
    (tmp_path / "bin").mkdir()
    found = built(tmp_path, PATH=str(tmp_path / "bin"), CC="no-such-compiler")
    with zipfile.ZipFile(found) as archive:
        modules = [{name for name in one.namelist() if name.startswith("verl_ext/")} for one in (archive, wheel)]
    assert modules[0] == modules[1]


def test_verl_finds_the_plugin_by_an_entry_point_in_lower_case_and_the_shell_the_command(wheel):
    file = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    text = wheel.read(file).decode()
    assert "[verl.plugins]\nverl_ext = verl_ext.autoload\n" in text  # verl lower-cases the names in its policy
    assert "[console_scripts]\nverl-ext = verl_ext.__main__:main\n" in text


def test_no_code_of_ours_evaluates_text_or_formats_by_it():
    """Reward text is data. (Shells, pickles and the like are ruff's part: rules `S`.)"""
    for file in (SOURCES / "verl_ext").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                by_text = name in ("format", "format_map") and isinstance(node.func, ast.Attribute)
                assert name not in ("eval", "exec", "system", "popen"), f"{file}:{node.lineno}"
                assert not by_text or isinstance(node.func.value, ast.Constant), f"{file}:{node.lineno}"
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                assert not isinstance(node.left, ast.JoinedStr), f"{file}:{node.lineno}"
