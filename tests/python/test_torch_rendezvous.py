"""How ranks agree on a group, over a store in this process that can stop a rank between two of its calls."""
import threading
import unittest

from torch_test import PATIENCE, main  # skips where there is no PyTorch

from mkernel.errors import InvalidArgument, Unavailable
from mkernel.torch._rendezvous import Rendezvous

RANKS = (0, 1)


class Store:
    """What a rendezvous calls of a c10d store. `before` is called ahead of each set(), `after` behind each set() and check()."""

    def __init__(self, values, before=lambda keys: None, after=lambda keys, result: None):
        self._values, self._before, self._after = values, before, after

    def set(self, key, value):
        self._before([key])
        self._values[key] = value
        self._after([key], None)

    def check(self, keys):
        result = all(key in self._values for key in keys)
        self._after(keys, result)
        return result

    def multi_get(self, keys):
        return [self._values[key] for key in keys]

    def has_extended_api(self):
        return True


def attempt(rank, store, lanes, joined, number=1):
    """One init() of a rank: the name that it agreed on. `joined`: a barrier, as joining the group is one."""
    rendezvous = Rendezvous(store, Store({}), RANKS, rank, {"group": "world", "lanes": lanes}, PATIENCE, number)
    try:
        name, _ = rendezvous.agree()
        joined.wait(PATIENCE)
        return name
    finally:
        rendezvous.end()


class RendezvousTest(unittest.TestCase):
    def test_a_rank_that_fails_and_comes_again_is_not_mixed_up_with_its_first_attempt(self):
        """Rank 1 sees that rank 0 has not read the facts yet, and is then stopped. Meanwhile rank 0 reads them, fails, since lanes
        differ, and comes again with other lanes. Rank 1 once took these for the answer to its first attempt: an attempt that
        was over for rank 0 failed with the facts of the next one, and so did the next one."""
        values, names, failures, arrivals = {}, {}, [], []
        rank_1_has_looked, rank_0_is_back = threading.Event(), threading.Event()
        joined = threading.Barrier(len(RANKS))

        def read_late(keys):  # rank 0 says that it has read after rank 1 has looked
            if keys[0].startswith("read/"):
                rank_1_has_looked.wait(PATIENCE)

        def stop_after_look(keys, result):
            if result is False and keys[0].startswith("read/") and not rank_1_has_looked.is_set():
                rank_1_has_looked.set()
                rank_0_is_back.wait(PATIENCE)

        def count_arrivals(keys, _):
            if keys == ["here/0"]:
                arrivals.append(values["here/0"])
                if len(arrivals) == 3:  # it came, it left, it is back
                    rank_0_is_back.set()

        stores = (Store(values, before=read_late, after=count_arrivals), Store(values, after=stop_after_look))

        def attempt_twice(rank):
            try:
                with self.assertRaisesRegex(InvalidArgument, "lanes differs between ranks: rank 0 has 8, rank 1 has 9"):
                    attempt(rank, stores[rank], 8 + rank, joined)
                names[rank] = attempt(rank, stores[rank], 64, joined)
            except Exception as error:  # noqa: BLE001: the test says which
                failures.append(f"rank {rank}: {error}")

        threads = [threading.Thread(target=attempt_twice, args=(rank,)) for rank in RANKS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE)
        self.assertEqual(failures, [])
        self.assertTrue(rank_1_has_looked.is_set() and rank_0_is_back.is_set())
        self.assertEqual(names[0], names[1])


    def test_a_rank_that_cannot_come_ends_the_others_at_once_and_may_come_later(self):
        """Rank 1 fails before it meets the others, for example for want of a daemon. Rank 0 once waited for it until its time was
        up, which is five minutes here, and was told that rank 1 had not called init."""
        values = {}
        store = Store(values)
        Rendezvous(store, Store({}), RANKS, 1, {"group": "world"}, PATIENCE).refuse(FileNotFoundError("/nope"))
        waiting = Rendezvous(store, Store({}), RANKS, 0, {"group": "world"}, 300.0)
        with self.assertRaisesRegex(Unavailable, r"rank 1 \(global 1\) cannot come: FileNotFoundError: /nope"):
            waiting.agree()
        waiting.end()

        names, joined = {}, threading.Barrier(len(RANKS))
        ranks = [threading.Thread(target=lambda rank=rank: names.update({rank: attempt(rank, store, 64, joined, 2)})) for rank in RANKS]
        for thread in ranks:  # rank 0 is first, and finds the failure of the attempt before
            thread.start()
        for thread in ranks:
            thread.join(PATIENCE)
        self.assertEqual(len(names), 2)
        self.assertEqual(names[0], names[1])


if __name__ == "__main__":
    main()
