"""The longest mount point above a path says what it lies on."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.system.mounts import network_kind

TABLE = r"""
22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:5 master:2 - nfs4 host:/home rw,vers=4.2
31 30 0:41 / /home/fast rw - tmpfs tmp rw
32 22 0:42 / /mnt/with\040space\134and\011more rw - CIFS //host/share rw
33 22 0:43 / /data rw - ext4 /dev/vdb rw
34 22 0:44 / /data rw - lustre mgs@tcp:/fs rw
35 22 0:45 / /over rw - beegfs beegfs_nodev rw
36 22 0:46 / /over rw - xfs /dev/vdc rw
37 22 0:47 / /bucket rw - fuse.mount-s3 mountpoint-s3 rw
38 22 0:48 / /ntfs rw - fuseblk /dev/sdb1 rw
39 22 0:49 / /nfs-like rw - ext4 /dev/vdd rw
40 a line that is none
41 22 0:50 / /odd-fields rw,x - - nfs host:/x rw
"""
KINDS = {
    "/work/runs": "", "/home/me/runs": "nfs4", "/home": "nfs4", "/homes/me": "",
    "/home/fast/runs": "", "/mnt/with space\\and\tmore/runs": "cifs", "/mnt/with space": "",
    "/data/x": "lustre", "/over/x": "", "/bucket/runs": "fuse.mount-s3", "/ntfs/runs": "",
    "/nfs-like/runs": "",
}  # fmt: skip


@pytest.mark.parametrize(("path", "kind"), KINDS.items(), ids=range(len(KINDS)))
def test_the_longest_mount_point_wins_and_of_two_alike_the_later(path: str, kind: str) -> None:
    assert network_kind(Path(path), TABLE) == kind


@pytest.mark.parametrize(
    "kind",
    "nfs nfs4 cifs smb3 lustre gpfs beegfs ceph fuse.sshfs 9p afs fuse.glusterfs fuse.ceph".split(),
)
def test_network_file_systems_are_known(kind: str) -> None:
    assert network_kind(Path("/x"), f"1 0 0:1 / / rw - {kind} source rw\n") == kind


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    table = f"1 0 0:1 / / rw - ext4 d rw\n2 1 0:2 / {tmp_path / 'far'} rw - nfs host:/ rw\n"
    assert network_kind(tmp_path / "near" / "not" / "there", table) == "nfs"
    assert network_kind(tmp_path / "near" / ".." / "else", table) == ""


def test_this_machine_can_be_asked(tmp_path: Path) -> None:
    assert network_kind(tmp_path) == network_kind(tmp_path / "not" / "there")


@given(st.text(max_size=200))
def test_any_table_has_an_answer(text: str) -> None:
    assert isinstance(network_kind(Path("/a/b"), text), str)
