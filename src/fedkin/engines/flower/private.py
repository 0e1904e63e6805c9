"""What we use of Flower that is not its public interface, all of it here.

Flower's public parts are `flwr.app`, `flwr.serverapp` and `flwr.clientapp`. They have no way to run
an app in a process that stays, to start a run from Python or to bound a message before it is put
together, so these are needed. (The scripts that start Flower's programs name their entry points.)
A new version of Flower is tried by its tests, `tests/engines/flower` and `tests/runs/sites`; the
extra `flower` allows the versions with which they passed.
"""

from __future__ import annotations

from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import (
    ProtobufCall,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

__all__ = [
    "AcquireTaskRequest",
    "ConfirmMessageReceivedRequest",
    "ControlHttpClient",
    "ErrorCode",
    "Fab",
    "HttpGrid",
    "Node",
    "ObjectPullError",
    "ObjectPushError",
    "ProtobufCall",
    "ProtobufClientInterceptor",
    "ProtobufRequestContext",
    "PullAppMessagesRequest",
    "PullObjectRequest",
    "PullTaskInputRequest",
    "PushTaskOutputRequest",
    "RegisterNodeRequest",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "SendTaskHeartbeatRequest",
    "StartRunRequest",
    "SubStatus",
    "SuperExecAuthHttpInterceptor",
    "TaskIdentity",
    "TaskType",
    "build_fab_from_files",
    "context_from_proto",
    "fab_to_proto",
    "get_object_body",
    "get_object_head_values_from_object_content",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "make_confirm_message_received_fn_protobuf",
    "make_pull_object_fn_protobuf",
    "pull_and_inflate_object_from_tree",
    "push_message",
    "push_task_output",
    "run_from_proto",
]
