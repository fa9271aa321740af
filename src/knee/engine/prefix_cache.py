"""Which blocks hold text that may come again, and which of them go first.

vLLM V1 (v1/core/block_pool.py, kv_cache_manager.py; 0.8 and later): a full block is known by the hash of all
text up to its end; blocks that nobody holds wait in one queue, last freed last evicted, the tail of a request
before its head; a new block is taken from the head of that queue and forgets what it held.

Here text is known by the segments that a prompt opens with, so blocks with a common fate are kept as extents
instead of one by one. A node of the tree is a segment after its predecessors; it owns the block numbers that
end in it, and blocks [start, top) of them are in memory. Because tails are freed first, what is in memory of
a path always is a leading stretch. One difference to vLLM: a second copy of a block that is in memory already
is forgotten as soon as it is freed.
"""

from collections import deque

from knee.engine.request import Request

Key = tuple[int, int]
ENDLESS = 1 << 62


class Node:
    """A segment after its predecessors, or (without a parent) what only one request can come back for."""

    __slots__ = ("children", "end", "extents", "full", "key", "parent", "part", "start", "top")

    def __init__(self, parent: "Node | None", key: Key, start: int, end: int) -> None:
        self.parent = parent
        self.key = key
        self.start = start
        self.end = end
        self.top = start
        self.children: dict[Key, Node] = {}
        self.full = 0  # requests that hold all its blocks
        self.part: list[int] = []  # up to which block the others hold it
        self.extents: list[
            list[int]
        ] = []  # [low, high) of it in the free queue, the oldest and highest first


class Lease:
    """The nodes that a running request holds, and up to which block."""

    __slots__ = ("at", "copying", "path", "upto")

    def __init__(self) -> None:
        self.path: list[Node] = []
        self.upto: list[int] = []
        self.at = 0  # the nodes before this one are held in full
        self.copying = False  # from here on its blocks are second copies


class PrefixCache:
    """The tree, and the queue of free blocks: extents of nodes, or of nothing in particular."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.root = Node(None, (0, 0), 0, 0)
        self.queue: deque[tuple[Node | None, list[int]]] = deque([(None, [0, blocks])])

    def hit(self, request: Request) -> tuple[int, int]:
        """Leading blocks of a waiting request that are in memory, and how many of them nobody holds.

        At least one token is always left to compute (kv_cache_manager.get_computed_blocks).
        """
        most = (request.target - 1) // self.block_size
        node: Node | None = self.root
        tokens = blocks = idle = 0
        for key in request.shared:
            tokens += key[1]
            child = node.children.get(key) if node else None
            if child is None:
                if tokens // self.block_size > blocks:
                    return blocks, idle
                node = None  # no block ends in it: nothing is missing yet
                continue
            blocks = min(child.top, most)
            for low, high in child.extents:
                if low < blocks:
                    idle += min(high, blocks) - low
            if blocks < child.end:
                return blocks, idle
            node = child
        own = request.own
        if own is not None:
            blocks = min(own.top, most)
            idle += blocks - own.start
        return blocks, idle

    def acquire(self, request: Request, blocks: int) -> None:
        """Hold the first `blocks` blocks of a request's text, as `hit` found them."""
        request.own, own = None, request.own
        if own is not None and blocks > own.start:
            _claim(own, blocks)
        if not request.shared:
            return
        lease = request.lease = Lease()
        node, tokens = self.root, 0
        for key in request.shared:
            tokens += key[1]
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(node, key, node.end, tokens // self.block_size)
            upto = max(child.start, min(child.end, blocks))
            if upto == child.end:
                child.full += 1
            else:
                child.part.append(upto)
            if upto > child.start:
                _claim(child, upto)
            lease.path.append(child)
            lease.upto.append(upto)
            node = child

    def extend(self, lease: Lease, before: int, after: int) -> None:
        """Blocks [before, after) of a request are filled: whoever comes next can share them."""
        while not lease.copying and before < after and lease.at < len(lease.path):
            node = lease.path[lease.at]
            if before < node.end:
                if node.top != before:
                    lease.copying = True
                    return
                node.part.remove(before)
                node.top = lease.upto[lease.at] = before = min(node.end, after)
                if before < node.end:
                    node.part.append(before)
                    return
                node.full += 1
            lease.at += 1

    def release(self, request: Request, blocks: int, full: int, again: bool) -> int:
        """Give back a request's `blocks` blocks, `full` of them filled; `again`: it will come back for them.

        Returns how many of them nobody holds any more.
        """
        lease = request.lease
        request.lease = None
        shared = sum(map(_blocks, lease.path, lease.upto)) if lease else 0
        end = lease.path[-1].end if lease else 0
        kept = again and full > end and (not lease or (not lease.copying and lease.upto[-1] == end))
        own = full - end if kept else 0
        self._append_plain(blocks - shared - own)
        freed = blocks - shared
        if own:
            request.own = Node(None, (0, 0), end, ENDLESS)
            request.own.top = full
            self._append(request.own, end, full)
        if lease:
            for node, upto in zip(reversed(lease.path), reversed(lease.upto), strict=True):
                freed += self._let_go(node, upto)
        return freed

    def take(self, blocks: int) -> None:
        """Take `blocks` blocks from the head of the queue; what they held is forgotten."""
        queue = self.queue
        while blocks > 0:
            node, extent = queue[0]
            low, high = extent
            taken = min(blocks, high - low)
            blocks -= taken
            extent[1] = high = high - taken
            if node is not None and taken:
                node.top = high
            if high == low:
                queue.popleft()
                if node is not None and taken:
                    del node.extents[0]
                    _prune(node)

    def _let_go(self, node: Node, upto: int) -> int:
        if upto == node.end:
            node.full -= 1
        else:
            node.part.remove(upto)
        still = node.end if node.full else max(node.part, default=node.start)
        if still < upto:
            self._append(node, still, upto)
            return upto - still
        _prune(node)
        return 0

    def _append(self, node: Node, low: int, high: int) -> None:
        extent = [low, high]
        node.extents.append(extent)
        self.queue.append((node, extent))

    def _append_plain(self, blocks: int) -> None:
        if blocks:
            if self.queue and self.queue[-1][0] is None:
                self.queue[-1][1][1] += blocks
            else:
                self.queue.append((None, [0, blocks]))


def _blocks(node: Node, upto: int) -> int:
    return upto - node.start


def _claim(node: Node, upto: int) -> None:
    """Take the blocks below `upto` of a node out of the free queue; emptied extents stay there, empty."""
    extents = node.extents
    while extents and extents[-1][0] < upto:
        extent = extents[-1]
        extent[0] = min(extent[1], upto)
        if extent[0] < extent[1]:
            break
        extents.pop()


def _prune(node: Node) -> None:
    """Forget nodes without blocks that nobody holds and nothing follows: memory stays flat."""
    while node.parent and node.top == node.start and not (node.children or node.full or node.part):
        del node.parent.children[node.key]
        node = node.parent
