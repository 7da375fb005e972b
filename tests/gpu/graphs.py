"""What TensorFlow made of a step: operations that left their GPU, and copies to and from the host.

It reads the graphs by device that TensorFlow runs.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels

from kerasdist.engine.sums import ALL_REDUCE
from tests.gpu.authors import OURS, UNKNOWN, Author

NO_KERNEL, ELSEWHERE = "no GPU kernel", "not on its GPU"
TO_HOST, TO_DEVICE, BETWEEN = "to the host", "to the device", "between devices"
_BODY = "while/body/"  # The body of the loop over batches, after inlining.
_EXCHANGE = f"/{ALL_REDUCE}/"
_SENDS, _RECEIVES = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
_PLUMBING = (*_RECEIVES, "Enter", "Exit", "Identity", "Merge", "NextIteration", "Switch")
_CONTROL = ("Case", "If", "While", "StatelessCase", "StatelessIf", "StatelessWhile")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Operations that compute nothing themselves.
_NOTHING = (*_PLUMBING, *_CONTROL, *_CALLS, "Const", "NoOp")


@dataclass(frozen=True)
class Finding:
    """An operation that is not where it was asked to be, or a tensor that travels."""

    kind: str
    op: str
    dtypes: tuple[str, ...]
    author: Author
    name: str
    shape: tuple[int | None, ...] | None = None
    num_bytes: int = 0

    @property
    def is_ours(self):
        return self.author.owner == OURS


def of_steps():
    """The graphs of each training loop that ran since `collect_graphs`: one graph per device."""
    functions = context.context().export_run_metadata().function_graphs
    found = [list(function.partition_graphs) for function in functions]
    return [graphs for graphs in found if any(n.op == "Unstage" for g in graphs for n in g.node)]


class Step:
    """The graphs of a training step, one per device.

    Args:
        graphs: `GraphDef`s with devices.
        authors: Who made the operations.
        num_rows: The examples that a replica gets, where a size is not known.
    """

    def __init__(self, graphs, authors, num_rows):
        self._authors, self._num_rows = authors, num_rows
        self._nodes = [node for graph in graphs for node in graph.node]
        self._by_name = {(n.device, n.name): n for n in self._nodes}
        self._users = defaultdict(list)
        for node in self._nodes:
            for name in node.input:
                if not name.startswith("^"):
                    self._users[node.device, name.partition(":")[0]].append(node)

    def findings(self):
        return [*self._moved(), *self._copies()]

    def num_unknown(self):
        """How many operations that compute, on the host, have an unknown author."""
        skipped = (*_PLUMBING, *_SENDS, "Const", "NoOp", "_Arg", "_Retval")
        nodes = [n for n in self._inside() if n.op not in skipped and not _is_gpu(n)]
        return sum(self._made(node) is None for node in nodes)

    def _inside(self):
        return [node for node in self._nodes if node.name.startswith(_BODY)]

    def _made(self, node):
        info = node.experimental_debug_info
        if not info.original_node_names:
            return None
        return self._authors.of(info.original_func_names[-1], info.original_node_names[-1])

    def _moved(self):
        for node in self._inside():
            made = self._made(node)
            if made is None or _is_gpu(node) or "GPU" not in made.device:
                continue
            # TensorFlow may replace it by another operation, once it is placed.
            if made.op in _NOTHING:
                continue
            kind = ELSEWHERE if _has_kernel(made.op, node) else NO_KERNEL
            shape = made.outputs[0][1] if made.outputs else None
            yield Finding(kind, made.op, _dtypes(node), made.author, node.name, shape)

    def _copies(self):
        receives = {_key(n): n for n in self._nodes if n.op in _RECEIVES}
        for send in self._nodes:
            receive = receives.get(_key(send)) if send.op in _SENDS else None
            if receive is None or not send.input or "/ctrl/_" in send.input[0]:
                continue
            kind = _kind(send, receive)
            name, _, number = send.input[0].partition(":")
            producer = self._by_name.get((send.device, name))
            users = self._real_users(receive)
            if kind is None or not name.startswith(_BODY) or not users:
                continue
            if producer.op == "Unstage" or any(user.op == "Stage" for user in users):
                continue  # The batch: int32 numbers wait on the host.
            if kind == BETWEEN and any(_EXCHANGE in n.name for n in (producer, *users)):
                continue
            yield self._copy(kind, producer, int(number or 0), users)

    def _copy(self, kind, producer, number, users):
        source = self._made(self._origin(producer))
        makers = [made for made in map(self._made, users) if made is not None]
        # The operation on the host is the reason for the copy.
        at_fault = [source] if kind == TO_DEVICE else makers
        made = next((m for m in (*at_fault, source, *makers) if m is not None), None)
        author = UNKNOWN if made is None else made.author
        dtype, shape = "", None
        if source is not None and number < len(source.outputs):
            dtype, shape = source.outputs[number]
        op = f"{producer.op} → {users[0].op}"
        size = _size(dtype, shape, self._num_rows)
        return Finding(kind, op, (dtype,), author, producer.name, shape, size)

    def _origin(self, node):
        """What a value comes from, behind operations that only pass it on."""
        for _ in range(20):
            if self._made(node) is not None or node.op not in _PLUMBING or not node.input:
                return node
            before = self._by_name.get((node.device, node.input[0].partition(":")[0]))
            if before is None:
                return node
            node = before
        return node

    def _real_users(self, node, depth=0):
        users = []
        for user in self._users[node.device, node.name]:
            if user.op in _SENDS:
                continue
            passes = user.op in _PLUMBING and self._made(user) is None and depth < 10
            users += (self._real_users(user, depth + 1) if passes else []) or [user]
        return users


def _kind(send, receive):
    from_host = send.op == "_HostSend" or not _is_gpu(send)
    to_host = receive.op == "_HostRecv" or not _is_gpu(receive)
    if from_host:
        return None if to_host else TO_DEVICE
    return TO_HOST if to_host else BETWEEN


def _key(node):
    names = ("tensor_name", "send_device", "recv_device")
    return tuple(node.attr[name].s for name in names)


def _is_gpu(node):
    return "GPU" in node.device


def _dtypes(node):
    found = []
    for name, value in sorted(node.attr.items()):
        if value.type and not name.startswith("_"):
            found.append(tf.as_dtype(value.type).name)
        elif name.startswith("T") and value.list.type:
            found += [tf.as_dtype(each).name for each in value.list.type]
    return tuple(dict.fromkeys(found))


def _has_kernel(op, node):
    """Whether a GPU has a kernel for these dtypes."""
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        if kernel.device_type in ("GPU", "DEFAULT") and all(
            not c.allowed_values.list.type or node.attr[c.name].type in c.allowed_values.list.type
            for c in kernel.constraint
        ):
            return True
    return False


def _size(dtype, shape, num_rows):
    if not dtype or shape is None or dtype in ("resource", "variant", "string"):
        return 0
    return math.prod(num_rows if n is None else n for n in shape) * tf.as_dtype(dtype).size
