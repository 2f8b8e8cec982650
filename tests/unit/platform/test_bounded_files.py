"""Files of settings and secrets are regular files of a bounded size; anything else is refused at once."""

import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from bus.client.config.sources import load_profile
from bus.errors import BusError
from bus.model import KeyFiles
from bus.platform.bounded_files import FILE_BYTES_MAX, FileFault, read_bounded, read_bounded_text
from bus.security.key_material import KeyMaterialFault, read_key_material
from bus.security.oauth.documents import DocumentFault, read_document
from bus.security.oauth.token_settings import parse_url
from bus.settings.files import read_toml, resolve

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Without a writer, so that its reader would wait for ever."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_file_of_the_largest_size_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * FILE_BYTES_MAX)
    assert read_bounded(file) == b"x" * FILE_BYTES_MAX


def test_larger_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    with pytest.raises(FileFault, match="expected at most 1048576 bytes, found more"):
        read_bounded(file)


def test_named_pipe_without_a_writer_is_refused_at_once(pipe: Path) -> None:
    with pytest.raises(FileFault, match="expected a regular file, found a named pipe"):
        read_bounded(pipe)


def test_device_is_refused() -> None:
    with pytest.raises(FileFault, match="expected a regular file, found a device"):
        read_bounded(Path("/dev/zero"))


def test_folder_and_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFault, match="expected a readable file, found: Is a directory"):
        read_bounded(tmp_path)
    with pytest.raises(FileFault, match="expected a readable file, found: No such file or directory"):
        read_bounded(tmp_path / "none")


def test_bytes_that_are_no_text_are_named_by_their_position_only(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"hush\xff")
    with pytest.raises(FileFault, match=r"^expected UTF-8 text, found other bytes at position 4$"):
        read_bounded_text(file)


def test_pipe_that_the_process_has_open_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"security.protocol=SSL\n")
        os.close(writer)
        assert read_bounded(Path(f"/dev/fd/{reader}")) == b"security.protocol=SSL\n"
    finally:
        os.close(reader)


def test_every_reader_of_settings_and_secrets_refuses_a_named_pipe(pipe: Path) -> None:
    found = "expected a regular file, found a named pipe"
    with pytest.raises(BusError, match=f"{pipe}: {found}"):
        load_profile("prod", pipe)
    with pytest.raises(ValueError, match=f"{pipe}: {found}"):
        read_toml(pipe)
    with pytest.raises(ValueError, match=found):
        resolve(f"${{file:{pipe}:password}}", ("file",))
    with pytest.raises(KeyMaterialFault, match=f"{pipe}: {found}"):
        read_key_material(KeyFiles(pipe, pipe), NOW)
    with pytest.raises(DocumentFault, match=f"{pipe}: {found}"):
        read_document(parse_url(f"file://{pipe}"))
