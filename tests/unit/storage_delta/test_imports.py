"""No module of the storage imports, in the end, itself."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_imports_go_round_in_no_circle() -> None:
    graph = grimp.build_graph("bus", cache_dir=None)
    modules = sorted(graph.modules)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in modules}
    assert set(TopologicalSorter(imports).static_order()) == set(modules)  # a circle is a `CycleError` that names it
