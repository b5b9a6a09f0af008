"""Unary and streaming calls over gRPC for any protobuf service; no other code imports grpc.

A service is given by its protobuf descriptor and an object with one snake_case method per RPC; no
generated service code is involved. Knows nothing of what the services do. Invariants: every call
carries the token, every error of the error tree keeps its class from one end to the other, and a
frozen peer is noticed by keepalive within a few seconds.
"""

from dataservice.runtime.rpc.client import RpcClient
from dataservice.runtime.rpc.server import RpcServer
from dataservice.runtime.rpc.streams import RequestSource, RpcStream

__all__ = ["RequestSource", "RpcClient", "RpcServer", "RpcStream"]
