"""Files out of archives."""

from __future__ import annotations

import pytest

from psac.app.data.archives import Damaged, members_of
from tests.app.data.small_files import deb, tgz, zipped

FILES = {"inner/a.txt": b"alpha", "inner/odd.txt": b"odd", "b.txt": b"beta"}


@pytest.mark.parametrize(
    "name, pack", [("a.tgz", tgz), ("a.zip", zipped), ("a.whl", zipped), ("a.deb", deb)]
)
class TestEveryArchive:
    def test_gives_the_wanted_files_and_no_others(self, tmp_path, name, pack):
        (tmp_path / name).write_bytes(pack(FILES))
        wanted = {"inner/a.txt", "b.txt"}
        assert members_of(tmp_path / name, wanted) == {path: FILES[path] for path in wanted}

    def test_says_which_file_is_missing(self, tmp_path, name, pack):
        (tmp_path / name).write_bytes(pack(FILES))
        with pytest.raises(Damaged, match=r"does not contain c\.txt"):
            members_of(tmp_path / name, {"b.txt", "c.txt"})

    @pytest.mark.parametrize("keep", [0, 7, 60, 100, -30])
    def test_that_was_cut_is_damaged(self, tmp_path, name, pack, keep):
        (tmp_path / name).write_bytes(pack(FILES)[:keep])
        with pytest.raises(Damaged, match=name):
            members_of(tmp_path / name, set(FILES))

    def test_that_is_something_else_is_damaged(self, tmp_path, name, pack):
        (tmp_path / name).write_bytes(b"<html>not found</html>" * 20)
        with pytest.raises(Damaged, match=name):
            members_of(tmp_path / name, set(FILES))
