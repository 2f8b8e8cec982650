"""A folder of a local file system as an object store.

Guards one promise: what a call reported as written is on the disk, its name included, and a name that can lose a race
appears whole or not at all. A version file is therefore written and synced under a temporary name, then linked, which
fails if the name is taken, then the folder is synced. It never reports success on the strength of the page cache. And
it writes nothing into a folder that came in the place of the one that was locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import pyarrow.fs

from bus.errors import RootLost, RootNotUsable, StorageFault, StorageFull
from bus.ports import Volume
from bus.storage_delta.stores.store import (
    PRIVATE_FOLDER,
    Data,
    Entry,
    KeyExists,
    KeyLocked,
    KeyNotFound,
    KeyReplaced,
    Listing,
    OutcomeUnknown,
    Stamp,
    Written,
    is_temporary_name,
    temporary_name,
)

_log = logging.getLogger(__name__)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Errors of a file system that does not support a call.
_NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.ENOLCK})
# A lock is tried again so soon: `lock_holder` of another process has it for a moment.
_LOCK_RETRY_S = 0.01
_LOCK_TRIES = 3
# The owner writes; programs of the owner's group read, such as Spark; all others may not. A umask can take more away.
_FILE_MODE = 0o640
_FOLDER_MODE = 0o750
_PRIVATE_FILE_MODE = 0o600
_PRIVATE_FOLDER_MODE = 0o700
_FILES = pyarrow.fs.LocalFileSystem()
# Ours, and what delta-rs leaves when it is killed while it writes: `<name>#<number>`.
_LEFTOVER_OF_DELTA_RS = re.compile(r".*#\d+")


class FileSystem:
    """The calls whose failure the tests have to provoke; everything else goes to `os` directly."""

    write: Callable[[int, Data], int] = staticmethod(os.write)
    fsync: Callable[[int], None] = staticmethod(os.fsync)
    link: Callable[[str, str], None] = staticmethod(os.link)
    flock: Callable[[int, int], None] = staticmethod(fcntl.flock)
    mounts: str = "/proc/self/mountinfo"


class LocalStore:
    """Implements `ObjectStore` on POSIX. `folder` is absolute; it need not exist before the first write."""

    def __init__(self, folder: str, file_system: FileSystem | None = None) -> None:
        self._folder = folder
        self._fs = file_system or FileSystem()
        # Folders that are known to exist: their creation was synced, so a write asks no more.
        self._made: set[str] = set()
        self._lock: FileLock | None = None

    @property
    def url(self) -> str:
        return self._folder

    def table_url(self, folder: str) -> str | None:
        return f"{self._folder}/{folder}"

    def create(self, key: str, data: Data, *, after: Written | None = None) -> Stamp:
        path, folder = self._path(key), self._make_folder_of(key)
        temporary = f"{folder}/{temporary_name(os.path.basename(path))}"
        with _translated(key):
            try:
                stamp = self._write_synced(temporary, (data,))
                self._check_held()
                if after is not None and not self._is_as_written(after):
                    raise KeyReplaced(f"{after.key} is not what was written there")
                self._link(temporary, path, key)
            except FileNotFoundError:
                self._made.discard(folder)  # another process has deleted it: the next try makes it again
                raise
            finally:
                # Left behind, it is harmless: no reader looks at it, and the next opening removes it.
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
        if after is not None and not self._is_as_written(after):
            raise OutcomeUnknown(f"{key} is there, but {after.key} is not what was written there")
        self._sync_folder_of_visible(folder, key)
        return stamp

    def stamp(self, key: str) -> Stamp:
        with _translated(key):
            return _stamp_of(os.stat(self._path(key)))

    def _is_as_written(self, written: Written) -> bool:
        try:
            return _stamp_of(os.stat(self._path(written.key))) == written.stamp
        except FileNotFoundError:
            return False

    def confirm(self, key: str, data: Data) -> None:
        # A kernel reports a failed write-back once and then forgets it, so a second fsync of the same folder proves
        # nothing. Writing the name again makes the kernel write again, and then its answer counts.
        self.put(key, data)

    def write_unique(self, key: str, data: Data) -> None:
        self.write_parts(key, (data,))

    def write_parts(self, key: str, parts: Iterable[Data]) -> None:
        path, folder = self._path(key), self._make_folder_of(key)
        with _translated(key):
            try:
                self._write_synced(path, parts)
                self._sync_folder(folder)
            except FileExistsError:
                raise KeyExists(f"{key} exists, expected a name never used before") from None
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise

    def put(self, key: str, data: Data) -> None:
        path, folder = self._path(key), self._make_folder_of(key)
        temporary = f"{folder}/{temporary_name(os.path.basename(path))}"
        with _translated(key):
            try:
                self._write_synced(temporary, (data,))
                self._check_held()
                os.rename(temporary, path)
            except (OSError, RootLost):
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        self._sync_folder_of_visible(folder, key)

    def get(self, key: str) -> bytes:
        with _translated(key), open(self._path(key), "rb", buffering=0) as file:
            return file.readall() or b""

    def get_range(self, key: str, start: int, length: int) -> Data:
        with _translated(key):
            fd = os.open(self._path(key), os.O_RDONLY)
            try:
                found = os.pread(fd, length, start)
                # One read may give less than was asked for, for example at 2 GiB.
                while len(found) < length and (more := os.pread(fd, length - len(found), start + len(found))):
                    found += more
                return found
            finally:
                os.close(fd)

    def size(self, key: str) -> int:
        with _translated(key):
            return os.stat(self._path(key)).st_size

    def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        if not keys:
            return ()
        with _translated(f"{keys[0]} and {len(keys) - 1} more"):
            # One call without the interpreter's lock, where as many of `os.stat` would give it away as often.
            return [found.size for found in _FILES.get_file_info([self._path(key) for key in keys])]

    def list(self, folder: str, *, with_sizes: bool = True, start_at: str = "", prefix: str = "") -> Listing:
        files: list[Entry] = []
        folders: list[str] = []
        leftovers: list[Entry] = []
        with _translated(folder):
            try:
                with os.scandir(self._path(folder)) as entries:
                    for entry in entries:
                        name = entry.name
                        if (name[0] == "." or "#" in name) and _is_leftover(name):
                            found = leftovers
                        elif name < start_at or not name.startswith(prefix):
                            continue
                        elif entry.is_dir():
                            folders.append(name)
                            continue
                        else:
                            found = files
                        if not with_sizes:
                            found.append(Entry(name, -1))
                        else:
                            with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                                found.append(_entry_of(entry))
            except FileNotFoundError:
                return Listing((), ())
        by_name = attrgetter("name")
        return Listing(sorted(files, key=by_name), sorted(folders), sorted(leftovers, key=by_name))

    def measure_volume(self) -> Volume:
        with _translated(self._folder):
            found = os.statvfs(self._folder)
        return Volume(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def delete(self, key: str) -> None:
        self._check_held()
        with _translated(key), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def delete_folder(self, folder: str) -> None:
        self._check_held()
        path = self._path(folder)
        # A copy, since another thread may be adding to it.
        gone = {made for made in self._made.copy() if made == path or made.startswith(f"{path}/")}
        self._made -= gone
        with _translated(folder), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync(self, folder: str, names: Sequence[str] = ()) -> None:
        path = self._path(folder)
        with _translated(folder):
            for name in names:
                self._sync_folder(f"{path}/{name}")
            self._sync_folder(path)

    def lock(self, key: str, holder: str, *, is_shared: bool = False) -> FileLock:
        self._make_folder_of(key)
        path = self._path(key)
        with _translated(key):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._file_mode(path))
            lock = FileLock(fd, path)
            try:
                with self._unsupported("flock"):
                    self._take(fd, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{holder}\n".encode(), 0)
                lock.check_held()  # between the opening and the lock it may have been removed with its folder
                if self._lock is None:
                    self._check_file_system(path)
                if self._lock is None or not self._lock.is_held:
                    self._lock = lock
            except BaseException:
                lock.release()
                raise
            return lock

    def lock_holder(self, key: str) -> str | None:
        with _translated(key):
            try:
                fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                self._fs.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder_in(fd)
            finally:
                os.close(fd)
        return None

    def check_private(self) -> None:
        path = self._path(PRIVATE_FOLDER)
        try:
            with _translated(PRIVATE_FOLDER):
                if os.path.islink(path):
                    _log.warning(
                        "%s is a symbolic link to %s: whoever may write there, or change the link, decides who may log "
                        "in; keep the folder itself in the root",
                        path,
                        os.path.realpath(path),
                    )
                mode = stat.S_IMODE(os.stat(path).st_mode)
        except KeyNotFound:
            return
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise RootNotUsable(
                f"{path}: expected mode {_PRIVATE_FOLDER_MODE:04o}, found {mode:04o}: others may read what proves "
                f"passwords there; set it by `chmod {_PRIVATE_FOLDER_MODE:o} {shlex.quote(path)}`, and reset the "
                "passwords if that has happened"
            )

    def _take(self, fd: int, operation: int) -> None:
        for tries_left in reversed(range(_LOCK_TRIES)):
            try:
                self._fs.flock(fd, operation | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not tries_left:
                    raise KeyLocked(_holder_in(fd)) from None
            time.sleep(_LOCK_RETRY_S)

    def _check_file_system(self, path: str) -> None:
        """That names can be linked and folders be synced where this file is; a warning if it is NFS."""
        probe = f"{os.path.dirname(path)}/{temporary_name(os.path.basename(path))}"
        with self._unsupported("hard links"):
            self._fs.link(path, probe)
        with contextlib.suppress(FileNotFoundError):  # another process has taken it for a leftover
            os.unlink(probe)
        with self._unsupported("syncs of folders"):
            self._sync_folder(os.path.dirname(path))
        mount = find_mount(self._folder, self._fs.mounts)
        if mount is not None and mount.type.startswith("nfs"):
            _log.warning(
                "%s is on NFS (%s, mounted with %s). Brokers on several machines need lookupcache=positive or none, "
                "since they see new versions late otherwise, and locks that reach the server: no nolock, no "
                "local_lock=flock or all. The locks of a machine that died are free when the server ends its lease",
                self._folder,
                mount.source,
                mount.options,
            )

    @contextlib.contextmanager
    def _unsupported(self, what: str) -> Iterator[None]:
        """Name the file system if it lacks a call that the log is built on."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            mount = find_mount(self._folder, self._fs.mounts)
            found = "one" if mount is None else f"{mount.type} ({mount.source} at {mount.point})"
            raise RootNotUsable(
                f"{self._folder}: expected a file system with flock, hard links and syncs of folders, found {found} "
                f"without {what}: {error.strerror}"
            ) from error

    def _check_held(self) -> None:
        if self._lock is not None:
            self._lock.check_held()

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key}" if key else self._folder

    def _is_private(self, path: str) -> bool:
        return f"{path}/".startswith(f"{self._path(PRIVATE_FOLDER)}/")

    def _file_mode(self, path: str) -> int:
        return _PRIVATE_FILE_MODE if self._is_private(path) else _FILE_MODE

    def _write_synced(self, path: str, parts: Iterable[Data]) -> Stamp:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._file_mode(path))
        try:
            for data in parts:
                view = memoryview(data).cast("B") if len(data) else memoryview(b"")
                while view:
                    view = view[self._fs.write(fd, view) :]
                self._fs.fsync(fd)
            return _stamp_of(os.fstat(fd))
        finally:
            os.close(fd)

    def _link(self, temporary: str, path: str, key: str) -> None:
        """A network file system may make the link and report an error: its answer was lost, or a second try of its own
        failed. So only "it exists" says that the name is not ours."""
        try:
            self._fs.link(temporary, path)
        except FileExistsError:
            raise KeyExists(f"{key} exists") from None
        except OSError as error:
            raise OutcomeUnknown(
                f"{key} may be there: the link to its name failed ({error.strerror or error})"
            ) from error

    def _sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._fs.fsync(fd)
        finally:
            os.close(fd)

    def _sync_folder_of_visible(self, folder: str, key: str) -> None:
        try:
            self._sync_folder(folder)
        except OSError as error:
            raise OutcomeUnknown(f"{key} is visible, but its folder could not be synced: {error.strerror}") from error

    def _make_folder_of(self, key: str) -> str:
        """The folder of `key`, created with its parents if need be, each name synced in the folder above it."""
        self._check_held()
        folder = os.path.dirname(self._path(key))
        if folder not in self._made:
            with _translated(key):
                self._make_folder(folder)
        return folder

    def _make_folder(self, folder: str) -> None:
        parent = os.path.dirname(folder)
        if not os.path.isdir(folder):
            self._make_folder(parent)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, _PRIVATE_FOLDER_MODE if self._is_private(folder) else _FOLDER_MODE)
            self._sync_folder(parent)
        elif folder not in self._made and folder.startswith(f"{self._folder}/"):
            # Another process may have made it, and been killed before it synced the name.
            self._sync_folder(parent)
        self._made.add(folder)


