"""Which collective operation ranks do not agree on, by what torch has recorded of each. Pure.

torch's flight recorder numbers the collectives of each process group: the ranks of a group must all
call the same ones in the same order. What is compared is numbers, names, sizes and types. Whether
an operation is over NCCL says as its state; gloo only retires it, also when it has failed.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from lllaunch.text import printable, spans
from lllaunch.watchdog.evidence import (
    DEFAULT,
    MOST_PARTIES,
    Call,
    Disagreement,
    GroupTrace,
    Kind,
    Party,
    RankTrace,
    Waits,
)

_NAME = 60
_MOST_TENSORS = 16
_MOST_PLACES = 2
_SHOWN_TENSORS = 3
# A straggler comes last to so many of at least so many operations, and that takes such a part of
# the time.
_NEARLY_ALL, _FEW_CALLS, _MUCH = 0.8, 4, 0.2
MOST_TOLD = 128
"""Calls of a rank that are kept, and that others get: ranks that do not agree are not far apart."""

# torch's names of types, as C++ has them, where they are not Python's in capitals.
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
# Operations in which ranks may differ in sizes and types, by parts of their names.
_UNEQUAL = ("all_to_all", "alltoall", "gather", "scatter", "coalesced", "barrier", "send", "recv")
# Of these they may not, though a part of their name says so.
_EQUAL = frozenset({"all_gather", "_all_gather_base", "_reduce_scatter_base"})
_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "rccl")


# Reading


def read_trace(data: bytes, rank: int, *, ended: bool = False) -> RankTrace | None:
    """Read what torch tells of a rank's collectives.

    ``data``: JSON of ``{"groups": {name: ranks}, "handled": text, "traces": [...]}``, each trace
    one of the flight recorder's (versions 2.1 to 2.10 have what is needed here). ``ended``: whether
    the rank was about to end: what is retired may have failed. Returns None if nothing is known of
    it.
    """
    try:
        told = msgspec.json.decode(data, type=_Document)
    except (ValueError, RecursionError):
        return None
    # One without entries is of a rank that has called nothing yet.
    if not any(trace.version for trace in told.traces):
        return None
    members: dict[str, tuple[int, ...]] = {}
    calls: dict[str, list[Call]] = defaultdict(list)
    descriptions: dict[str, str] = {"0": DEFAULT}
    kept: set[str] = set()  # groups whose backend knows what is over
    for name, config in (each for trace in told.traces for each in trace.pg_config.items()):
        members[name] = tuple(sorted(map(int, re.findall(r"\d{1,9}", config.ranks))))
    members |= {name: tuple(sorted(ranks)) for name, ranks in told.groups.items() if ranks}
    for entry in (entry for trace in told.traces for entry in trace.entries):
        if entry.is_p2p or not entry.process_group or entry.collective_seq_id < 1:
            continue
        name = entry.process_group[0]
        descriptions[name] = printable(entry.process_group[-1], _NAME)
        # states that only a backend which keeps them has
        knows = entry.state in ("started", "completed")
        over = entry.state == "completed" if knows else entry.retired and not ended
        call = _call(entry, over=over)
        if knows or call.completed:
            kept.add(name)
        _add(calls[name], call)
    # those that have called nothing yet
    found = dict.fromkeys((*calls, *(name for name, ranks in members.items() if ranks)))
    groups = [
        GroupTrace(
            name, descriptions.get(name, ""), members.get(name, ()), (*calls[name],), name in kept
        )
        for name in found
    ]
    return RankTrace(rank, (*groups,), told.handled)


class _Entry(msgspec.Struct):
    """A call, as the flight recorder has it."""

    process_group: list[str] = []  # its name and description
    collective_seq_id: int = 0
    profiling_name: str = ""
    state: str | None = None
    retired: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    time_created_ns: int = 0
    is_p2p: bool = False


class _Config(msgspec.Struct):
    ranks: str = ""  # ``[0, 1]``; of gloo there are none


class _Trace(msgspec.Struct):
    version: str = ""
    pg_config: dict[str, _Config] = {}
    entries: list[_Entry] = []


class _Document(msgspec.Struct):
    groups: dict[str, list[int]] = {}
    handled: str = ""
    traces: list[_Trace] = []


def _call(entry: _Entry, *, over: bool) -> Call:
    backend, _, operation = entry.profiling_name.partition(":")
    return Call(
        entry.collective_seq_id,
        printable(operation if backend in _BACKENDS else entry.profiling_name, _NAME),
        tuple(map(tuple, entry.input_sizes[:_MOST_TENSORS])),
        tuple(
            _DTYPES.get(name, printable(name.lower(), _NAME))
            for name in entry.input_dtypes[:_MOST_TENSORS]
        ),
        max(0, entry.time_created_ns),
        over,
    )


def _add(calls: list[Call], call: Call) -> None:
    """Add a call to those of its group."""
    last = calls[-1] if calls else None
    if last is not None and call.number <= last.number:
        same = call.operation == last.operation or "coalesced" in call.operation
        if call.number == last.number and same:
            # Several that are one to the backend: their sizes come one by one.
            call = replace(call, sizes=(), dtypes=())
            calls.pop()
        else:
            # The group was destroyed, and another one has its name.
            calls.clear()
    calls.append(call)


def latest(trace: RankTrace, most: int = MOST_TOLD) -> RankTrace:
    """A trace with so many calls at most, the last of each group."""
    each = max(1, most // max(1, len(trace.groups)))
    groups = tuple(replace(group, calls=group.calls[-each:]) for group in trace.groups[:most])
    return replace(trace, groups=groups)


# Comparing


def straggler(traces: Mapping[int, RankTrace]) -> tuple[int, int, int, float] | None:
    """Find the rank that others wait for in nearly all of the last operations, if that costs much.

    Returns the rank, how often it came last, of how many operations, and after how many seconds.
    """
    came: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for rank, trace in traces.items():
        for group in trace.groups:
            for call in group.calls:
                came[group.name, call.number][rank] = call.created_ns
    lags: dict[int, list[int]] = defaultdict(list)
    moments = [
        each for each in came.values() if len(each) == len(traces) > 1 and all(each.values())
    ]
    if len(moments) < _FEW_CALLS:
        return None
    for each in moments:
        *_, before, last = sorted(each, key=each.__getitem__)
        lags[last].append(each[last] - each[before])
    rank, late = max(lags.items(), key=lambda each: len(each[1]))
    took = max(each[rank] for each in moments) - min(each[rank] for each in moments)
    if len(late) < _NEARLY_ALL * len(moments) or sum(late) < _MUCH * took:
        return None
    return rank, len(late), len(moments), statistics.median(late) / 1e9


def with_aborted(traces: Mapping[int, RankTrace], rank: int) -> dict[int, RankTrace]:
    """Traces with that of a rank which left none when gloo aborted it for what it received.

    Where the others of its group do not agree among themselves, their traces tell enough. Where
    they do, it is the aborted one whose call has another size or type.
    """
    newest = [each for trace in traces.values() if (each := _newest(trace))]
    calls = {(group.name, call.number, _signature(call)) for group, call in newest}
    if len(calls) != 1 or {*newest[0][0].ranks} != {*traces, rank}:
        return dict(traces)
    group, call = newest[0]
    made = replace(call, sizes=(), dtypes=(), created_ns=0)
    return {**traces, rank: RankTrace(rank, (replace(group, calls=(made,)),))}


def compare(
    traces: Mapping[int, RankTrace],
    waits: Mapping[int, Waits] | None = None,
    places: Mapping[int, str] | None = None,
) -> Disagreement | None:
    """Find the operation that ranks do not agree on.

    Of several groups it is the one whose absent ranks do not wait in another one: they would come
    to it if that went on. If that is so of several, it is one whose absent ranks wait least surely.
    If it is so of none, each group waits for another: then fewest ranks have left a call out.

    ``traces``: what ranks have recorded, by rank. Returns None if they agree, or too little is
    known.
    """
    return _Comparison(traces, waits or {}, places or {}).result()


class _Comparison:
    """What is compared; arguments as for `compare`."""

    def __init__(
        self, traces: Mapping[int, RankTrace], waits: Mapping[int, Waits], places: Mapping[int, str]
    ) -> None:
        self.traces, self.waits, self.places = traces, waits, places
        self.newest = {rank: last for rank, trace in traces.items() if (last := _newest(trace))}

    def result(self) -> Disagreement | None:
        names = sorted({group.name for trace in self.traces.values() for group in trace.groups})
        found = [each for name in names if (each := self.compared(name)) is not None]
        pairs = [(each, other) for each in found for other in found if other is not each]
        late = [each for each, other in pairs if any(self.waits_in(r, other) for r in _odd(each))]
        first = [each for each in found if each not in late]
        if first:
            return min(first, key=lambda each: min(map(self.level, _odd(each)), default=Waits.NO))
        fewest = min((len(_odd(each)) for each in found), default=0)
        alone = [each for each in found if len(_odd(each)) == fewest]
        if not fewest or len(alone) != 1 or len(found) == 1:
            return self.standing()
        # its absent ranks wait for the others in a call of another group
        absent = _odd(alone[0])
        there = (party for each in found if each is not alone[0] for party in each.parties[1:])
        instead = next((party for party in there if {*absent} <= {*party.ranks}), None)
        return replace(alone[0], at_fault=absent, instead=instead)

    def level(self, rank: int) -> Waits:
        """How surely a rank waits: not at all, if nothing is known."""
        return self.waits.get(rank, Waits.NO)

    def waits_in(self, rank: int, found: Disagreement) -> bool:
        """Whether a rank's last call of all is one that it waits in, by a disagreement."""
        newest = self.newest.get(rank)
        if newest is None or self.waits.get(rank, Waits.PERHAPS) is Waits.NO:
            return False
        parties = found.parties[1:] if found.kind == "absent" else found.parties
        party = next((party for party in parties if rank in party.ranks), None)
        return party is not None and _title(newest[0].name, self.traces) == party.group

    def party(self, ranks: Iterable[int], calls: Mapping[int, Call], title: str) -> Party:
        """Ranks, and what others or they have called together, at the time of the first."""
        times = [call.created_ns for call in calls.values() if call.created_ns]
        call = replace(min(calls.items())[1], created_ns=min(times, default=0))
        ordered = tuple(sorted(ranks))
        return Party(ordered, call, title, self.together(ordered))

    def together(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Where ranks stand, as far as that is known; nothing if in more than two places."""
        different = dict.fromkeys(place for rank in ranks if (place := self.places.get(rank)))
        return tuple(different) if len(different) <= _MOST_PLACES else ()

    def group(self, name: str) -> dict[int, GroupTrace]:
        """The traces of one group, of those of its ranks that tell, by rank."""
        groups = {rank: trace.group(name) for rank, trace in sorted(self.traces.items())}
        members = {rank for group in groups.values() for rank in group.ranks}
        described = {group.description for group in groups.values()}
        if not members and DEFAULT not in described:
            members = {rank for rank, group in groups.items() if group.calls}
        return {rank: group for rank, group in groups.items() if rank in members or not members}

    def compared(self, name: str) -> Disagreement | None:
        """What the ranks of a group do not agree on."""
        title, group = _title(name, self.traces), self.group(name)
        if len(group) < 2:
            return None
        lasts = [each.last for each in group.values()]
        missed, opened = min(lasts) + 1, min(each.open for each in group.values())
        made: dict[int, set[tuple[object, ...]]] = defaultdict(set)
        for call in (call for each in group.values() for call in each.calls):
            if call.number >= opened:
                made[call.number].add(_signature(call))
        # the first call that they do not agree on and that is not over
        odd = min((number for number, calls in made.items() if len(calls) > 1), default=None)
        if odd is not None and odd <= missed:
            return self.mismatch(title, group, odd)
        return None if max(lasts) < missed else self.absence(title, group, missed)

    def absence(
        self, title: str, group: Mapping[int, GroupTrace], missed: int
    ) -> Disagreement | None:
        """Who has not come to a call, and who waits there or further on."""
        absent = [rank for rank, each in group.items() if each.last < missed]
        calls = {rank: call for rank, each in group.items() if (call := each.call(missed))}
        came = {rank: call for rank, call in calls.items() if not call.completed}
        if not came:
            return None
        # who can have stayed there: it made no later call, or only ordered them
        here = {
            rank: call
            for rank, call in came.items()
            if group[rank].last == missed or (group[rank].states and group[rank].open == missed)
        }
        # who waits in later operations of the group
        beyond: dict[tuple[int, str], dict[int, Call]] = defaultdict(dict)
        for rank, each in group.items():
            call = each.call(each.open) or (each.calls[-1] if each.calls else None)
            if call is None or call.completed or call.number <= missed or rank in here:
                continue
            if self.newest[rank][0].name == each.name and self.level(rank) is not Waits.NO:
                beyond[call.number, call.operation][rank] = call
        further = {rank for calls in beyond.values() for rank in calls}
        # Who has gone on could do so without the others: the root of a broadcast.
        waiting = here or {rank: call for rank, call in came.items() if rank not in further}
        parties = [self.party(absent, waiting or came, title)]
        together = [
            *([waiting] if waiting else []),
            *(calls for _, calls in sorted(beyond.items())),
        ]
        parties += [self.party(calls, calls, title) for calls in together]
        # Of absent ranks those are at fault that wait least surely for others; none if all surely
        # do: who waits in something that is not recorded (a send, a store) would have come.
        level = min(map(self.level, absent))
        least = [rank for rank in absent if self.level(rank) is level is not Waits.SURELY]
        return Disagreement("absent", tuple(parties), tuple(least))

    def mismatch(self, title: str, group: Mapping[int, GroupTrace], number: int) -> Disagreement:
        """Who has called what, where ranks of a group have called different things."""
        together: dict[tuple[object, ...], dict[int, Call]] = defaultdict(dict)
        for rank, each in group.items():
            if call := each.call(number):
                together[_signature(call)][rank] = call
        names = {call.operation for calls in together.values() for call in calls.values()}
        # What a rank has called of another operation, or with another size, is told together.
        by_size = sorted(together.values(), key=lambda calls: (len(calls), [*calls]))
        alone = len(by_size[-2]) < len(by_size[-1])
        odd = sorted(rank for calls in by_size[:-1] for rank in calls) if alone else []
        if not odd or len(names) > 1:
            by_size.sort(key=list)
        parties = []
        for calls in by_size:
            places = self.together([rank for rank in calls if group[rank].last == number])
            parties.append(replace(self.party(calls, calls, title), places=places))
        kind: Kind = "operations" if len(names) > 1 else "arguments"
        return Disagreement(kind, tuple(parties), tuple(odd))

    def standing(self) -> Disagreement | None:
        """Where ranks wait, if all do of which it is known where they stand."""
        if not self.traces or any(self.level(rank) is Waits.NO for rank in self.traces):
            return None
        if self.traces.keys() != self.newest.keys():
            return None
        together: dict[tuple[str, int, str], dict[int, Call]] = defaultdict(dict)
        for rank, (group, last) in sorted(self.newest.items()):
            call = group.call(group.open) or last
            together[_title(group.name, self.traces), call.number, call.operation][rank] = call
        items = together.items()
        parties = tuple(self.party(calls, calls, title) for (title, _, _), calls in items)
        return Disagreement("waiting", parties)


def _odd(found: Disagreement) -> tuple[int, ...]:
    return found.parties[0].ranks if found.kind == "absent" else ()


def _newest(trace: RankTrace) -> tuple[GroupTrace, Call] | None:
    """The last call of a rank in any of its groups."""
    calls = [(group, group.calls[-1]) for group in trace.groups if group.calls]
    return max(calls, key=lambda each: each[1].created_ns, default=None)


def _title(name: str, traces: Mapping[int, RankTrace]) -> str:
    """What a group is called for people."""
    groups = [trace.group(name) for trace in traces.values()]
    described = {group.description for group in groups} - {"", "undefined"}
    members = {rank for group in groups for rank in group.ranks}
    title = min(described, default="a group" if members else f"group {name}")
    if title == DEFAULT or not members or (members >= traces.keys() and len(described) == 1):
        return title
    return f"{title} of {_named(members)}"


def _signature(call: Call) -> tuple[object, ...]:
    """What must be the same in all ranks."""
    name = call.operation
    may_differ = name not in _EQUAL and any(part in name for part in _UNEQUAL)
    if may_differ or not call.sizes:
        return (name,)
    # Elements are counted: [4] and [2, 2] go together.
    return (name, tuple(math.prod(size) for size in call.sizes), call.dtypes)


# Saying it


def sentence(
    found: Disagreement, shown: Callable[[str], str] = str, *, so_far: bool = False
) -> str:
    """Return a disagreement in one sentence, with times of this machine's zone.

    ``shown``: how a place is written. ``so_far``: whether ranks that are missing may still come.
    """
    if found.kind in ("arguments", "operations") or (found.kind == "waiting" and found.parties[1:]):
        return _differences(found, shown)
    first, *others = found.parties
    what, texts = operation_text(first.collective, first.group), []
    if found.kind == "absent":
        verbs = ("has not come", "have not come") if so_far else ("never came", "never came")
        texts.append(_located(f"{_named(first.ranks, *verbs)} to {what}", first, shown))
    for party in others[: MOST_PARTIES - 1] if texts else [first]:
        call, where = party.collective, what if party is first else "it"
        if call.number != first.collective.number:
            name = f"{call.operation} " if call.operation != first.collective.operation else ""
            where = f"{name}#{call.number}"
        if call.created_ns:
            where += time.strftime(" since %H:%M:%S", time.localtime(call.created_ns / 1e9))
        text = f"{_named(party.ranks, 'waits', 'wait')} in {where}"
        texts.append(_located(text, party, shown))
    beyond = {rank for party in others[MOST_PARTIES - 1 :] for rank in party.ranks}
    if beyond:
        texts.append(f"{_named(beyond, 'is', 'are')} further on")
    if found.instead is not None:
        other = operation_text(found.instead.collective, found.instead.group)
        texts.append(f"{_named(found.at_fault, 'waits', 'wait')} in {other} instead")
    return "; ".join(texts)


def _named(ranks: Iterable[int], verb: str = "", verbs: str = "") -> str:
    """``ranks 0-3``, with the form of a verb for one or for several."""
    known = set(ranks)
    text = f"rank{'s' * (len(known) != 1)} {spans(known)}"
    return f"{text} {verb if len(known) == 1 else verbs}" if verb else text


def _at(party: Party, shown: Callable[[str], str]) -> str:
    return f"at {' and '.join(map(shown, party.places))}" if party.places else ""


def _located(text: str, party: Party, shown: Callable[[str], str]) -> str:
    return ", ".join(filter(None, (text, _at(party, shown))))


def _arguments(call: Call, *, types: bool = True) -> str:
    """``float32 [128, 10]``; empty if nothing is known of what an operation was called with."""
    dtypes = dict(enumerate(call.dtypes)) if types else {}
    texts = []
    for index, size in enumerate(call.sizes[:_SHOWN_TENSORS]):
        dtype = dtypes.get(index, "") if dtypes.get(index) != dtypes.get(index - 1) else ""
        texts.append(f"{dtype} {list(size)}".lstrip())
    if len(call.sizes) > _SHOWN_TENSORS:
        texts.append("...")
    return ", ".join(texts)


def operation_text(call: Call, group: str) -> str:
    """``all_reduce #4 of default_pg (float32 [4])``."""
    arguments = _arguments(call)
    return f"{call.operation} #{call.number} of {group}" + (f" ({arguments})" if arguments else "")


def last_call_ns(trace: RankTrace) -> int:
    """When a rank last came to a collective, nanoseconds since the epoch; 0 if it never did."""
    newest = _newest(trace)
    return 0 if newest is None else newest[1].created_ns


def last_operation(trace: RankTrace) -> str:
    """The last collective that a rank has come to, for people; empty if there is none."""
    newest = _newest(trace)
    if newest is None:
        return ""
    group, call = newest
    return operation_text(call, _title(group.name, {trace.rank: trace}))


def _differences(found: Disagreement, shown: Callable[[str], str]) -> str:
    """What parties have called, one after another, with the places where they differ in them."""
    parties = found.parties
    first, last = parties[0], parties[-1]
    types = len({party.collective.dtypes for party in parties}) > 1
    places = [_at(party, shown) for party in parties]
    same = len(set(places)) == 1
    texts = []
    for party, place in zip(parties[:MOST_PARTIES], places, strict=False):
        call, who = party.collective, _named(party.ranks)
        # its group where that is not the one of all
        of = "" if party.group == DEFAULT else f" of {party.group}"
        title = f"{call.operation} #{call.number}{of}"
        if found.kind == "arguments":
            if party is last is not first and len(last.ranks) > max(1, len(first.ranks)):
                who = "the others"
            called = f" called {title}" if party is first else ""
            size = _arguments(call, types=types) or "another size or type"
            text = f"{who}{called} with {size}"
        else:
            text = f"{_named(party.ranks, 'is', 'are') if party is first else who} in {title}"
        texts.append(f"{text} {place}" if place and not same else text)
    left = len(parties) - MOST_PARTIES
    if left > 0:
        texts.append(f"and {left} more differ")
    return ", ".join([*texts, *([places[0]] if same and places[0] else [])])
