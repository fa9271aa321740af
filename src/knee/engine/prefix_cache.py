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

from knee.engine.request import Segments

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
    """The nodes that a running request holds, and up to which block.

    Requests that hold the whole of the same text share a lease.
    """

    __slots__ = ("at", "blocks", "copying", "end", "holders", "path", "text", "tokens", "upto")

    def __init__(self, text: Segments) -> None:
        self.text = text
        self.holders = 1
        self.path: list[Node] = []
        self.upto: list[int] = []
        self.at = 0  # the nodes before this one are held in full
        self.blocks = 0  # blocks in all
        self.end = 0  # blocks that the text has
        self.tokens = 0  # tokens of those, once it holds them all
        self.copying = False  # from here on its blocks are second copies


class PrefixCache:
    """The tree, and the queue of free blocks: extents of nodes, or of nothing in particular."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.root = Node(None, (0, 0), 0, 0)
        self.queue: deque[tuple[Node | None, list[int]]] = deque([(None, [0, blocks])])
        self.loose = 0  # blocks without text, given back behind all in the queue
        self.owed = 0  # blocks taken from the head of the queue, as soon as somebody asks what is in it
        self.nothing = Lease(())  # what those hold who share no text; nobody counts them
        self.nothing.holders = ENDLESS
        self.absent = Lease(())  # in place of a text that is not
        self.absent.tokens = ENDLESS
        self.whole: dict[Segments, Lease] = {(): self.nothing}  # of texts held in full

    def hit(self, shared: Segments, own: Node | None, most: int) -> tuple[int, int]:
        """Leading blocks of a text that are in memory, `most` of them at most, and how many nobody holds.

        The text opens with the segments `shared`; `own` is what its request left when it was preempted.
        """
        lease = self.whole.get(shared)
        whole = lease is not None and lease.blocks <= most
        if lease is not None and whole and own is None:
            return lease.blocks, 0
        if self.owed:
            self._pay()
        if whole and own is not None:
            blocks = min(own.top, most)
            return blocks, blocks - own.start
        node: Node | None = self.root
        tokens = blocks = idle = 0
        for key in shared:
            tokens += key[1]
            child = node.children.get(key) if node else None
            if child is None:
                if tokens // self.block_size > blocks:
                    return blocks, idle
                node = None  # no block ends in it: nothing is missing yet
                continue
            blocks = min(most, child.top)
            idle += sum(min(high, blocks) - low for low, high in child.extents if low < blocks)
            if blocks < child.end:
                return blocks, idle
            node = child
        if own is not None:
            blocks = min(own.top, most)
            idle += blocks - own.start
        return blocks, idle

    def acquire(self, shared: Segments, own: Node | None, blocks: int) -> Lease:
        """Hold the first `blocks` blocks of a text, as `hit` found them."""
        if own is not None and blocks > own.start:
            _claim(own, blocks)
        lease = self.whole.get(shared)
        if lease is not None and lease.blocks <= blocks:
            lease.holders += 1
            return lease
        lease = Lease(shared)
        node, tokens = self.root, 0
        for key in shared:
            tokens += key[1]
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(node, key, node.end, tokens // self.block_size)
            upto = max(child.start, min(child.end, blocks))
            if upto == child.end:
                child.full += 1
            else:
                child.part.append(upto)
            if child.extents and upto > child.start:
                _claim(child, upto)
            lease.path.append(child)
            lease.upto.append(upto)
            node = child
        lease.end, lease.blocks = node.end, min(blocks, node.end)
        if blocks >= node.end:
            self._complete(lease)
        return lease

    def extend(self, lease: Lease, before: int, after: int) -> None:
        """Blocks [before, after) of a request are filled: whoever comes next can share them."""
        if lease.copying or before >= after or lease.at == len(lease.path):
            return
        if self.owed:
            self._pay()
        while before < after and lease.at < len(lease.path):
            node = lease.path[lease.at]
            if before < node.end:
                if node.top != before:
                    lease.copying = True
                    return
                node.part.remove(before)
                node.top = lease.upto[lease.at] = lease.blocks = before = min(node.end, after)
                if before < node.end:
                    node.part.append(before)
                    return
                node.full += 1
            lease.at += 1
        if lease.at == len(lease.path):
            self._complete(lease)

    def release(self, lease: Lease, blocks: int, full: int, again: bool = False) -> tuple[int, Node | None]:
        """Give back a request's `blocks` blocks, `full` of them filled.

        Returns how many of them nobody holds any more, and what it can come back for if it comes `again`.
        """
        own, left = None, full - lease.end if again and lease.blocks == lease.end else 0
        freed = blocks - lease.blocks
        if left > 0:
            own = Node(None, (0, 0), lease.end, ENDLESS)
            own.top = full
            self.loose += freed - left
            self._append(own, lease.end, full)
        else:
            self.loose += freed
        lease.holders -= 1
        if not lease.holders:
            if self.whole.get(lease.text) is lease:
                del self.whole[lease.text]
            for node, upto in zip(reversed(lease.path), reversed(lease.upto), strict=True):
                freed += self._let_go(node, upto)
        return freed, own

    def take(self, blocks: int) -> None:
        """Take `blocks` blocks from the head of the queue; what they held is forgotten."""
        self.owed += blocks

    def _complete(self, lease: Lease) -> None:
        lease.at, lease.tokens = len(lease.path), lease.end * self.block_size
        self.whole.setdefault(lease.text, lease)

    def _pay(self) -> None:
        queue, blocks = self.queue, self.owed
        self.owed = 0
        while blocks > 0:
            if not queue:
                self._line_up()
            node, extent = queue[0]
            low, high = extent
            if high - low > blocks:
                extent[1] = high = high - blocks
                if node is not None:
                    node.top = high
                return
            queue.popleft()
            blocks -= high - low
            if node is not None and low < high:
                node.top = low
                del node.extents[0]
                if node.parent is not None:
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
        self._line_up()
        extent = [low, high]
        node.extents.append(extent)
        self.queue.append((node, extent))

    def _line_up(self) -> None:
        """Let blocks without text join the queue."""
        if self.loose:
            if self.queue and self.queue[-1][0] is None:
                self.queue[-1][1][1] += self.loose
            else:
                self.queue.append((None, [0, self.loose]))
            self.loose = 0


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
