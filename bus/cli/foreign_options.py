"""What to type instead of an option that other tools have: Kafka's own, kcat, or another command of `bus`."""

from __future__ import annotations

import click

# By the name that was typed: what is meant here, the first of them that the command has.
_MEANT = {
    "--bootstrap-server": ("--address",),
    "--bootstrap-servers": ("--address",),
    "--broker-list": ("--address",),
    "--broker": ("--address",),
    "--host": ("--listen", "--address"),
    "--port": ("--listen", "--address"),
    "--root": ("--address",),
    "--address": ("--listen", "--root"),
    "--offset": ("--from", "--time", "--from-offset"),
    "--max-messages": ("--max",),
    "--timeout-ms": ("--exit",),
    "--num-records": ("--records",),
    "--messages": ("--records", "--max"),
    "--producer-property": ("--property",),
    "--producer.config": ("--property",),
}
_REASONS = {
    "--replication-factor": "a partition has one copy, on the storage of the root",
    "--zookeeper": "there is no ZooKeeper: the cluster's metadata is a log in the root",
    "--command-config": "there are no settings of the connection but --address",
    "--topic": "a topic is written without an option",
}


def explain_option(error: click.NoSuchOption) -> str:
    """One line: that there is no such option, and what to type instead if that is known."""
    name, ctx = error.option_name, error.ctx
    said = f"no such option {name!r}"
    if ctx is None:
        return f"{said}."
    command = name.lstrip("-")
    if isinstance(ctx.command, click.Group) and command in ctx.command.list_commands(ctx):
        return f"{said}; {command} is a command: {ctx.command_path} {command}"
    known = {option: param for param in ctx.command.get_params(ctx) for option in param.opts}
    for meant in _MEANT.get(name, ()):
        if meant in known:
            value = known[meant].make_metavar(ctx) if not getattr(known[meant], "is_flag", False) else ""
            return f"{said}; here it is {f'{meant} {value}'.strip()}"
    if name in _REASONS:
        return f"{said}: {_REASONS[name]}"
    near = " or ".join(option for option in error.possibilities or () if option != "--debug")
    return f"{said}; did you mean {near}?" if near else f"{said}."
