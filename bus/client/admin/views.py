"""The administrator's calls about views of topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bus.client.connection.cluster import error_of
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.json_views import JsonView


class ViewAdmin:
    """`on_controller` and `retrying` call the broker, once or until it answers; both raise `BusError`."""

    def __init__(self, on_controller: Callable[[str, Any], Any], retrying: Callable[[str, Any], Any]) -> None:
        self._on_controller = on_controller
        self._retrying = retrying

    def create(
        self,
        name: str,
        topic: str,
        schema: str,
        columns: Sequence[str] | None,
        *,
        replace: bool,
        validate_only: bool,
    ) -> JsonView:
        request = pb.CreateViewRequest(
            view=pb.View(name=name, topic=topic, schema=schema, columns=columns or ()),
            has_usual_columns=columns is None,
            replace=replace,
            validate_only=validate_only,
        )
        response = self._on_controller("CreateView", request)
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        return _decode(response.view)

    def delete(self, name: str) -> None:
        response = self._on_controller("DeleteView", pb.DeleteViewRequest(name=name))
        if response.error_code:
            raise error_of(response.error_code, response.error_message)

    def list(self) -> list[JsonView]:
        response = self._retrying("ListViews", pb.ListViewsRequest())
        return [_decode(view) for view in response.views]


def _decode(view: pb.View) -> JsonView:
    return JsonView(view.name, view.topic, view.schema, tuple(view.columns))
