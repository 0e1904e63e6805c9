"""A block of clients as its members know themselves: batches, memory, randomness, loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.core import rng
from fedkin.core.batches import Batch, Draws, Ints, Passes, batches_per_pass, gather
from fedkin.core.kernels import Kernel
from fedkin.core.memory import Memory
from fedkin.core.problem import Problem
from fedkin.core.repetition import as_state, repeat
from fedkin.core.replies import finite_rows

# what a block of clients has of every one of them
OWN_ROWS = ("who", "_keys", "_sizes", "_starts", "_position", "gradients", "samples", "_home")
CHANGING = ("_position", "gradients", "samples", "_home")
# what clients remember of their own norms, where these stay at home
HOME = "own_norms"


class Members:
    """Clients of one problem, a row each, without what their models compute."""

    def __init__(
        self, problem: Problem, kernel: Kernel, who: Tensor, keys: rng.Bits, memory: Memory,
        lr: Any = None,
    ) -> None:  # fmt: skip
        self.problem, self.kernel, self.who, self._memory = problem, kernel, who, memory
        self._keys, self._lr = keys, lr
        self._sizes: Ints = problem.train.sizes[who].numpy()
        self._starts: Ints = problem.train.starts[who].numpy()
        self._chooser = self._batches()
        self._position: Ints = np.zeros(len(who), np.int64)
        self._expected = 1  # batches that the step now at work is likely to ask for
        # 0 for rows that are done while others are not; None when there are none
        self.active: Ints | None = None
        self._drawn: dict[str, int] = {}
        self._kept: dict[str, Tensor] = {}
        self.gradients: Ints = np.zeros(len(who), np.int64)
        self.samples: Ints = np.zeros(len(who), np.int64)
        # parameters that stay at home, and the last batch that they learnt from
        self._home: Tensor = self.recall(HOME, problem.initial_home_of(who))
        self._learnt: Batch | None = None

    # what a client knows of itself -------------------------------------------------

    def __len__(self) -> int:
        return self.who.shape[0]

    @property
    def n(self) -> Tensor:
        """Training examples, a column."""
        return torch.from_numpy(self._sizes).to(self.problem.device)[:, None]

    @property
    def classes(self) -> Tensor:
        """Which classes the client has, 1 or 0 for each; known where a loss is of them alone."""
        return self.problem.train.y[torch.from_numpy(self._starts), 1:].to(self.problem.dtype)

    @property
    def initial(self) -> Tensor:
        """The model every client starts from."""
        return self.problem.initial_of(self.who)

    def steps(self, local_steps: Any = None, local_epochs: Any = None) -> Any:
        """How many steps the given local work means: a number, or a column where clients differ."""
        if local_epochs is None:
            return local_steps
        per_pass = batches_per_pass(self._sizes, self.problem.batch_size)
        if not isinstance(local_epochs, Tensor) and (per_pass == per_pass[0]).all():
            return int(per_pass[0]) * local_epochs
        column = torch.from_numpy(per_pass)[:, None]
        return column.to(self.problem.device, self.problem.dtype) * local_epochs

    def repeat(
        self,
        times: Any,
        update: Callable[..., Any],
        *state: Tensor,
        given: Mapping[str, Any] | None = None,
    ) -> Any:
        """Apply `state = update(*state)` `times` times; rows that are done stay as they are.

        `times` is a number or a column. With one state tensor the result is that
        tensor, otherwise a tuple. An update that gets all it needs, besides its state, by the
        names in `given` (of rows, it may look at no others) is spared rows that are done.
        """
        if isinstance(times, Tensor):
            turns = times.reshape(-1).expand(len(self)).long().numpy(force=True)
            self._expected = max(1, int(turns.max(initial=1)))
            state = repeat(self, turns, update, state, given)
        else:
            self._expected = max(1, int(times))
            for _ in range(int(times)):
                state = as_state(update(*state, **(given or {})))
        return state[0] if len(state) == 1 else state

    @contextmanager
    def only(self, rows: Ints) -> Iterator[None]:
        """Be these rows alone for a while; what they count is counted."""
        whole = {name: getattr(self, name) for name in OWN_ROWS}
        vars(self).update({name: value[rows] for name, value in whole.items()})
        chooser, self._chooser = self._chooser, self._batches()
        yield
        whole["_home"] = whole["_home"].clone()
        for name in CHANGING:
            whole[name][rows] = getattr(self, name)
        vars(self).update(whole)
        self._chooser = chooser

    def _batches(self) -> Draws | Passes:
        keys, problem = rng.key(self._keys, "batch"), self.problem
        if problem.reshuffle:
            return Passes(keys, self._sizes, problem.batch_size)
        x, y = problem.train.x, problem.train.y
        return Draws(keys, self._starts, self._sizes, problem.batch_size, x, y)

    # batches -----------------------------------------------------------------------

    def next_batch(self) -> Batch:
        """The client's next minibatch."""
        position = self._position
        if self.active is not None:  # what rows that are done would see is thrown away
            position = np.where(self.active, position, position.max())
        noise = rng.key(self._keys, "noise", position) if self.problem.spec.random else None
        self._position = self._position + (1 if self.active is None else self.active)
        if isinstance(self._chooser, Draws):
            x, y = self._chooser.at(position, self._expected)
            return Batch(self._augmented(x, position), y, None, x.shape[1], noise)
        rows, real = self._chooser.at(position)
        alone = len(self) == 1
        if alone:  # a client alone needs no padding
            rows = self._enough(rows[:, real[0] > 0])
        rows = rows + self._starts[:, None]
        if alone or real.all():
            return self._batch(rows, position, None, None, noise)
        sizes: Ints = real.sum(1)
        w = torch.from_numpy(real / sizes[:, None]).to(self.problem.device, self.problem.dtype)
        rows = np.minimum(rows, len(self.problem.train.y) - 1)
        return self._batch(rows, position, w, sizes, noise)

    def _batch(
        self, places: Ints, position: Ints, w: Tensor | None, sizes: Ints | None,
        noise: rng.Bits | None,
    ) -> Batch:  # fmt: skip
        """The examples at these places [B, batch]."""
        part = self.problem.train
        x = self._augmented(gather(part.x, places), position)
        return Batch(
            x, gather(part.y, places), w, places.shape[1] if sizes is None else sizes, noise
        )

    def _enough(self, rows: Ints) -> Ints:
        """A pass's last batch, joined by the client's first samples where it is too small for
        batch norm."""
        missing = self.problem.manners.least - rows.shape[1]
        return rows if missing <= 0 else np.append(rows, [[int(rows[0, 0] == 0)]], 1)

    def _augmented(self, x: Tensor, position: Ints) -> Tensor:
        augment = self.problem.augment
        if augment is None:
            return x
        return augment(x, rng.key(self._keys, "augment"), position, self.problem.batch_size)

    # memory and randomness ---------------------------------------------------------

    def recall(self, name: str, default: Tensor) -> Tensor:
        """What was kept under this name in an earlier round, or the default."""
        return (
            self._kept[name] if name in self._kept else self._memory.read(name, self.who, default)
        )

    def keep(self, **tensors: Tensor) -> None:
        """Remember tensors until the next round; nothing is kept of an answer gone wrong."""
        for name, rows in tensors.items():
            self._kept[name] = rows.expand(len(self), *rows.shape[1:])

    def uniform(self, purpose: str, count: int = 1) -> Tensor:
        """Random numbers in [0, 1): [B, count], fresh ones at every call."""
        start = self._drawn.get(purpose, 0)
        self._drawn[purpose] = start + count
        words = rng.bits(rng.key(self._keys, purpose), rng.positions(start, count))
        digits = 24 if self.problem.dtype == torch.float32 else 53
        numbers = torch.from_numpy(rng.uniform(words, digits))
        return numbers.to(self.problem.device, self.problem.dtype)

    def finish(self, reply: dict[str, Tensor], remember: bool) -> tuple[dict[str, Tensor], Tensor]:
        """End of a step: its reply with a row per client, and which rows are finite throughout.

        Only of those is anything kept, and only if the request is one to remember.
        """
        rows = {name: value.expand(len(self), *value.shape[1:]) for name, value in reply.items()}
        if self._learnt is not None:
            self.keep(**{HOME: self._home})
        good = finite_rows([*rows.values(), *self._kept.values()], len(self))
        for name, value in self._kept.items() if remember and bool(good.any()) else ():
            if bool(good.all()):
                self._memory.write(name, self.who, value)
            else:
                self._memory.write(name, self.who[good], value[good.to(value.device)])
        return rows, good

    # ---------------------------------------------------------------------------------

    def _rows(self, v: Tensor) -> Tensor:
        return v if v.shape[0] == len(self) else v.expand(len(self), v.shape[-1])

    def _count(self, gradients: int, samples: int | Ints) -> None:
        if self.active is None:
            self.gradients += gradients
            self.samples += samples
        else:
            self.gradients += gradients * self.active
            self.samples += samples * self.active
