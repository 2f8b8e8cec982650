"""The bus over gRPC: the contract `v1/bus.proto` with its generated stubs, and the server that fulfils it."""
