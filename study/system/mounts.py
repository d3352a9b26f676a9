"""Whether a path is on a file system that several hosts share, by the table of mounts."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    "nfs nfs3 nfs4 cifs smb smb2 smb3 smbfs lustre gpfs mmfs beegfs ceph ceph-fuse 9p afs openafs"
    " coda glusterfs gfs gfs2 ocfs2 pvfs2 orangefs panfs wekafs mfs moosefs lizardfs quobyte dfuse"
    " ncpfs sshfs s3fs mount-s3 mountpoint-s3 gcsfuse goofys geesefs rclone juicefs seaweedfs"
    " blobfuse blobfuse2 davfs davfs2 curlftpfs hdfs cvmfs2".split()
)
"""Types of file systems that more than one host writes, or whose files live on another."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_kind(path: Path, mountinfo: str | None = None) -> str:
    """The type of the network file system that ``path`` is on, such as ``nfs4``; empty if it is on
    a disk of this host, or where the kernel says nothing. The longest mount point above the path
    counts, of two alike the later; the path need not exist. ``mountinfo`` is the text of
    /proc/self/mountinfo, proc(5)."""
    place = Path(os.path.realpath(path))
    if mountinfo is None:  # after the path was looked at: only then an automatic mount is there
        try:
            mountinfo = os.fsdecode(MOUNTINFO.read_bytes())
        except OSError:
            return ""
    longest, kind = -1, ""
    for line in mountinfo.split("\n"):  # a mount point may hold other ends of lines
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(_ESCAPE.sub(lambda digits: chr(int(digits[1], 8)), fields[4]))
        if place.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), after.split(" ")[0]
    kind = kind.lower()
    return kind if kind.removeprefix("fuse.") in NETWORK else ""
