"""A folder, on any file system that fsspec knows, in which files appear whole or not at all.

A file is written as a draft and gets its final name when it is on the disk. Knows nothing of what
the files contain. Invariants: a file under its final name is whole, and stays so if the host loses
power. With ``replaces`` False the first writer wins; only local file systems with hard links
guarantee that. On others, such as object stores, a writer that was frozen while it wrote may
overwrite the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from dataservice.dataset.sources.paths import unreadable
from dataservice.errors import (
    DataServiceError,
    FailedPreconditionError,
    ResourceExhaustedError,
    UnavailableError,
)
from dataservice.runtime.folders import sync_folder

# Object stores, where an object becomes visible when it is whole, and a rename would copy it.
_APPEARS_WHOLE: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "cos", "r2"}
)
# Errors of file systems that have no hard links.
_NO_LINKS: Final = (
    errno.EPERM,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
)


class AtomicFolder:
    """A folder of files that appear atomically; ``drafts`` names its subfolder for drafts."""

    def __init__(
        self, path: str, storage_options: Mapping[str, Any] | None, *, drafts: str
    ) -> None:
        self.path = path
        self._drafts = drafts
        import fsspec  # imported here: it takes a tenth of a data worker's start

        try:
            self._files, root = fsspec.core.url_to_fs(path, **(storage_options or {}))
        except (OSError, ImportError, ValueError, TypeError) as error:
            # A TypeError means an option that the file system does not have.
            raise unreadable(path, error) from error
        self._root = str(root).rstrip("/")
        protocol = self._files.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._is_local = "file" in protocols
        self._appears_whole = bool(protocols & _APPEARS_WHOLE)

    # Reading

    def location(self, name: str) -> str:
        """Returns the location of a file: a local path, or a URL."""
        full = f"{self._root}/{name}"
        return full if self._is_local else str(self._files.unstrip_protocol(full))

    def content(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is no file of that name."""
        try:
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            # Packages for object stores raise classes of their own, without a common base.
            raise unreadable(f"{self.path}/{name}", error) from error
        return content

    def names(self) -> list[str]:
        """Returns the names of the files and folders in the folder, sorted."""
        names = {entry["name"].rstrip("/").rpartition("/")[2] for entry in self.listed("")}
        return sorted(names - {""})

    def listed(self, name: str) -> list[dict[str, Any]]:
        where = f"{self._root}/{name}".rstrip("/")
        try:
            # Object stores answer from a cache unless told otherwise.
            self._files.invalidate_cache(where)
            return list(self._files.ls(where, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            # Packages for object stores raise classes of their own, without a common base.
            raise unreadable(f"{self.path}/{name}", error) from error

    # Writing

    @contextlib.contextmanager
    def synced(self, draft: str, name: str) -> Iterator[IO[bytes]]:
        """Opens a draft of the file `name` for writing; it is on the disk when the scope ends."""
        with named_errors(f"{self.path}/{name}"), open(draft, "wb") as to:
            yield to
            to.flush()
            os.fsync(to.fileno())

    @contextlib.contextmanager
    def draft(self) -> Iterator[str]:
        """Yields the path of a local draft file, which is removed when the scope ends.

        If the folder is local, the draft can be renamed into it.
        """
        folder = f"{self._root}/{self._drafts}" if self._is_local else tempfile.gettempdir()
        with named_errors(folder):
            os.makedirs(folder, exist_ok=True)
        draft = f"{folder}/snapshot-{uuid.uuid4().hex}"
        try:
            yield draft
        finally:
            # If the draft cannot be removed, the file that was written still counts.
            with contextlib.suppress(OSError):
                os.remove(draft)

    def commit(self, draft: str, name: str, *, replaces: bool = True) -> None:
        """Gives a draft its final name; without `replaces` only if the name is free."""
        final = f"{self._root}/{name}"
        with named_errors(f"{self.path}/{name}"):
            if self._is_local:
                os.makedirs(os.path.dirname(final), exist_ok=True)
                if replaces or not _link(draft, final):
                    os.replace(draft, final)
                sync_folder(os.path.dirname(final))
                return
            try:
                self._put(draft, final, replaces=replaces)
            except (OSError, ImportError):
                raise
            except Exception as error:  # a class of the store's package, as above
                raise FailedPreconditionError(
                    f"cannot write {self.path}/{name}: {error}; look at storage_options=, and "
                    "whether the data workers can reach the store"
                ) from error

    def _put(self, draft: str, final: str, *, replaces: bool) -> None:
        if self._appears_whole:
            self._files.put_file(draft, final)
            return
        passing = f"{self._root}/{self._drafts}/{os.path.basename(draft)}"
        for folder in (os.path.dirname(passing), os.path.dirname(final)):
            self._files.makedirs(folder, exist_ok=True)
        self._files.put_file(draft, passing)
        self._rename_once(passing, final, replaces=replaces)

    def _rename_once(self, passing: str, final: str, *, replaces: bool) -> None:
        """Renames a file, on file systems that may not rename over an existing file.

        An existing file of the same content is kept: it would be missing for a moment otherwise.
        An existing file of other content is removed first, if `replaces`.
        """
        if not self._files.exists(final):
            try:
                self._files.mv(passing, final)
                return
            except OSError:
                if not self._files.exists(final):
                    raise
        if replaces and self._files.cat_file(final) != self._files.cat_file(passing):
            self._files.rm_file(final)
            self._files.mv(passing, final)
            return
        with contextlib.suppress(OSError):
            self._files.rm_file(passing)

    def remove(self, name: str) -> None:
        """Removes a file, if possible."""
        with contextlib.suppress(OSError):
            self._files.rm_file(f"{self._root}/{name}")

    def remove_drafts(self) -> None:
        """Removes all drafts, if possible."""
        with contextlib.suppress(OSError):
            self._files.rm(f"{self._root}/{self._drafts}", recursive=True)


def _link(draft: str, final: str) -> bool:
    """Gives a file a second name unless that name is taken; returns False without hard links."""
    try:
        os.link(draft, final)
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


@contextlib.contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Turns errors of storage into errors that name the file; any DataServiceError stays as is."""
    try:
        yield
    except DataServiceError:
        raise
    except (ConnectionError, TimeoutError) as error:
        raise UnavailableError(f"cannot write {path} at present: {error}") from error
    except PermissionError as error:
        raise FailedPreconditionError(
            f"no permission to write {path}: {error}; give the user of the data workers access"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhaustedError(
                f"no space is left to write {path}: {error}; make room and save again"
            ) from error
        raise FailedPreconditionError(
            f"cannot write {path}: {error}; check that it is a folder on every data worker, and "
            "whether someone has removed it"
        ) from error
    except ImportError as error:
        raise FailedPreconditionError(f"cannot write {path}: {error}") from error
