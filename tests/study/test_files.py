import pytest
import yaml

from study.system.files import (
    DEEPEST,
    LARGEST_YAML,
    MOST_IN_JSON,
    Damaged,
    clear_leftovers,
    read_json,
    read_yaml,
    write_json,
    write_text,
    write_yaml,
    writing,
)
from tests.conftest import python
from tests.plain_user import plain_user


def test_a_failed_write_leaves_the_old_text_and_no_litter(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert read_json(path) == {"x": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


KILLED = """
import os, signal, sys
from pathlib import Path
from study.system.files import writing

with writing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_and_what_is_being_written_stays(tmp_path):
    path, ours = tmp_path / "page.html", tmp_path / ".settings"
    write_text(ours, "kept")
    with python(KILLED, path) as killed:
        assert killed.wait() == -9
    (left,) = set(tmp_path.iterdir()) - {ours}
    assert left.name.startswith(".page.html.") and left.read_text() == "half"
    with writing(path) as file:
        file.write(b"whole")
        clear_leftovers(tmp_path)
        assert not left.exists()
    assert sorted(tmp_path.iterdir()) == [ours, path] and path.read_text() == "whole"
    clear_leftovers(tmp_path / "no such folder")


def test_what_permissions_forbid_is_said_and_nothing_is_left(tmp_path):
    path, left = tmp_path / "a.json", tmp_path / ".a.json.abcd1234"
    for each in (path, left):
        write_json(each, {"x": 1})
        each.chmod(0o000)
    with plain_user(), pytest.raises(Damaged, match=r"cannot be read \(Permission denied\)"):
        read_json(path)
    tmp_path.chmod(0o500)
    try:
        with plain_user():
            with pytest.raises(PermissionError):
                write_json(path, {"x": 2})
            clear_leftovers(tmp_path)  # what is not ours stays, and is no error
    finally:
        tmp_path.chmod(0o700)
    assert sorted(tmp_path.iterdir()) == [left, path]


def test_no_file_reads_as_empty_and_a_number_of_no_length_as_text(tmp_path):
    assert read_json(tmp_path / "none.json") == {}
    path = tmp_path / "a.yaml"
    numbers = {"hours": "1:30", "base_60": "1" + ":59" * 2000 + ".5", "long": "9" * 400}
    write_text(path, "".join(f"{name}: {text}\n" for name, text in numbers.items()))
    assert read_yaml(path) == numbers


def test_yaml_is_read_as_its_library_reads_it(tmp_path):
    content = {"a": [1, {"b": [[]]}], "c": "[" * 20, "d": None}
    path = tmp_path / "a.yaml"
    write_text(path, yaml.safe_dump(content))
    assert read_yaml(path) == content
    text = (
        "a: &a {x: 1, y: .5}\nb: {<<: [*a, {x: 2, z: !!str 7}], y: 0x1F}\n1: [*a, 2020-01-01, ~]\n"
    )
    write_text(path, text)
    assert repr(read_yaml(path)) == repr(yaml.safe_load(text)).replace("1: [", "'1': [")


LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)
NESTED = {
    "a long text": (f"a: &a {'x' * 999_999}\nb: [{'*a, ' * 9_000}]\n", "8,388,608 characters"),
    "aliases": (LAUGHS, "more than 100,000 values"),
    "itself": ("a: &a [*a]\n", "more than 100,000 values"),
    "many": ("a: [" + "1, " * 100_000 + "]\n", "more than 100,000 values"),
    "aliases within aliases": (
        "a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [*a{k - 1}]\n" for k in range(1, 300)),
        "nested more than 200 deep",
    ),
    "brackets": ("a: " + "[" * 100_000 + "\n", "nested more than 200 deep"),
    "braces": ("a: " + "{" * 300 + "}" * 300 + "\n", "nested more than 200 deep"),
    "dashes": ("a:\n" + "- " * 10_000 + "x\n", "nested more than 200 deep"),
    "merges": (
        "a0: &a0 {k0: 1}\n"
        + "".join(
            f"a{level}: &a{level} {{<<: [*a{level - 1}, *a{level - 1}], k{level}: 1}}\n"
            for level in range(1, 40)
        ),
        "more than 100,000 values",
    ),
    "wide merge": (
        f"a: &a {{{', '.join(f'k{place}: 1' for place in range(1000))}}}\n"
        f"b: {{<<: [{', '.join(['*a'] * 20_000)}]}}\n",
        "more than 100,000 values",
    ),
    "long": ("# " + "x" * LARGEST_YAML + "\na: 1\n", "too many for this kind of file"),
    "comments": ("a:\n" + " [ #]\n" * 40_000 + "]" * 40_000 + "\n", "nested more than 200 deep"),
    "quotes": ("a: " + "[ ']', " * 3000 + "]" * 3000 + "\n", "nested more than 200 deep"),
    "tag": ("a: !!python/object/apply:os.system ['true']\n", "is not YAML"),
    "no bool": ("a: !!bool maybe\n", "is not YAML"),
    "no int": ("a: !!int ''\n", "is not YAML"),
    "no date": ("a: 2020-99-99\n", "is not YAML"),
    "list as key": ("? [1, 2]\n: 3\n", "is not YAML"),
    "indents": (
        "".join(" " * level + "a:\n" for level in range(2 * DEEPEST + 2)),
        "nested more than 200 deep",
    ),
}


UNBOUNDED = {
    "nested": ('{"a": ' + "[" * 300 + "]" * 300 + "}", "nested more than 200 deep"),
    "deep": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "not whole JSON|nested more than"),
    "many": ('{"a": [' + "{}," * MOST_IN_JSON + "{}]}", "more than 5,000,000 values"),
    "integer": (f'{{"seconds": {10**400}}}', "an integer of 401 digits"),
}


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [*((read_yaml, *case) for case in NESTED.values()),
     *((read_json, *case) for case in UNBOUNDED.values())],
    ids=[*(f"yaml {name}" for name in NESTED), *(f"json {name}" for name in UNBOUNDED)],
)  # fmt: skip
def test_what_would_grow_or_nest_without_end_is_refused(tmp_path, read, text, why):
    path = tmp_path / "config"
    write_text(path, text)
    with pytest.raises(Damaged, match=why):
        read(path)


SIGNED = {
    "state": "done",
    "step": 6,
    "cost": 0.5,
    "error": "a \u00e9 # file_digest",
    "runs": [{"a": None}],
}


@pytest.mark.parametrize(
    ("write", "read"),
    [(lambda *args: write_json(*args, signed=True), read_json), (write_yaml, read_yaml)],
    ids=["json", "yaml"],
)
def test_a_signed_file_reads_as_it_was_written_or_not_at_all(tmp_path, write, read):
    path = tmp_path / "signed"
    write(path, SIGNED)
    assert read(path) == SIGNED
    sound = path.read_bytes()
    last_line = sound.rstrip(b"}\n").rindex(b"\n")
    for place in range(last_line):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with pytest.raises(Damaged):
            read(path)
    unsigned = sound[:last_line].rstrip(b",") + (b"\n}\n" if read is read_json else b"\n")
    path.write_bytes(unsigned)  # as an older version wrote it, or who changed it on purpose
    assert read(path) == SIGNED


def test_what_to_do_with_a_config_that_was_changed_on_purpose(tmp_path):
    path = tmp_path / "config.yaml"
    write_yaml(path, {"seed": 1})
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(
        Damaged, match=r"altered since it was written\. Do this\. If you changed it yourself"
    ):
        read_yaml(path, "Do this")
