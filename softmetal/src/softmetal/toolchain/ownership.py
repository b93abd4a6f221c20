"""Who can write a file: native code is loaded only if no other user could have put it there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OVERFLOW_UID = 65534  # in a user namespace, the owner of everything that belongs to real root


def distrusted(status: os.stat_result) -> str | None:
    """Why native code in this file or folder is not trusted; None if it is.

    It must belong to this user or to root, and no other user may be able to write it.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}"
    return _writable_by_others(status)


def distrusted_folder(folder: Path) -> str | None:
    """Why code in this folder is not trusted: its path and the reason; None if it is trusted.

    The folders above are checked too, because who can write one of them can replace the folder.
    """
    try:
        resolved = folder.resolve(strict=True)
        if (why := distrusted(resolved.stat())) is not None:
            return f"{folder} {why}"
        for parent in resolved.parents:
            status = parent.stat()
            # With the sticky bit only an entry's owner can rename it; `distrusted` saw the owner.
            sticky = status.st_mode & stat.S_ISVTX
            why = None if sticky else _writable_by_others(status)
            if status.st_uid not in (os.geteuid(), 0, _OVERFLOW_UID):
                why = f"belongs to user {status.st_uid}"
            if why is not None:
                return f"{parent} {why}"
    except OSError as problem:
        return f"{folder} cannot be inspected ({problem.strerror})"
    return None


def _writable_by_others(status: os.stat_result) -> str | None:
    if status.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        return f"can be written by group {status.st_gid}"
    return None


def _is_private_group(gid: int) -> bool:
    """Whether this user is the group's only member: many systems give each user such a group, and
    make new files writable by it."""
    import grp  # imported late: needed for group-writable files only
    import pwd

    if gid == 0:
        return True  # root's own group
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
