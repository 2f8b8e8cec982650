"""The notebook runs from top to bottom, as a person with Jupyter would run it, and draws while orders come."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

_NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "topic_to_chart.ipynb"


class _Watcher(NotebookClient):
    """Keeps what a cell showed anew, which takes the place of what it showed before."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.pictures: list[str] = []

    def process_message(self, message: dict[str, object], cell: object, cell_index: int) -> object:
        if message["msg_type"] in ("display_data", "update_display_data"):
            self.pictures.append(message["content"]["data"]["image/png"])
        return super().process_message(message, cell, cell_index)


@pytest.mark.timeout(600)  # a Spark of its own: its start and its first query count too
def test_orders_go_from_a_topic_into_a_chart_that_follows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_SECONDS", "6")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.delenv("BUS_ADDRESS", raising=False)
    notebook = nbformat.read(_NOTEBOOK, as_version=4)
    watcher = _Watcher(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    watcher.execute()
    said = [
        output.text for cell in notebook.cells for output in cell.get("outputs", ()) if output.get("name") == "stdout"
    ]
    counted = {product: int(orders) for product, orders, _ in (line.split() for line in "".join(said).splitlines())}
    assert set(counted) == {"apple", "pear", "plum"}
    assert sum(counted.values()) > 100
    assert len(set(watcher.pictures)) > 2, "expected the empty axes, the lines before there were orders, and with them"


def test_the_notebook_is_kept_without_what_a_run_left_in_it() -> None:
    cells = [cell for cell in nbformat.read(_NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count is None and not cell.outputs for cell in cells)
