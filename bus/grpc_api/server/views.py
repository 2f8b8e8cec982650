"""Views of topics over gRPC. Which may be is the rules' to decide."""

from __future__ import annotations

from bus.cluster_metadata.view_decisions import CreateView
from bus.errors import Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.json_views import JsonView
from bus.runtime.cluster import Cluster


class ViewHandler:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(self, request: pb.CreateViewRequest) -> pb.CreateViewResponse:
        asked = request.view
        command = CreateView(
            name=asked.name,
            topic=asked.topic,
            schema=asked.schema,
            columns=None if request.has_usual_columns else tuple(asked.columns),
            replaces=request.replace,
            validate_only=request.validate_only,
        )
        answer = await self._cluster.controller.create_view(command)
        if isinstance(answer, Refused):
            return pb.CreateViewResponse(error_code=int(answer.code), error_message=answer.message)  # type: ignore[arg-type]
        return pb.CreateViewResponse(view=_encode(answer))

    async def delete(self, request: pb.DeleteViewRequest) -> pb.DeleteViewResponse:
        answer = await self._cluster.controller.delete_view(request.name)
        if isinstance(answer, Refused):
            return pb.DeleteViewResponse(error_code=int(answer.code), error_message=answer.message)  # type: ignore[arg-type]
        return pb.DeleteViewResponse()

    async def list(self, _: pb.ListViewsRequest) -> pb.ListViewsResponse:
        views = self._cluster.state.views
        return pb.ListViewsResponse(views=[_encode(views[name]) for name in sorted(views)])


def _encode(view: JsonView) -> pb.View:
    return pb.View(name=view.name, topic=view.topic, schema=view.schema, columns=view.columns)
