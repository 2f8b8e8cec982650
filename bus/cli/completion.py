"""`bus completion`: the script that makes a shell complete commands, options and topic names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from bus.cli.groups import BusCommand

_VARIABLE = "_BUS_COMPLETE"


@click.command(
    cls=BusCommand,
    examples="""
    eval "$(bus completion bash)"
    bus completion zsh > ~/.zfunc/_bus
    bus completion fish > ~/.config/fish/completions/bus.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell. Topic names come from the broker, if one answers."""
    script = get_completion_class(shell)
    assert script is not None, f"click completes {shell}"
    click.echo(script(ctx.find_root().command, {}, "bus", _VARIABLE).source())
