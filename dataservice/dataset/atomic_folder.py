"""A folder, on any file system that fsspec knows, in which files appear whole or not at all.

A file is written as a draft and gets its name when it is on the disk. Knows nothing of what files
mean. Invariants: a file under its final name is whole, and stays so if the host loses power; with
``replaces`` False it is of whoever was first, which only local file systems with hard links assure:
on others, such as object stores, who was frozen while it wrote may write over it.
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
from dataservice.runtime.durable import sync_folder

# Object stores: an object appears once it is whole, and a rename would copy it.
_APPEARS_WHOLE: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "cos", "r2"}
)
# What file systems say that have no hard links.
_NO_LINKS: Final = (
    errno.EPERM,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
)


class AtomicFolder:
    """``drafts`` is the name, in the folder, of the one for what is being written."""

    def __init__(
        self, path: str, storage_options: Mapping[str, Any] | None, *, drafts: str
    ) -> None:
        self.path = path
        self._drafts = drafts
        import fsspec  # when a folder is needed: it is a tenth of a data worker's start

        try:
            self._files, root = fsspec.core.url_to_fs(path, **(storage_options or {}))
        except (OSError, ImportError, ValueError, TypeError) as error:
            # A TypeError is an option that the file system does not have.
            raise unreadable(path, error) from error
        self._root = str(root).rstrip("/")
        protocol = self._files.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._is_local = "file" in protocols
        self._appears_whole = bool(protocols & _APPEARS_WHOLE)

    # Reading

    def location(self, name: str) -> str:
        """Where a file is: a local path, or a URL."""
        full = f"{self._root}/{name}"
        return full if self._is_local else str(self._files.unstrip_protocol(full))

    def content(self, name: str) -> bytes | None:
        """All of a file; None where there is none of that name."""
        try:
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            # Packages for object stores have classes of their own, of no common base.
            raise unreadable(f"{self.path}/{name}", error) from error
        return content

    def names(self) -> list[str]:
        """What is here, sorted."""
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
            # Packages for object stores have classes of their own, of no common base.
            raise unreadable(f"{self.path}/{name}", error) from error

    # Writing

    @contextlib.contextmanager
    def synced(self, draft: str, name: str) -> Iterator[IO[bytes]]:
        """A draft of a file of that name, open to be written; on the disk when the scope ends."""
        with named_errors(f"{self.path}/{name}"), open(draft, "wb") as to:
            yield to
            to.flush()
            os.fsync(to.fileno())

    @contextlib.contextmanager
    def draft(self) -> Iterator[str]:
        """A local file to write to: where a rename reaches, if the folder is local."""
        folder = f"{self._root}/{self._drafts}" if self._is_local else tempfile.gettempdir()
        with named_errors(folder):
            os.makedirs(folder, exist_ok=True)
        draft = f"{folder}/snapshot-{uuid.uuid4().hex}"
        try:
            yield draft
        finally:
            # What could be written is not undone by what cannot be tidied up behind it.
            with contextlib.suppress(OSError):
                os.remove(draft)

    def commit(self, draft: str, name: str, *, replaces: bool = True) -> None:
        """Gives a draft its name; without `replaces` only if the name is free."""
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
            except Exception as error:  # of the store's package, as above
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
        """Not every file system renames over a file.

        The same, by another writer, is as good: removed for a moment, a third would miss it.
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
        """Takes a file away, if that can be."""
        with contextlib.suppress(OSError):
            self._files.rm_file(f"{self._root}/{name}")

    def remove_drafts(self) -> None:
        """Takes all drafts away, if that can be."""
        with contextlib.suppress(OSError):
            self._files.rm(f"{self._root}/{self._drafts}", recursive=True)


def _link(draft: str, final: str) -> bool:
    """Gives a file a name that is free, or leaves it to its owner; False without hard links."""
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
    """Errors of storage under the name of the file; those of the rows pass as they are."""
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
            f"cannot write {path}: {error}; look whether it is a folder on every data worker, and "
            "whether someone has removed it"
        ) from error
    except ImportError as error:
        raise FailedPreconditionError(f"cannot write {path}: {error}") from error
