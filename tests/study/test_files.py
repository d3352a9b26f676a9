import pytest

from study.files import read_json, write_json, write_text


def test_a_failed_write_leaves_the_old_text_and_no_litter(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert read_json(path) == {"x": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_no_file_reads_as_empty(tmp_path):
    assert read_json(tmp_path / "none.json") == {}
