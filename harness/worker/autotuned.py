"""Autotuned kernels where nothing can be timed: one configuration is taken, and it is said which."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError


@dataclass(slots=True)
class Chosen:
    """The configuration that stands for an autotuned kernel."""

    kernel: str
    index: int
    """Among the kernel's configurations as written."""
    configs: int
    config: str
    tried: int
    """Configurations compiled to find one that fits."""


@contextlib.contextmanager
def first_that_fits(given: Mapping[str, int] | None = None) -> Iterator[list[Chosen]]:
    """While inside, an autotuned kernel runs the first configuration, in order, that the device has room for.

    `given` names the configuration by kernel, where it is already known. Yields what was chosen, filled as
    kernels run.
    """
    chosen: dict[tuple[int, str], Chosen] = {}
    record: list[Chosen] = []
    plain = Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        name = self.base_fn.__name__
        configs = list(self.configs)
        usable = self.prune_configs(kwargs) if len(configs) > 1 else configs
        order = [configs.index(each) for each in usable]
        known = given.get(name) if given else None
        if known is not None and 0 <= known < len(configs):
            order = [known]
        key = (id(self), str([getattr(a, "dtype", a if isinstance(a, int) else None) for a in args]))
        if (before := chosen.get(key)) is not None:
            order = [before.index]
        refused: Exception | None = None
        for tried, index in enumerate(order, 1):
            config = configs[index]
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
            try:
                result = self.fn.run(*args, **kwargs, **config.all_kwargs())
            except (OutOfResources, CompileTimeAssertionFailure, PTXASError) as error:
                refused = error
                continue
            if key not in chosen:
                chosen[key] = Chosen(name, index, len(configs), str(config), tried)
                record.append(chosen[key])
            self.best_config = config
            return result
        assert refused is not None
        raise refused

    Autotuner.run = run
    try:
        yield record
    finally:
        Autotuner.run = plain