class FileLock:
    """A flock: the kernel releases it when the process ends, even by kill -9."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd: int | None = fd
        self._path = path
        self._file = _file_of(os.fstat(fd))
        self._renewals = 0

    @property
    def is_held(self) -> bool:
        return self._fd is not None

    def check_held(self) -> None:
        """The file stays open, so no other file has its inode. Once released, there is nothing to check."""
        if self._fd is None:
            return
        found: tuple[int, int] | None = None
        with _translated(self._path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = _file_of(os.stat(self._path))
        if found != self._file and self._fd is not None:
            other, fate = (
                ("no file", "removed or renamed") if found is None else ("another file", "removed and made again")
            )
            raise RootLost(
                f"{self._path}: expected the lock that this process took, found {other}; the folder was {fate} while "
                f"it was in use, so nothing more is written to it"
            )

    def renew(self) -> None:
        """Write behind the line of its holder."""
        fd = self._fd
        if fd is not None:
            with _translated(self._path):
                self._renewals += 1
                os.pwrite(fd, f"{self._renewals:20d}\n".encode(), len(os.pread(fd, 4096, 0).partition(b"\n")[0]) + 1)

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system as the kernel lists it. `options`: those of the mount and of the file system."""

    point: str
    type: str
    source: str
    options: str


def find_mount(folder: str, mounts: str) -> Mount | None:
    """Return the mount that contains `folder`, from a file such as /proc/self/mountinfo. None: the file does not exist
    or has no such line."""
    path = os.path.realpath(folder)
    found: Mount | None = None
    try:
        with open(mounts, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                fields, rest = before.split(), after.split()
                if len(fields) < 6 or len(rest) < 3:
                    continue
                point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
                # The last of several mounts on one point hides the others.
                if f"{path}/".startswith(f"{point.rstrip('/')}/") and (found is None or len(point) >= len(found.point)):
                    found = Mount(point, rest[0], rest[1], f"{fields[5]},{rest[2]}")
    except OSError:
        return None
    return found


def _holder_in(fd: int) -> str:
    first_line = os.pread(fd, 4096, 0).partition(b"\n")[0]
    return first_line.decode(errors="replace").strip() or "a process that left no name"


def _file_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _entry_of(found: os.DirEntry[str]) -> Entry:
    status = found.stat()
    return Entry(found.name, status.st_size, status.st_mtime_ns // 1_000_000)


def _stamp_of(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _is_leftover(name: str) -> bool:
    return is_temporary_name(name) or ("#" in name and _LEFTOVER_OF_DELTA_RS.fullmatch(name) is not None)


@contextlib.contextmanager
def _translated(key: str) -> Iterator[None]:
    """Any `OSError` as the fault that it means."""
    try:
        yield
    except FileNotFoundError as error:
        raise KeyNotFound(f"{key} does not exist") from error
    except OSError as error:
        reason = f"{key}: {error.strerror or error}"
        raise (StorageFull(reason) if error.errno in _FULL else StorageFault(reason)) from error
