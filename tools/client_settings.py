"""The settings of the clients as typed keywords, for type checkers and editors: made of the config classes, which have
each setting with its default and its check.

python tools/client_settings.py         writes bus/client/config/typed_settings.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from bus.client.config.clients import AdminConfig, ConnectionConfig, ConsumerConfig, ProducerConfig

FILE = Path(__file__).parent.parent / "bus" / "client" / "config" / "typed_settings.py"
_HEAD = '''"""The settings of the clients as typed keywords: made by tools/client_settings.py, and never edited.

`Producer(linger=5)` fails a type checker, and an editor completes the names. A program that keeps settings in a
dictionary declares it as one of these.
"""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict
'''
_CLASSES = {
    "ConnectionSettings": (ConnectionConfig, "TypedDict, total=False"),
    "ProducerSettings": (ProducerConfig, "ConnectionSettings, total=False"),
    "ConsumerSettings": (ConsumerConfig, "ConnectionSettings, total=False"),
    "AdminSettings": (AdminConfig, "ConnectionSettings, total=False"),
}


def typed_settings() -> str:
    """The module that there should be."""
    shared = {setting.name for setting in fields(ConnectionConfig)}
    parts = [_HEAD]
    for name, (config, bases) in _CLASSES.items():
        own = [setting for setting in fields(config) if config is ConnectionConfig or setting.name not in shared]
        parts.append("\n".join([f"\n\nclass {name}({bases}):", *_lines(own), ""]))
    return "".join(parts)


def _lines(settings: list[Field[Any]]) -> Iterator[str]:
    for setting in settings:
        yield f"    {setting.name}: {setting.metadata['key'].typed or setting.type}".replace("'", '"')


if __name__ == "__main__":
    FILE.write_text(typed_settings())
