"""What ties one adopted kernel to the active packs: its configs, and the choice for each call."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunefarm.config import LAUNCH_OPTIONS, Config
from tunefarm.errors import MissError, SpecError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Row
from tunefarm.problem import Problem
from tunefarm.runtime.active import ACTIVE, Tally, log
from tunefarm.runtime.choice import Choice, Ties
from tunefarm.runtime.kernels import (
    Signature,
    device_at,
    is_aligned,
    may_benchmark,
    plain_config,
    problem_of,
    signature_of,
    tensor_of,
    triton_version,
    with_configs,
)
from tunefarm.runtime.lookup import Shortlist, explain, find, readable, shortlist
from tunefarm.runtime.quick import Quick, know_nothing, make_quick
from tunefarm.runtime.tracing import UNSELECTABLE, TracedRow, make_fall_back, make_prune, seen_problem, selectable
from tunefarm.source import source_hash

MAX_MEMO = 1 << 16
FAILED = "its config failed here"
BINDING = "_tunefarm_binding"
"""Attribute of an adopted kernel that holds its binding."""


@dataclass(slots=True, kw_only=True, eq=False)
class Binding:
    """One adopted kernel.

    Attributes:
        tuner: the adopted autotuner.
        stock: the autotuner as it was, untouched: it answers what no row does, and tells the tuner what was declared.
        owned: marked with `tunefarm.autotune`.
        signature: what the kernel takes.
        options_only: the host decides everything but launch options: a row is for calls that pass its params.
        quick: remembers what was launched; None where something else has a part in every launch.
        forms: functions (grid, *arguments) that launch calls of kinds that were decided before.
    """

    tuner: Any
    stock: Any
    owned: bool
    signature: Signature
    options_only: bool = False
    quick: Quick | None = None
    forms: tuple[Any, ...] = (know_nothing,)
    _ties: Ties = field(default_factory=Ties)
    _hash: str = ""
    _traceable: bool | None = None
    _bad: set[Row] = field(default_factory=set)

    @classmethod
    def of(cls, tuner: Any, *, owned: bool) -> Binding:
        """The binding of an autotuner that is about to be adopted."""
        return cls(tuner=tuner, stock=copy.copy(tuner), owned=owned, signature=signature_of(tuner))

    # What torch.compile reads of the tuner. Each read may be the first after an activation.

    @property
    def configs(self) -> Sequence[Any]:
        """Declared configs, then those of the active packs."""
        ties = self._tied()
        if self._obeys(ties):
            return ties.configs
        # torch.compile benchmarks what it is given, and our own kernels never are.
        declared: Sequence[Any] = self.stock.configs
        return declared[:1] if self.owned else declared

    @property
    def prune(self) -> Any:
        """The `early_config_prune` that torch.compile traces."""
        ties = self._tied()
        if not self._obeys(ties):
            return self.stock.early_config_prune
        ties.prune = ties.prune or self._make_prune(ties)
        return ties.prune

    @property
    def perf_model(self) -> Any:
        """None once packs are obeyed: over a list of one config a `top_k` below 1 would leave nothing."""
        return None if self._obeys(self._tied()) else self.stock.perf_model

    def _obeys(self, ties: Ties) -> bool:
        """Whether tracing goes our way: always, so that a pack activated later is seen, unless that costs restoring."""
        asked = self.owned or bool(ties.positions) or not self.tunes_itself
        return self._reaches_traces(ties) and (asked or not self._loses_restore)

    def redeclare(self, name: str, value: Any) -> None:
        """The user assigns another list of configs, or another prune function, to the adopted kernel."""
        setattr(self.stock, name, value)
        self._start_over()

    def _start_over(self) -> None:
        """Forgets all that was decided: no launch of before is repeated."""
        self._ties, self.quick, self.forms = Ties(), None, (know_nothing,)

    # Eager launches.

    @property
    def tunes_itself(self) -> bool:
        """Whether a call that no row answers is tuned as ever."""
        terms = ACTIVE.terms
        return not self.owned and (terms is None or terms.on_miss == "stock")

    def choose(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Choice:
        """The choice for a launch, which is counted.

        Raises:
            MissError: no row answers, and the active packs do not allow that.
        """
        choice = self._choice(args, kwargs)
        choice.tally.launches += 1
        return choice

    def config_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Config:
        """The config that a launch with these arguments would use.

        Raises:
            MissError: no row answers, and the active packs do not allow that.
            UserError: no row answers, and the kernel would benchmark its configs.
        """
        choice = self._choice(args, kwargs)
        if choice.offer is not None:
            return choice.offer.row.config
        if self.tunes_itself:
            raise UserError(
                f"what {self.signature.name} uses for a call that no row answers is known after its own tuning only",
                hint="tune this problem, or activate with on_miss='default'",
            )
        return plain_config(choice.config or self.fall_back_config(args, kwargs), self.signature)

    def _choice(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Choice:
        """The same for positional, keyword and left-out arguments."""
        # What is decided while another thread changes the packs is forgotten with those it was decided by.
        ties = self._tied()
        values = {**ties.defaults, **dict(zip(self.signature.arguments, args, strict=False)), **kwargs}
        key: list[Any] = [values.get(name) for name in ties.dims]
        key += [type(value) for value in key]  # 512 == 512.0, and True == 1: equal keys, other calls
        index = None
        for name in ties.tensors:
            value = values.get(name)
            tensor = tensor_of(value)
            if tensor is None:
                key.append(value is None)
            else:
                index = tensor.device.index
                key.append((tensor.dtype, is_aligned(value), index))
        try:
            choice = ties.memo.get(tuple(key))
        except TypeError:  # a list, say: no row is for it, and whether the kernel takes it is Triton's to say
            return self._decide(ties, values, index)
        if choice is None:
            choice = self._decide(ties, values, index)
            choice.generation = ties.generation
            if len(ties.memo) >= MAX_MEMO:
                ties.memo.clear()
            ties.memo[tuple(key)] = choice
        return choice

    def keep(self, choice: Choice, launched: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Remembers a launch that went well, so that its like are launched quickly.

        Args:
            choice: by which it was made.
            launched: what Triton returned.
            args: of the launch.
            kwargs: of the launch, `grid` and `warmup` among them.
        """
        quick = self.quick
        if quick is None or quick.generation != choice.generation or choice.config is None or choice.index is None:
            return
        if kwargs.get("warmup") or not (choice.proven or choice.offer is None):
            return
        if self._bad and choice.offer is not None and choice.offer.row in self._bad:
            return  # It went well here, and failed in another thread.
        values = {**dict(zip(self.signature.arguments, args, strict=False)), **kwargs}
        values.pop("grid", None), values.pop("warmup", None)
        quick.keep(values, choice.config, launched, choice.tally, choice.index)
        self.forms = quick.forms

    def tunes(self, choice: Choice) -> bool:
        """Whether a call that no row answers is tuned as ever, now."""
        return self.tunes_itself and not (choice.known and not may_benchmark())

    def fall_back_config(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The config for a call that no row answers, of a kernel that does not tune itself."""
        named = dict(zip(self.signature.arguments, args, strict=False))
        return self._fall_back(only_first=True)(self.stock.configs, named, **kwargs)[0]

    def condemn(self, choice: Choice, error: Exception) -> None:
        """Never uses a choice's row again in this process: its config cannot be launched here.

        Raises:
            MissError: the active packs do not allow a call without a row.
        """
        assert choice.offer is not None
        self._bad.add(row := choice.offer.row)
        self._start_over()
        log.error(
            "%s: the config of the row %s (%s) failed here, %s from now on: %s: %s",
            self.signature.name, row.match.label, row.config,
            "its calls are errors" if ACTIVE.is_strict else "the default is used", error.__class__.__name__, error,
        )  # fmt: skip
        choice.tally.launches -= 1
        self._miss(choice.problem, Shortlist(), FAILED).launches += 1

    def _decide(self, ties: Ties, values: Mapping[str, Any], index: int | None) -> Choice:
        problem = problem_of(values, ties.dims, ties.tensors)
        listed = self._listed(ties, index)
        offer = find(listed.offers, problem, self.signature.specialised)
        if offer is not None and offer.row not in self._bad:
            tally = ACTIVE.hits.setdefault((self.signature.name, offer), Tally())
            return Choice(ties.configs[ties.positions[offer.row.config]], offer, tally, problem, index)
        tally = self._miss(problem, listed, FAILED if offer is not None else "")
        plain = self.stock.early_config_prune is None and not self.tunes_itself
        return Choice(self.stock.configs[0] if plain else None, None, tally, problem, index, known=bool(listed.offers))

    def _miss(self, problem: Problem, listed: Shortlist, reason: str) -> Tally:
        if ACTIVE.terms is None:
            return Tally()
        reason = reason or explain(listed.offers, listed.refused, problem, self.signature.specialised)
        if ACTIVE.is_strict:
            raise MissError(
                f"no row of the active packs answers {self.signature.name} with {problem.key}\n{reason}\n",
                hint="tune this problem, or activate without strict and on_miss='error'",
            )
        return ACTIVE.miss(self.signature.name, problem, reason)

    def _listed(self, ties: Ties, index: int | None) -> Shortlist:
        """The rows for a device; what is wrong with other tables is said once."""
        if index not in ties.lists:
            device = device_at(index)
            if device is None:
                return Shortlist(refused=("the call holds no tensor on a GPU",) if ACTIVE.activations else ())
            name = self.signature.name
            found = shortlist(ACTIVE.activations, name, self._hash, device, triton_version())
            usable = tuple(
                replace(offer, row=self._asked(offer.row))
                for offer in found.offers
                if offer.row.config in ties.positions
            )
            for message in (*found.notes, *found.refused):
                ACTIVE.warn_once(message)
            ACTIVE.refused[name] = found.refused
            ties.lists[index] = Shortlist(offers=usable, refused=found.refused, notes=found.notes)
        return ties.lists[index]

    def _asked(self, row: Row) -> Row:
        """A row as calls are compared with it."""
        if not self.options_only:
            return row
        return replace(row, match=replace(row.match, dims=FrozenMap({**row.match.dims, **row.config.params})))

    # Tying to the packs.

    @property
    def has_rows(self) -> bool:
        """Whether an active pack has a row for this source of the kernel, on whatever device."""
        return bool(self._tied().positions)

    def _tied(self) -> Ties:
        """What ties it to the packs that are active now."""
        ties = self._ties
        return ties if ties.generation == ACTIVE.generation else self._tie()

    def _tie(self) -> Ties:
        name, generation = self.signature.name, ACTIVE.generation
        tables = [
            table
            for activation in ACTIVE.activations
            for table in activation.pack.tables
            if table.kernel == name and table.layer == 1
        ]
        ACTIVE.asked.update((table.kernel, table.digest) for table in tables)
        self._hash = self._hash or (self._source_hash() if tables else "")
        rows = [row for table in tables if table.source_hash == self._hash for row in readable(table)[0]]
        # Rows of other sources are of no use, but what they ask about is needed to say what a call missed.
        asking = rows or [row for table in tables for row in readable(table)[0]]
        dims = tuple(dict.fromkeys(dim for row in asking for dim in self._asked(row).match.dims))
        absent = [arg for row in asking for arg, fact in row.match.facts.items() if fact == "none"]
        tensors = tuple(dict.fromkeys([*(arg for row in asking for arg in row.match.dtypes), *absent]))
        configs, positions = with_configs(self.stock.configs, [row.config for row in rows], self.signature)
        self.quick = make_quick(self.tuner, self.signature, dims, generation)
        self._ties = ties = Ties(
            generation=generation, dims=dims, tensors=tensors, configs=configs, positions=positions,
            defaults={k: v for k, v in self.signature.defaults.items() if k in {*dims, *tensors}},
        )  # fmt: skip
        return ties

    def _source_hash(self) -> str:
        try:
            return source_hash(self.stock)
        except SpecError as e:
            ACTIVE.warn_once(f"{self.signature.name}: no pack can be used: {e}")
            return "unknown"

    # What a trace asks.

    def _reaches_traces(self, ties: Ties) -> bool:
        """Whether torch.compile can be told a config; a process without torch launches without being asked that."""
        if self._traceable is None and "torch" in sys.modules:
            self._traceable = selectable(self.stock)
        if self._traceable is False and ties.positions:
            ACTIVE.warn_once(f"{self.signature.name}: in torch.compile its packs are not used: {UNSELECTABLE}")
        return bool(self._traceable)

    def _make_prune(self, ties: Ties) -> Any:
        bound = functools.partial
        return make_prune(
            generation=str(ties.generation), tensors=ties.tensors, defaults=ties.defaults,
            offered=bound(self._offered, ties), chosen=bound(self._chosen, ties), missed=bound(self._missed, ties),
            fall_back=self._fall_back(only_first=not self.tunes_itself or self._loses_restore),
        )  # fmt: skip

    @property
    def _loses_restore(self) -> bool:
        # torch.compile drops restore_value and reset_to_zero of any autotuner that prunes, and would then benchmark
        # several configs on live data.
        stock = self.stock
        prunes = stock.early_config_prune is not None or stock.perf_model is not None
        return not prunes and bool(stock.restore_value or stock.reset_to_zero)

    def _fall_back(self, *, only_first: bool) -> Any:
        stock = self.stock
        return make_fall_back(
            early_config_prune=stock.early_config_prune, perf_model=stock.perf_model, top_k=stock.configs_top_k,
            only_first=only_first,
        )  # fmt: skip

    def _offered(
        self, ties: Ties, index: int | None, seen: tuple[Any, ...], passed: tuple[str, ...]
    ) -> tuple[int, Any]:
        traced: list[TracedRow] = []
        problem = seen_problem(seen)
        absent = {name for name, fact in problem.facts.items() if fact == "none"}
        for number, offer in enumerate(self._listed(ties, index).offers):
            match = offer.row.match
            if match.dtypes != problem.dtypes or absent != {k for k, v in match.facts.items() if v == "none"}:
                continue
            if any(name not in passed for name in match.dims):
                continue
            ranges = tuple((name, *value) for name, value in match.dims.items() if isinstance(value, tuple))
            facts = tuple(
                (name, match.facts.get(name, "")) for name, *_ in ranges if name in self.signature.specialised
            )
            exact = tuple((name, value) for name, value in match.dims.items() if not isinstance(value, tuple))
            usable = offer.row not in self._bad and not self._eager_only(offer.row.config)
            traced.append((number, ties.positions[offer.row.config] if usable else -1, facts, exact, ranges))
        return len(self.stock.configs), tuple(traced)

    def _eager_only(self, config: Config) -> bool:
        extra = sorted(config.options.keys() - set(LAUNCH_OPTIONS))
        if extra:
            ACTIVE.warn_once(
                f"{self.signature.name}: {config} is used in eager launches only: torch.compile takes "
                f"{', '.join(extra)} for an argument of the kernel"
            )
        return bool(extra)

    def _chosen(self, ties: Ties, index: int | None, number: int) -> None:
        offer = self._listed(ties, index).offers[number]
        ACTIVE.hits.setdefault((self.signature.name, offer), Tally()).graphs += 1

    def _missed(self, ties: Ties, index: int | None, seen: tuple[Any, ...]) -> bool:
        listed = self._listed(ties, index)
        self._miss(seen_problem(seen), listed, "").graphs += 1
        return bool(listed.offers) and not may_benchmark()
