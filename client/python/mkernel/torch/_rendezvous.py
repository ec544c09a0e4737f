"""How the ranks of a c10d process group agree on a group of mkernel: a name and a secret, through the process group's store.

The store and not a collective, because the store knows who has come: a wait for it is bounded, and says who is missing."""

import hashlib
import json
import os
import time
from typing import Any, Optional, Sequence

from mkernel.errors import DeadlineExceeded, Error, InvalidArgument, Unavailable

POLL_SECONDS = 0.02
LOOK_SECONDS = 0.5  # between two looks at what missing ranks do instead


class Rendezvous:
    """One rank's part. `store`: of the process group; `world`: of all processes. `attempt`: how often this rank has tried, this time
    included; ranks that make the same calls count alike.

    Keys of `store`: here/RANK says that a rank has come, and with which facts; failed/RANK that it could not come, to which attempt,
    and why; read/DIGEST/RANK that it has read the facts of all; offer/DIGEST holds what rank 0 chose. DIGEST is of the nonces of all ranks: what earlier attempts left behind fits no later one.
    Keys of `world`: now/RANK says for which process group that process waits."""

    def __init__(self, store: Any, world: Any, ranks: "Sequence[int]", rank: int, facts: "dict[str, Any]", timeout: float,
                 attempt: int = 1) -> None:
        self._store, self._world = store, world
        self._ranks, self._rank = list(ranks), rank
        self._nonce = os.urandom(8).hex()
        self._facts = {**facts, "ranks": self._ranks, "nonce": self._nonce, "attempt": attempt}
        self.attempt = attempt  #: after agree() the largest of all ranks
        self._end = time.monotonic() + timeout
        self._timeout = timeout
        self._offer = ""
        self._last_word = ""
        self._seen: "set[int]" = set()  # who was here at some time

    def agree(self) -> "tuple[str, bytes]":
        """(name, secret). Errors: DeadlineExceeded (who is missing), InvalidArgument (facts that differ, or a rank that waits for
        another process group), Unavailable (the store, or a rank that cannot come)."""
        try:
            self._announce()
            return self._agree()
        except (RuntimeError, OSError) as error:
            if isinstance(error, Error):
                raise
            raise Unavailable(f"init: the store of the process group does not answer: {error}") from error

    def refuse(self, why: BaseException) -> None:
        """Instead of agree(): this rank cannot come, and the ranks that wait for it in this attempt end with the reason."""
        try:
            self._store.set(f"failed/{self._rank}", json.dumps({"text": f"{type(why).__name__}: {why}", "attempt": self.attempt}))
        except (RuntimeError, OSError):
            pass  # the store does not answer: the others find out as this rank did

    def end(self) -> None:
        """When every rank has joined, or this one has given up."""
        try:
            self._store.set(f"here/{self._rank}", "")
            self._world.set(f"now/{self._me}", self._last_word)
            if self._rank == 0 and self._offer:
                self._store.set(self._offer, "")
        except (RuntimeError, OSError):
            pass  # the store is gone, and with it the keys

    def _announce(self) -> None:
        self._store.set(f"here/{self._rank}", json.dumps(self._facts))
        self._world.set(f"now/{self._me}", json.dumps(self._facts))

    @property
    def _me(self) -> int:
        return int(self._ranks[self._rank])

    def _agree(self) -> "tuple[str, bytes]":
        everyone, digest = self._wait_for_all()
        # From here on no rank can miss this one, so nobody looks at what it does.
        self._world.set(f"now/{self._me}", "")
        self.attempt = max(int(facts["attempt"]) for facts in everyone)
        self._compare(everyone)
        self._offer = f"offer/{digest}"
        if self._rank == 0:
            offer = {"name": f"torch-{digest[:16]}", "secret": os.urandom(32).hex()}
            self._store.set(self._offer, json.dumps(offer))
        while True:
            (found,) = self._read(self._store, [self._offer])
            if found is not None:
                return found["name"], bytes.fromhex(found["secret"])
            self._sleep_until([0], "rank 0 has made no offer")

    def _wait_for_all(self) -> "tuple[list[dict[str, Any]], str]":
        """The facts of all ranks and their digest, once every rank has read the same ones: only then are all of them here now."""
        everyone: "list[dict[str, Any]]" = []
        digest, look = "", time.monotonic() + LOOK_SECONDS
        while True:
            found = self._read(self._store, [f"here/{rank}" for rank in range(len(self._ranks))])
            # After the facts: a rank that has all of them may leave and come again with others, but not before every rank has read
            # the old ones. So if these facts are new ones of a rank that has agreed, the check finds that this rank may, too.
            if digest and self._store.check([f"read/{digest}/{rank}" for rank in range(len(self._ranks))]):
                return everyone, digest
            if None not in found:
                everyone = [facts for facts in found if facts is not None]
                before, digest = digest, hashlib.sha256("".join(facts["nonce"] for facts in everyone).encode()).hexdigest()
                if digest != before:
                    self._check_failures()  # of ranks that are back already
                    self._store.set(f"read/{digest}/{self._rank}", "")
            if time.monotonic() > min(look, self._end):
                look = time.monotonic() + LOOK_SECONDS
                self._check_failures()
                missing = self._missing(digest)
                for rank in missing:
                    self._look_at(rank)
                self._sleep_until(missing, "they have not called init for it")
            time.sleep(POLL_SECONDS)

    def _check_failures(self) -> None:
        """Raises when some rank could not come to this attempt, also when it is back for the next one."""
        for rank, failure in enumerate(self._read(self._store, [f"failed/{rank}"])[0] for rank in range(len(self._ranks))):
            if failure is not None and failure["attempt"] >= self.attempt:
                raise Unavailable(
                    f"init of process group '{self._facts['group']}' of ranks {self._ranks}: rank {rank} (global {self._ranks[rank]}) "
                    f"cannot come: {failure['text']}"
                )

    def _missing(self, digest: str) -> "list[int]":
        ranks = range(len(self._ranks))
        missing = [rank for rank in ranks if self._read(self._store, [f"here/{rank}"]) == [None]]
        self._seen.update(set(ranks) - set(missing))
        return missing or [rank for rank in ranks if not self._store.check([f"read/{digest}/{rank}"])]

    def _sleep_until(self, missing: "list[int]", why: str) -> None:
        if time.monotonic() > self._end:
            never, gone = (
                ", ".join(f"{rank} (global {self._ranks[rank]})" for rank in missing if (rank in self._seen) == seen)
                for seen in (False, True)
            )
            texts = [f"missing: rank {never}; {why}"] if never else []
            texts += [f"came and gave up: rank {gone}"] if gone else []
            raise DeadlineExceeded(
                f"init of process group '{self._facts['group']}' of ranks {self._ranks}: not within {self._timeout:g} s, "
                f"{'; '.join(texts)}"
            )
        time.sleep(POLL_SECONDS)

    def _look_at(self, rank: int) -> None:
        """Raises when a missing rank waits for this one in another process group: neither would ever come."""
        (other,) = self._read(self._world, [f"now/{self._ranks[rank]}"])
        if other is None or other["nonce"] == self._nonce:
            return
        mine, theirs = self._described(self._facts), self._described(other)
        ended = other.get("against")  # it waits no more: for whom its last words are
        if ended == self._nonce or (ended is None and self._me in other["ranks"] and theirs != mine):
            # So that the other rank hears of it even if it looks after this one has gone.
            self._last_word = json.dumps({**self._facts, "against": other["nonce"]})
            raise InvalidArgument(
                f"init: the process groups differ between ranks: global rank {self._me} calls it for {mine}, global rank "
                f"{self._ranks[rank]} for {theirs}; call it for the same groups in the same order on every rank"
            )

    @staticmethod
    def _read(store: Any, keys: "list[str]") -> "list[Optional[dict[str, Any]]]":
        """None for what is not there. Keys are never deleted, but emptied: get() of a deleted one would wait."""
        if not store.check(keys):
            return [None] * len(keys)
        texts = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
        return [json.loads(text) if text else None for text in texts]

    @staticmethod
    def _described(facts: "dict[str, Any]") -> str:
        return f"process group '{facts['group']}' of ranks {facts['ranks']}"

    def _compare(self, everyone: "list[dict[str, Any]]") -> None:
        for rank, facts in enumerate(everyone):
            for field, value in everyone[0].items():
                if field not in ("nonce", "attempt") and facts.get(field) != value:
                    raise InvalidArgument(
                        f"init of process group '{self._facts['group']}': {field} differs between ranks: rank 0 has {value!r}, "
                        f"rank {rank} has {facts.get(field)!r}"
                    )
