"""How a producer's batches are compressed on the wire: compression.type and its levels.

lz4 and zstd compress the buffers inside the Arrow stream, which every Arrow reader undoes by itself. Arrow knows no
gzip and no snappy there, so those compress the finished stream, and the request says so (`PayloadCodec`). Guards one
promise: what comes out is the batch, whichever thread asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from bus.client.config.parsing import ProducerConfig
from bus.grpc_api.v1 import bus_pb2 as pb

NO_CODEC: int = pb.PAYLOAD_CODEC_NONE
_PAYLOAD_CODECS: dict[str, int] = {"gzip": pb.PAYLOAD_CODEC_GZIP, "snappy": pb.PAYLOAD_CODEC_SNAPPY}

# Kafka's default level of lz4 does not stand for that level of its slow compressor but for the fast one.
_LZ4_FAST_LEVEL = 9
_LZ4_LEVEL_MAX = 12  # the higher ones that Kafka allows are this one in the library, too
_GZIP_DEFAULT_LEVEL = -1

Payload = tuple[pa.Buffer, int, int]  # the bytes, their `PayloadCodec`, and how many they were before


@dataclass(frozen=True, slots=True)
class WireCompression:
    """`type` as in compression.type; `level` None: the codec's own default. Safe to share between threads."""

    type: str
    level: int | None = None
    ipc_codec: pa.Codec | None = field(init=False, compare=False)
    _options: pa.ipc.IpcWriteOptions = field(init=False, compare=False)

    def __post_init__(self) -> None:
        codec = None if self.type == "none" else self._new_codec()  # raises for a level that it does not have
        object.__setattr__(self, "ipc_codec", None if self.type in _PAYLOAD_CODECS else codec)
        object.__setattr__(self, "_options", pa.ipc.IpcWriteOptions(compression=self.ipc_codec))

    def _new_codec(self) -> pa.Codec:
        return pa.Codec(self.type, compression_level=self.level)

    @classmethod
    def of(cls, config: ProducerConfig) -> WireCompression:
        match config.compression_type:
            case "gzip":
                level = config.compression_gzip_level
                return cls("gzip", None if level == _GZIP_DEFAULT_LEVEL else level)
            case "lz4":
                level = config.compression_lz4_level
                return cls("lz4", None if level == _LZ4_FAST_LEVEL else min(level, _LZ4_LEVEL_MAX))
            case "zstd":
                return cls("zstd", config.compression_zstd_level)
            case other:
                return cls(other)

    def encode(self, batch: pa.RecordBatch) -> Payload:
        """The batch as an Arrow IPC stream, compressed."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=self._options) as writer:
            writer.write_batch(batch)
        stream = sink.getvalue()
        if self.ipc_codec is None:
            return self.pack(stream)
        return stream, NO_CODEC, max(batch.nbytes, stream.size)

    def pack(self, payload: pa.Buffer) -> Payload:
        """A finished Arrow stream; as it is, unless compressing all of it makes it smaller."""
        if self.type in _PAYLOAD_CODECS:
            # A new codec each time: one of gzip has the state of its stream inside, and threads would share it.
            packed = self._new_codec().compress(payload)
            if packed.size < payload.size:
                return packed, _PAYLOAD_CODECS[self.type], payload.size
        return payload, NO_CODEC, payload.size
