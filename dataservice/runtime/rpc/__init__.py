"""Unary and streaming calls over gRPC for any protobuf service; no other code imports grpc.

A service is given by its protobuf descriptor and an object with one snake_case method per RPC; no
generated service code is involved. Knows nothing of what the services do. Invariants: every call
carries the token, every error of the error tree keeps its class from one end to the other, and a
frozen peer is noticed by keepalive within a few seconds.
"""

import os

# Otherwise gRPC starts its threads again in a forked child, where they read what comes for the
# parent's streams, and crash it. Before the imports, because gRPC reads it once.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from dataservice.runtime.rpc.client import RpcClient
from dataservice.runtime.rpc.server import RpcServer
from dataservice.runtime.rpc.streams import RequestSource, RpcStream

__all__ = ["RequestSource", "RpcClient", "RpcServer", "RpcStream"]
