"""Inductor's settings as they are for everybody: in torch each thread may have its own, and a default is all threads'.

Reading a default that is no plain value makes it the thread's own setting (in older releases everybody's), and of all
settings threads keep what they made. So a new default alone would go unnoticed in threads that compiled before.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

_CACHES = {"_hash_dirty_var": True, "_hash_cache_var": None, "_get_dict_dirty_keys_var": None,
           "_get_dict_cache_var": None}  # fmt: skip


def default(name: str) -> Any:
    """What a setting is in a thread that says nothing of it; not to be changed in place."""
    return _entry(name).default


def set_default(name: str, value: Any) -> None:
    """Gives a setting another default in all threads. This thread's own word stays.

    Args:
        name: of the setting.
        value: the default from now on.
    """
    from torch.utils import _config_module

    entry, unset = _entry(name), _config_module._UNSET_SENTINEL
    if isinstance(entry.default, dict) or callable(entry.default):
        own, per_thread = entry.user_override, isinstance(entry.user_override, ContextVar)
        said = own.get() if per_thread else own
        said = unset if said is unset or said == entry.default else said
        if per_thread:
            # Nobody can look into other threads: a new variable is the only way to drop their copies.
            entry.user_override = ContextVar(own.name, default=unset)
            entry.user_override.set(said)
        else:
            entry.user_override = said
    entry.default = value
    forget()


def forget() -> None:
    """Lets all threads make anew what they keep of the settings, the key of Inductor's caches included."""
    from torch._inductor import config

    for name, fresh in _CACHES.items():
        if hasattr(config, name):
            setattr(config, name, ContextVar(name, default=fresh))
    if hasattr(config, "_is_dirty"):
        config._is_dirty = True


def _entry(name: str) -> Any:
    from torch._inductor import config

    return getattr(config, "_config")[name]  # noqa: B009 (a module whose attributes are settings)
